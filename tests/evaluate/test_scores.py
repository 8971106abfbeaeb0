"""Accuracy, interval, macro average and chance."""

import pytest
from scipy.stats import binomtest

from layertracer.evaluate.scores import score, wilson
from tests.evaluate.conftest import made_up


@pytest.mark.parametrize(("correct", "questions"), [(0, 8), (3, 8), (26, 26), (600, 1346)])
def test_the_interval_is_wilsons(correct: int, questions: int) -> None:
    expected = binomtest(correct, questions).proportion_ci(0.95, method="wilson")
    assert wilson(correct, questions) == pytest.approx((expected.low, expected.high))


def test_nothing_asked_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_micro_weighs_questions_and_macro_subjects() -> None:
    answers = made_up({"law": [True] * 9 + [False], "logic": [False, False]}).questions
    found = score(answers)
    assert found.accuracy == pytest.approx(9 / 12)
    assert found.macro == pytest.approx(0.45)
    assert (found.questions, found.correct, found.chance) == (12, 9, 0.25)


def test_an_answer_without_an_option_is_wrong_and_not_extracted() -> None:
    first, *rest = made_up({"law": [True] * 4}).questions
    lost = first.model_copy(update={"prediction": None, "correct": False})
    assert score([lost, *rest]).extracted == pytest.approx(0.75)


def test_the_best_constant_letter_is_reported() -> None:
    answers = made_up({"law": [True] * 5}).questions  # A, B, C, D, A
    assert score(answers).constant == pytest.approx(0.4)
