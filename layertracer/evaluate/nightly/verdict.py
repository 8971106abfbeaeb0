"""Whether a checkpoint is worse than the baseline.

A rule on single subjects ("one of 52 fell by 5 points") fires on almost every night without any
change; so the test is on a suite's total, paired with the same questions of a pinned baseline,
corrected for the number of suites and protocols, and the fall must be large enough to matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import UserError
from layertracer.evaluate.compare import SuiteComparison, compare_evaluations
from layertracer.evaluate.files import EvalFile
from layertracer.evaluate.history import Checkpoint


@dataclass(frozen=True)
class Verdict:
    """How a checkpoint compares with the baseline, suite by suite."""

    checkpoint: str
    comparisons: tuple[SuiteComparison, ...]
    regressions: tuple[SuiteComparison, ...]


def pick_baseline(checkpoints: Sequence[Checkpoint], name: str | None) -> Checkpoint | None:
    """Return the named checkpoint, or the earliest one evaluated; None where there is none yet.

    Raises:
        UserError: the named one was not evaluated.
    """
    done = [one for one in checkpoints if one.done]
    if name is None:
        return done[0] if done else None
    for one in done:
        if one.name == name:
            return one
    raise UserError(
        f"--baseline {name}: not evaluated; the history has "
        + (", ".join(one.name for one in done) or "nothing yet")
    )


def judge(checkpoint: Checkpoint, baseline: Checkpoint, min_effect: float) -> Verdict:
    """Compare a checkpoint's evaluation with the baseline's.

    Raises:
        UserError: an evaluation is missing, or made with other settings.
    """
    comparisons = compare_evaluations(_load(baseline), _load(checkpoint))
    return Verdict(
        checkpoint.name,
        tuple(comparisons),
        tuple(one for one in comparisons if is_regression(one, min_effect)),
    )


def is_regression(one: SuiteComparison, min_effect: float) -> bool:
    """Whether the fall is shown by the paired test and at least ``min_effect``."""
    return one.verdict == "worse" and -one.micro.mean >= min_effect


def _load(checkpoint: Checkpoint) -> EvalFile:
    return EvalFile.load(Path(checkpoint.evaluation or ""))
