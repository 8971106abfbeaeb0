from pathlib import Path

import pytest

from layertracer.errors import UserError
from layertracer.trace.prompts import Language, PromptChoice, load_prompts

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def choose(source: str, **rest) -> list:
    return load_prompts(PromptChoice(source=source, **rest))


def test_built_in_prompts_are_many_bilingual_and_solved() -> None:
    prompts = choose("builtin")
    assert len(prompts) >= 100
    assert {"antonym/en", "antonym/zh", "translation/zh-en"} <= {p.group for p in prompts}
    assert all(p.target and not p.text.endswith(p.target) for p in prompts)
    hot = next(p for p in prompts if p.text.endswith("The opposite of hot is"))
    assert hot.target == " cold"
    assert hot.text.count(".\n") == 5, "five solved examples come first"
    assert "opposite of hot is cold" not in hot.text


def test_language_and_shots_choose_among_built_in_prompts() -> None:
    chinese = choose("builtin", language=Language.ZH, shots=0)
    assert chinese
    assert all(p.group.split("/")[1].startswith("zh") for p in chinese)
    assert "“大”的反义词是“" in {p.text for p in chinese}


def test_the_number_of_prompts_is_drawn_by_the_seed() -> None:
    first = choose("builtin", count=10, seed=1)
    assert len(first) == 10
    assert first == choose("builtin", count=10, seed=1)
    assert first != choose("builtin", count=10, seed=2)


def test_antsynnet_pairs_become_antonym_and_synonym_prompts(tmp_path: Path) -> None:
    file = tmp_path / "pairs.test"
    file.write_text("hot\tcold\t1\n\nquick\tfast\t0\nbig\tsmall\t1\n", "utf-8")
    prompts = choose(f"antsynnet:{file}", shots=1)
    assert [p.group for p in prompts] == ["antonym/en", "synonym/en", "antonym/en"]
    assert prompts[0].text.endswith('The opposite of "hot" is "')
    assert prompts[0].text.startswith('The opposite of "big" is "small".')
    assert prompts[0].target == "cold"
    assert prompts[1].source == f"{file}:3"
    chinese = choose(f"antsynnet:{file}", language=Language.ZH, shots=0)
    assert chinese[0].text == "英文单词“hot”的反义词是“"


def test_questions_in_cmmlu_and_ceval_layout(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "world_history.csv").write_text(
        ',Question,A,B,C,D,Answer\n0,"谁,何时？",甲,乙,丙,丁,B\n', "utf-8"
    )
    (prompt,) = choose(f"cmmlu:{tmp_path}")
    assert "world history" in prompt.text and "题目：谁,何时？" in prompt.text
    assert prompt.text.endswith("答案是：") and prompt.target == "B"
    ceval = tmp_path / "ceval"
    (ceval / "val").mkdir(parents=True)
    (ceval / "val" / "law_val.csv").write_text(
        "id,question,A,B,C,D,answer\n0,Q,a,b,c,d,D\n", "utf-8"
    )
    (english,) = choose(f"ceval:{ceval}", language=Language.EN)
    assert english.group == "law" and english.target == " D" and english.text.endswith("Answer:")


def test_jsonl_prompts_keep_target_and_group(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "1+1=", "target": "2", "group": "sums"}\n{"prompt": "你好"}\n')
    first, second = choose(str(file))
    assert (first.text, first.target, first.group) == ("1+1=", "2", "sums")
    assert (second.text, second.target, second.group) == ("你好", None, "all")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", '{"prompt": ""}', r"x.jsonl:1: prompt must be"),
        ("x.jsonl", '\n{"text": "a"}', r"x.jsonl:2: expected"),
        ("x.jsonl", "", "holds no prompt"),
        ("x.jsonl", '{"prompt": "a", "target": 3}', "target a text"),
    ],
)
def test_damaged_jsonl_names_file_and_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        choose(str(tmp_path / name))


def test_damaged_sources_are_named(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs"
    pairs.write_text("hot\tcold\n", "utf-8")
    with pytest.raises(UserError, match=r"pairs:1: expected word, word and 0 or 1"):
        choose(f"antsynnet:{pairs}")
    with pytest.raises(UserError, match=r"absent does not exist"):
        choose(f"antsynnet:{tmp_path}/absent")
    with pytest.raises(UserError, match="is no folder"):
        choose(f"cmmlu:{tmp_path}/absent")
    with pytest.raises(UserError, match="--prompts wiki: give one of builtin, antsynnet:FILE"):
        choose("wiki")
    (tmp_path / "law.csv").write_text("id,question,A,B,C\n0,Q,a,b,c\n", "utf-8")
    with pytest.raises(UserError, match=r"law.csv:2: column d is missing"):
        choose(f"ceval:{tmp_path}")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"prompt": "caf\xe9"}')
    with pytest.raises(UserError, match="is not UTF-8 text"):
        choose(str(latin))


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="no data sets beside the checkout")
def test_real_data_sets_are_read() -> None:
    pairs = choose(f"antsynnet:{DATA}/antsynnet/adjective-pairs.test")
    assert len(pairs) == 500
    assert len(choose(f"cmmlu:{DATA}/cmmlu", count=300)) == 300
    ceval = choose(f"ceval:{DATA}/ceval")
    assert ceval[0].group == "accountant"
