"""Two evaluations of the same questions: is the second better, worse, or can't they be told apart?

Both models answered every question, so the test is paired: only questions whose answer changed
sides say anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile, Protocol, QuestionResult

Verdict = Literal["better", "worse", "can't be told apart"]
Pair = tuple[QuestionResult, QuestionResult]

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class Difference:
    """Second minus first, as a share, with its bootstrap 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return f"{100 * self.mean:+.2f} points (95% interval {low:+.2f} to {high:+.2f})"


@dataclass(frozen=True)
class SuiteComparison:
    """One suite under one protocol.

    Attributes:
        questions: answered by both.
        unmatched: answered by one only, and left out.
        first: accuracy of the first evaluation on the common questions.
        second: of the second.
        lost: questions right in the first, wrong in the second.
        won: the reverse.
        micro: difference of the accuracies.
        macro: difference of the means over subjects.
        p: of the exact McNemar test.
        p_holm: ``p`` corrected for the number of suites and protocols compared (Holm 1979).
        verdict: by ``p_holm`` < 0.05.
    """

    suite: str
    protocol: Protocol
    questions: int
    unmatched: int
    first: float
    second: float
    lost: int
    won: int
    micro: Difference
    macro: Difference
    p: float
    p_holm: float
    verdict: Verdict

    @property
    def sentence(self) -> str:
        """Say it in words."""
        change = f"{self.first:.1%} -> {self.second:.1%}, {self.micro}"
        counts = f"{self.won} newly right, {self.lost} newly wrong of {self.questions}"
        return (
            f"{self.suite} by {self.protocol}: {self.verdict}: {change}; {counts}; "
            f"McNemar p = {self.p_holm:.3g}"
        )


def compare_evaluations(
    first: EvalFile, second: EvalFile, *, resamples: int = 10_000, seed: int = 0
) -> list[SuiteComparison]:
    """Compare every suite and protocol that both hold.

    Raises:
        UserError: nothing in common, or a common question was put in other words.
    """
    found = []
    for result in first.suites:
        key = (result.suite, result.protocol)
        if key in {(other.suite, other.protocol) for other in second.suites}:
            before, after = (_by_question(side, *key) for side in (first, second))
            found.append(_compare(key, before, after, resamples, seed))
    if not found:
        raise UserError(
            f"{first.model.path} and {second.model.path}: no suite and protocol in common: "
            "evaluate both with the same --tasks and --protocol"
        )
    corrected = holm([one.p for one in found])
    return [
        replace(one, p_holm=p, verdict=_verdict(one, p))
        for one, p in zip(found, corrected, strict=True)
    ]


def compare_folders(first: Path, second: Path) -> list[SuiteComparison]:
    """Compare two evaluation folders.

    Raises:
        UserError: as :func:`compare_evaluations`, or a folder holds no evaluation.
    """
    return compare_evaluations(EvalFile.load(first), EvalFile.load(second))


def mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p: how likely so uneven a split of ``lost + won`` fair coins is.

    ``min(1, 2 P(X <= min(lost, won)))``, ``X ~ Binomial(lost + won, 1/2)`` (McNemar 1947), in
    whole numbers.
    """
    count, fewer = lost + won, min(lost, won)
    term = total = 1
    for drawn in range(fewer):
        term = term * (count - drawn) // (drawn + 1)
        total += term
    return min(1.0, 2 * total / 2**count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979, step down)."""
    corrected, so_far = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = so_far
    return corrected


def bootstrap(
    changes: Sequence[np.ndarray], resamples: int, seed: int
) -> tuple[Difference, Difference]:
    """Return micro and macro difference, resampling questions within their subject.

    Args:
        changes: of each subject, +1, 0 or -1 for each question.
        resamples: how many; drawn as counts of the three values, which is the same and quick.
        seed: of the draws.
    """
    generator = np.random.default_rng(seed)
    sizes = np.array([len(subject) for subject in changes])
    drawn = np.empty((resamples, len(changes)))
    for place, subject in enumerate(changes):
        shares = [np.mean(subject == value) for value in (1, 0, -1)]
        counts = generator.multinomial(len(subject), shares, size=resamples)
        drawn[:, place] = counts[:, 0] - counts[:, 2]
    sums = np.array([subject.sum() for subject in changes])
    micro = _interval(sums.sum() / sizes.sum(), drawn.sum(axis=1) / sizes.sum())
    return micro, _interval((sums / sizes).mean(), (drawn / sizes).mean(axis=1))


def _interval(mean: float, drawn: np.ndarray) -> Difference:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(float(mean), float(low), float(high))


def _by_question(
    evaluation: EvalFile, suite: str, protocol: Protocol
) -> dict[tuple[str, str, str], QuestionResult]:
    return {
        (one.subject, one.id, one.question_sha256): one
        for one in evaluation.questions
        if (one.suite, one.protocol) == (suite, protocol)
    }


def _compare(
    key: tuple[str, Protocol],
    before: dict[tuple[str, str, str], QuestionResult],
    after: dict[tuple[str, str, str], QuestionResult],
    resamples: int,
    seed: int,
) -> SuiteComparison:
    pairs = [(before[one], after[one]) for one in before if one in after]
    _check(key, pairs)
    by_subject: dict[str, list[int]] = defaultdict(list)
    for was, now in pairs:
        by_subject[was.subject].append(int(now.correct) - int(was.correct))
    changes = [np.array(subject) for subject in by_subject.values()]
    micro, macro = bootstrap(changes, resamples, seed)
    lost, won = (int(sum((subject == sign).sum() for subject in changes)) for sign in (-1, 1))
    p = mcnemar(lost, won)
    return SuiteComparison(
        suite=key[0],
        protocol=key[1],
        questions=len(pairs),
        unmatched=len(before) + len(after) - 2 * len(pairs),
        first=sum(was.correct for was, _ in pairs) / len(pairs),
        second=sum(now.correct for _, now in pairs) / len(pairs),
        lost=lost,
        won=won,
        micro=micro,
        macro=macro,
        p=p,
        p_holm=p,
        verdict="can't be told apart",
    )


def _check(key: tuple[str, Protocol], pairs: Sequence[Pair]) -> None:
    if not pairs:
        raise UserError(f"{key[0]} by {key[1]}: the two evaluations have no question in common")
    other = sum(was.prompt_sha256 != now.prompt_sha256 for was, now in pairs)
    if other:
        raise UserError(
            f"{key[0]} by {key[1]}: {other} of {len(pairs)} questions were put in other words: "
            "evaluate both with the same --prompt, --shots and --chat-template"
        )


def _verdict(one: SuiteComparison, p: float) -> Verdict:
    if p >= SIGNIFICANCE:
        return "can't be told apart"
    return "better" if one.won > one.lost else "worse"
