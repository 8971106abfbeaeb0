"""Reading the chosen option out of generated text."""

import pytest

from layertracer.evaluate.extract import extract

CITIES = ["北京", "上海", "广州", "南京"]

CHOSEN = [
    ("B", "B"),
    ("B.", "B"),
    ("B。", "B"),
    ("B、上海", "B"),
    ("B. 上海", "B"),
    ("B 上海", "B"),
    ("(B)", "B"),
    ("（B）", "B"),
    ("【B】", "B"),
    ("Ｂ", "B"),
    ("答案：Ｂ", "B"),
    ("答案是（Ｃ）", "C"),
    ("答案：B", "B"),
    ("答案: B", "B"),
    ("答案为B。", "B"),
    ("答案是：B", "B"),
    ("答案应该是B", "B"),
    ("正确答案是选项B", "B"),
    ("正确答案：B、上海", "B"),
    ("正确选项为“D”", "D"),
    ("选B。", "B"),
    ("选B", "B"),
    ("选择 C。", "C"),
    ("应选D", "D"),
    ("故选C", "C"),
    ("本题选 A", "A"),
    ("选项：D", "D"),
    ("因此，选项B是正确的。", "B"),
    ("B选项正确", "B"),
    ("C项说法正确，其余错误", "C"),
    ("**B**", "B"),
    ("**答案：B**", "B"),
    ("### 答案\nB", "B"),
    ("`B`", "B"),
    ("$\\boxed{C}$", "C"),
    ("\\boxed{\\text{D}}", "D"),
    ("答案是 $B$。", "B"),
    ("b", "B"),
    ("d.", "D"),
    ("答案是d", "D"),
    ("The answer is B.", "B"),
    ("The correct answer is (C).", "C"),
    ("Answer: D", "D"),
    ("<think>A看起来对，答案是A？</think>\n\n答案是B", "B"),
    ("B\n因为上海在东部，A和C都不对。", "B"),
    ("A选项错误，因为它不在南方，因此答案是B", "B"),
    ("A、C、D均不正确，所以选B", "B"),
    ("答案不是A，而是C", "C"),
    ("不选A，选D", "D"),
    ("先看A，再看B。综上所述，正确答案是D。", "D"),
    ("我认为答案是A。不对，重新想一下，答案是C。", "C"),
    ("A错误，B错误，C错误。D。", "D"),
    ("Let's think step by step. The answer is C.", "C"),
    ("As a city in the north, the answer is A", "A"),
]

BY_TEXT = [
    ("北京", "A"),
    ("答案是上海", "B"),
    ("应该是广州。", "C"),
    ("《南京》", "D"),
]

SEVERAL = [
    "A或B",
    "AB",
    "A、C",
    "A,B",
    "A和D",
    "答案是A或B",
    "答案：ABD",
    "选A、B",
    "A and B",
    "北京和上海",
    "A与B都正确",
]

NOTHING = ["我不知道。", "这是一个好问题", "Let me think", "Because of this", "A city", "12"]


@pytest.mark.parametrize(("answer", "letter"), CHOSEN)
def test_a_letter_is_found(answer: str, letter: str) -> None:
    found = extract(answer, CITIES)
    assert (found.letter, found.parsed) == (letter, "letter")


@pytest.mark.parametrize(("answer", "letter"), BY_TEXT)
def test_an_answer_given_as_the_options_text_counts(answer: str, letter: str) -> None:
    found = extract(answer, CITIES)
    assert (found.letter, found.parsed) == (letter, "text")


@pytest.mark.parametrize("answer", SEVERAL)
def test_several_letters_are_no_answer_and_reported_as_such(answer: str) -> None:
    found = extract(answer, CITIES)
    assert (found.letter, found.parsed) == (None, "several")


@pytest.mark.parametrize("answer", NOTHING)
def test_no_option_is_made_up(answer: str) -> None:
    found = extract(answer, CITIES)
    assert (found.letter, found.parsed) == (None, "nothing")


@pytest.mark.parametrize("answer", ["", "  \n", "<think>答案是A", "**", "<think></think>\n"])
def test_an_empty_answer_is_reported_as_empty(answer: str) -> None:
    found = extract(answer, CITIES)
    assert (found.letter, found.parsed) == (None, "empty")


def test_an_option_inside_a_longer_number_or_option_is_not_named() -> None:
    numbers = ["4", "14", "40", "1.4"]
    assert extract("等于14", numbers).letter == "B"
    assert extract("等于1.4", numbers).letter == "D"
    assert extract("等于145", numbers).parsed == "nothing"
    parts = ["线粒体", "线粒体和叶绿体", "核糖体", "液泡"]
    assert extract("应该是线粒体和叶绿体", parts).letter == "B"


def test_full_width_options_are_named_by_half_width_answers() -> None:
    assert extract("等于10", ["１０", "２０", "３０", "４０"]).letter == "A"
