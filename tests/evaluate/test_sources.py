"""Question sets: the built-in one, folders in C-Eval and CMMLU layout, and bad files."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from layertracer.errors import UserError
from layertracer.evaluate.questions import known_subjects
from layertracer.evaluate.sources import builtin_suite, load_suites, read_folder

DATA = Path(__file__).parents[3] / "shared" / "data"
CEVAL = ["id", "question", "A", "B", "C", "D", "answer"]
CMMLU = ["", "Question", "A", "B", "C", "D", "Answer"]


def write(file: Path, header: list[str], rows: list[list[str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])


def row(number: int, answer: str = "B") -> list[str]:
    return [str(number), f"问题{number}", "甲", "乙", "丙", "丁", answer]


def test_the_builtin_questions_are_whole_and_balanced() -> None:
    suite = builtin_suite()
    questions = [question for subject in suite.subjects for question in subject.test]
    assert len(questions) >= 48
    assert len(set(Counter(question.answer for question in questions).values())) == 1
    assert {subject.layout for subject in suite.subjects} == {"ceval", "cmmlu"}
    for subject in suite.subjects:
        assert subject.name in known_subjects()[subject.layout]
        assert len(subject.dev) == 5
        asked = {question.text for question in subject.test}
        assert not asked & {question.text for question in subject.dev}
        assert all(len(set(q.options)) == 4 for q in (*subject.test, *subject.dev))


def test_every_official_subject_is_known_with_its_categories() -> None:
    known = known_subjects()
    assert (len(known["ceval"]), len(known["cmmlu"])) == (52, 67)
    counts = Counter(name for _, names in known["cmmlu"].values() for name in names)
    assert counts == {
        "STEM": 17,
        "Humanities": 13,
        "Social Science": 22,
        "Other": 15,
        "China-specific": 15,
    }
    hard = [name for name, (_, names) in known["ceval"].items() if "Hard" in names]
    assert len(hard) == 8


def test_both_layouts_are_read(tmp_path: Path) -> None:
    write(tmp_path / "ceval" / "val" / "law_val.csv", CEVAL, [row(0), row(1, "d")])
    write(tmp_path / "ceval" / "dev" / "law_dev.csv", [*CEVAL, "explanation"], [[*row(0), "因为"]])
    write(tmp_path / "cmmlu" / "test" / "arts.csv", CMMLU, [row(0)])
    write(tmp_path / "cmmlu" / "dev" / "arts.csv", CMMLU, [row(0, "C")])
    ceval, cmmlu = load_suites(["ceval", "cmmlu"], tmp_path, shots=1)
    (law,), (arts,) = ceval.subjects, cmmlu.subjects
    assert (law.title, law.categories) == ("法学", ("Humanities",))
    assert [(q.id, q.answer, q.options[1]) for q in law.test] == [
        ("0", "B", "乙"),
        ("1", "D", "乙"),
    ]
    assert (arts.test[0].text, arts.dev[0].answer) == ("问题0", "C")


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    columns = {name or "id": [value] for name, value in zip(CMMLU, row(7), strict=True)}
    for place in ("flat/test/arts.parquet", "hub/arts/test-00000-of-00001.parquet"):
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
    flat, hub = (read_folder(tmp_path / name, "cmmlu") for name in ("flat", "hub"))
    assert flat == hub
    assert flat[0].name == "arts" and flat[0].test[0].id == "7"


def test_cells_stay_text(tmp_path: Path) -> None:
    """A table reader would make 1.0 of 1.00, and nothing of NA."""
    write(
        tmp_path / "val" / "law_val.csv", CEVAL, [["0", "多少？", "1.00", "NA", "(1)", "01", "A"]]
    )
    assert read_folder(tmp_path, "ceval")[0].test[0].options == ("1.00", "NA", "(1)", "01")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["0", "q", "a", "b", "c", "d", ""], "publishes answers of val and dev only"),
        (["0", "q", "a", "b", "c", "d", "E"], "the answer is 'E'"),
        (["0", "q", "a", "", "c", "d", "A"], "question 0: nothing in column B"),
        (["0", "", "a", "b", "c", "d", "A"], "nothing in column question"),
    ],
)
def test_a_bad_question_is_named(tmp_path: Path, cells: list[str], message: str) -> None:
    write(tmp_path / "val" / "law_val.csv", CEVAL, [cells])
    with pytest.raises(UserError, match=message) as raised:
        read_folder(tmp_path, "ceval")
    assert "law_val.csv" in str(raised.value)


def test_bad_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        load_suites(["ceval"], tmp_path / "nowhere", 0)
    with pytest.raises(UserError, match=r"val/law_val\.csv"):
        load_suites(["ceval"], tmp_path, 0)
    with pytest.raises(UserError, match="not one of builtin, ceval, cmmlu"):
        load_suites(["mmlu"], tmp_path, 0)
    write(tmp_path / "val" / "law_val.csv", CEVAL, [])
    with pytest.raises(UserError, match="holds no questions"):
        load_suites(["ceval"], tmp_path, 0)
    (tmp_path / "val" / "law_val.csv").write_bytes("问题".encode("gbk"))
    with pytest.raises(UserError, match="not a UTF-8 csv"):
        load_suites(["ceval"], tmp_path, 0)
    write(tmp_path / "val" / "law_val.csv", CEVAL, [row(0), row(0)])
    with pytest.raises(UserError, match="same id"):
        load_suites(["ceval"], tmp_path, 0)
    (tmp_path / "val" / "law_val.csv").unlink()
    (tmp_path / "val" / "law_val.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(UserError, match="not a parquet file"):
        load_suites(["ceval"], tmp_path, 0)


def test_the_hub_is_used_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, subject: str) -> dict[str, list[dict[str, object]]]:
        asked.append((name, subject))
        cells = dict(zip(CEVAL, row(3), strict=True))
        return {"val": [{**cells, "id": 3}], "dev": [{**cells, "explanation": ""}], "test": []}

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    (suite,) = load_suites(["ceval"], None, 1)
    assert len(suite.subjects) == 52 and ("ceval/ceval-exam", "law") in asked
    assert suite.subjects[0].test[0].id == "3"


def test_no_network_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: str) -> None:
        raise ConnectionError("Network is unreachable")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(UserError, match="give a local copy with --data-dir"):
        load_suites(["cmmlu"], None, 0)


def test_too_few_worked_examples_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "val" / "law_val.csv", CEVAL, [row(0)])
    with pytest.raises(UserError, match=r"--shots 5: ceval has 0 worked examples \(dev\) for law"):
        load_suites(["ceval"], tmp_path, 5)


@pytest.mark.data
@pytest.mark.skipif(
    not (DATA / "cmmlu" / "test").is_dir(), reason="CMMLU is not beside the checkout"
)
def test_all_of_cmmlu_is_read() -> None:
    (suite,) = load_suites(["cmmlu"], DATA, 5)
    assert {subject.name for subject in suite.subjects} == set(known_subjects()["cmmlu"])
    assert sum(len(subject.test) for subject in suite.subjects) == 11_582


@pytest.mark.data
@pytest.mark.skipif(
    not (DATA / "ceval" / "val").is_dir(), reason="C-Eval is not beside the checkout"
)
def test_ceval_is_read() -> None:
    (suite,) = load_suites(["ceval"], DATA, 0)
    assert suite.subjects[0].title == "注册会计师"
    assert all(question.answer in "ABCD" for question in suite.subjects[0].test)
