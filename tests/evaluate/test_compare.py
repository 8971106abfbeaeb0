"""Whether the second of two evaluations is better, worse, or can't be told apart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.errors import UserError
from layertracer.evaluate.compare import bootstrap, compare_evaluations, holm, mcnemar
from tests.evaluate.conftest import made_up


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 1), (3, 9), (10, 10), (30, 12), (900, 1000)])
def test_mcnemar_is_the_exact_binomial_test(lost: int, won: int) -> None:
    expected = binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(expected, rel=1e-9)


def test_holm_steps_down_and_never_sinks() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_the_bootstrap_interval_is_the_textbook_one_for_many_questions() -> None:
    changes = np.array([1] * 60 + [-1] * 30 + [0] * 910)
    micro, macro = bootstrap([changes], 20_000, seed=1)
    half = 1.96 * np.sqrt((90 / 1000 - 0.03**2) / 1000)
    assert micro.mean == pytest.approx(0.03)
    assert micro.high - micro.mean == pytest.approx(half, rel=0.05)
    assert micro.mean - micro.low == pytest.approx(half, rel=0.05)
    assert macro == micro


def test_macro_weighs_each_subject_alike() -> None:
    big, small = np.zeros(90, dtype=int), np.ones(10, dtype=int)
    micro, macro = bootstrap([big, small], 100, seed=1)
    assert micro.mean == pytest.approx(0.1)
    assert macro.mean == pytest.approx(0.5)


def test_a_clearly_better_model_is_called_better_and_the_reverse_worse() -> None:
    weak = made_up({"law": [False] * 40 + [True] * 10})
    strong = made_up({"law": [True] * 40 + [True] * 8 + [False] * 2})
    (up,), (down,) = compare_evaluations(weak, strong), compare_evaluations(strong, weak)
    assert (up.verdict, up.won, up.lost) == ("better", 40, 2)
    assert (down.verdict, down.won, down.lost) == ("worse", 2, 40)
    assert "better" in up.sentence and "20.0% -> 96.0%" in up.sentence
    assert up.micro.low > 0 > down.micro.high


def test_few_changes_can_not_be_told_apart() -> None:
    one = made_up({"law": [True] * 30 + [False] * 20})
    two = made_up({"law": [True] * 28 + [False] * 19 + [True] * 3})
    (found,) = compare_evaluations(one, two)
    assert found.verdict == "can't be told apart"
    assert found.micro.low < 0 < found.micro.high


def test_an_evaluation_equals_itself() -> None:
    one = made_up({"law": [True, False] * 10, "logic": [True] * 5})
    (found,) = compare_evaluations(one, one)
    assert (found.lost, found.won, found.p, found.unmatched) == (0, 0, 1.0, 0)
    assert found.micro.low == found.micro.high == 0


def test_questions_of_one_side_only_are_left_out_and_counted() -> None:
    (found,) = compare_evaluations(made_up({"law": [True] * 8}), made_up({"law": [True] * 6}))
    assert (found.questions, found.unmatched) == (6, 2)


def test_other_wording_of_the_same_questions_is_refused() -> None:
    one, two = made_up({"law": [True] * 4}), made_up({"law": [True] * 4}, prompt="b")
    with pytest.raises(UserError, match="other words"):
        compare_evaluations(one, two)


def test_other_suites_are_refused() -> None:
    with pytest.raises(UserError, match="no suite and protocol in common"):
        compare_evaluations(made_up({"law": [True]}), made_up({"law": [True]}, suite="cmmlu"))


def test_the_command_says_it_in_a_sentence_and_writes_page_and_numbers(tmp_path: Path) -> None:
    for name, right in (
        ("before", [True] * 10 + [False] * 40),
        ("after", [True] * 45 + [False] * 5),
    ):
        (tmp_path / name).mkdir()
        record = made_up({"law": right}, path=name)
        (tmp_path / name / "eval.json").write_text(record.model_dump_json(), "utf-8")
    out = tmp_path / "compare.html"
    words = ["compare", str(tmp_path / "before"), str(tmp_path / "after"), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "ceval by logit: better: 20.0% -> 90.0%" in done.output.replace("\n", " ")
    (numbers,) = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert (numbers["won"], numbers["lost"], numbers["verdict"]) == (35, 0, "better")
    assert "McNemar" in out.read_text("utf-8")
