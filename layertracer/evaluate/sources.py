"""Reading question sets: folders in C-Eval or CMMLU layout, the hub, and the built-in set."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from layertracer.errors import UserError
from layertracer.evaluate.questions import LETTERS, Layout, Question, Subject, Suite, known_subjects

TASKS = ("builtin", "ceval", "cmmlu")
_TEST_SPLIT: dict[Layout, str] = {"ceval": "val", "cmmlu": "test"}
_HUB: dict[Layout, str] = {"ceval": "ceval/ceval-exam", "cmmlu": "haonan-li/cmmlu"}
_ENDINGS = (".csv", ".parquet")


def load_suites(tasks: Sequence[str], data_dir: Path | None, shots: int) -> list[Suite]:
    """Return the suite of each task.

    Args:
        tasks: of ``builtin``, ``ceval``, ``cmmlu``.
        data_dir: a folder in the layout of the one task asked, or with subfolders ``ceval`` and
            ``cmmlu``; None takes the sets from the hub.
        shots: worked examples that each subject must have.

    Raises:
        UserError: unknown task, no such folder, missing or malformed file.
    """
    suites = []
    for task in dict.fromkeys(tasks):
        if task not in TASKS:
            raise UserError(f"--tasks {task}: not one of {', '.join(TASKS)}")
        if task == "builtin":
            suites.append(builtin_suite())
        elif data_dir is None:
            suites.append(_from_hub(task))
        else:
            suites.append(Suite(task, read_folder(_folder_of(task, data_dir), task)))
    for suite in suites:
        _check_shots(suite, shots)
    return suites


def builtin_suite() -> Suite:
    """Return the project's own 64 questions: four subjects in each layout."""
    with as_file(files("layertracer.evaluate").joinpath("questions")) as root:
        return Suite(
            "builtin",
            (*read_folder(root / "ceval", "ceval"), *read_folder(root / "cmmlu", "cmmlu")),
        )


def read_folder(root: Path, layout: Layout) -> tuple[Subject, ...]:
    """Read every subject below ``root`` (``val``/``test`` and ``dev``), sorted by name.

    Raises:
        UserError: the folder has no such split, or a file is malformed.
    """
    split = _TEST_SPLIT[layout]
    tests = _files(root / split, split)
    if not tests:
        example = f"{split}/law_val.csv" if layout == "ceval" else f"{split}/college_law.csv"
        raise UserError(
            f"{root}: no {layout} questions found: expected files like {example} (csv or parquet)"
        )
    dev = _files(root / "dev", "dev")
    return tuple(
        _subject(name, layout, _read(file), _read(dev[name]) if name in dev else ())
        for name, file in sorted(tests.items())
    )


def _subject(
    name: str, layout: Layout, test: tuple[Question, ...], dev: tuple[Question, ...]
) -> Subject:
    title, categories = known_subjects()[layout].get(name, (name.replace("_", " "), ("Other",)))
    return Subject(name, title, categories, layout, dev, test)


def _folder_of(task: str, data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise UserError(f"--data-dir {data_dir}: no such folder")
    inner = data_dir / task
    return inner if inner.is_dir() else data_dir


def _files(folder: Path, split: str) -> dict[str, Path]:
    """Map subject to file: ``law_val.csv``, ``law.csv``, ``law/val-00000-of-00001.parquet``."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in _ENDINGS:
            found[path.stem.removesuffix(f"_{split}")] = path
    for path in sorted(folder.parent.glob(f"*/{split}-*")):
        if path.suffix in _ENDINGS:
            found.setdefault(path.parent.name, path)
    return found


def _read(file: Path) -> tuple[Question, ...]:
    rows = _parquet_rows(file) if file.suffix == ".parquet" else _csv_rows(file)
    questions = tuple(_question(row, file, number) for number, row in enumerate(rows))
    if not questions:
        raise UserError(f"{file}: holds no questions")
    if len({question.id for question in questions}) < len(questions):
        raise UserError(f"{file}: two questions have the same id")
    return questions


def _csv_rows(file: Path) -> list[Mapping[str, object]]:
    """Read every cell as text: numbers, ``NA`` and empty cells stay as they are written."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            return list(csv.DictReader(stream, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file}: not a UTF-8 csv file: {error}") from error


def _parquet_rows(file: Path) -> list[Mapping[str, object]]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{file}: not a parquet file: {error}") from error


def _question(row: Mapping[str, object], file: Path | str, number: int) -> Question:
    fields = {_field(key): _text(value) for key, value in row.items() if key is not None}
    missing = [key for key in ("question", *LETTERS) if not fields.get(key, "").strip()]
    if missing:
        raise UserError(f"{file}: question {number}: nothing in column {missing[0]}")
    answer = fields.get("answer", "").strip().upper()
    if answer not in LETTERS:
        raise UserError(
            f"{file}: question {number}: the answer is {answer!r}, not one of A, B, C, D"
            + (" (C-Eval publishes answers of val and dev only)" if not answer else "")
        )
    a, b, c, d = (fields[letter] for letter in LETTERS)
    identity = fields.get("id", "").strip() or str(number)
    return Question(identity, fields["question"], (a, b, c, d), answer)


def _field(column: str) -> str:
    """Fold CMMLU's ``Question`` and ``Answer`` to C-Eval's; CMMLU's first column has no name."""
    name = column.strip()
    return name if name in LETTERS else (name.lower() or "id")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _from_hub(layout: Layout) -> Suite:
    import datasets

    subjects = []
    for name in sorted(known_subjects()[layout]):
        try:
            sets = datasets.load_dataset(_HUB[layout], name)
        except Exception as error:  # the client raises its own, Arrow's and the network's errors
            raise UserError(
                f"--tasks {layout}: {_HUB[layout]} can't be loaded from the hub "
                f"({type(error).__name__}): give a local copy with --data-dir"
            ) from error
        place = f"{_HUB[layout]}/{name}"
        test, dev = (
            tuple(_question(row, place, number) for number, row in enumerate(sets[split]))
            for split in (_TEST_SPLIT[layout], "dev")
        )
        subjects.append(_subject(name, layout, test, dev))
    return Suite(layout, tuple(subjects))


def _check_shots(suite: Suite, shots: int) -> None:
    for subject in suite.subjects:
        if len(subject.dev) < shots:
            raise UserError(
                f"--shots {shots}: {suite.name} has {len(subject.dev)} worked examples (dev) for "
                f"{subject.name}: add them or ask for fewer"
            )
