"""Accuracy with its interval, and what guessing would give."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from layertracer.evaluate.files import QuestionResult, Score
from layertracer.evaluate.questions import LETTERS

Z95 = 1.959963984540054


def wilson(correct: int, questions: int, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson score interval of ``correct / questions``.

    ``(p + z²/2n ± z sqrt(p(1-p)/n + z²/4n²)) / (1 + z²/n)`` (Wilson 1927): inside [0, 1] and fair
    for few questions, where the normal interval isn't.
    """
    if questions == 0:
        return 0.0, 1.0
    share, extra = correct / questions, z * z / questions
    middle = (share + extra / 2) / (1 + extra)
    half = z * math.sqrt(share * (1 - share) / questions + extra / (4 * questions)) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)


def score(answers: Sequence[QuestionResult]) -> Score:
    """Score answers of one suite and protocol, of one subject or of many."""
    count = len(answers)
    correct = sum(answer.correct for answer in answers)
    low, high = wilson(correct, count)
    return Score(
        questions=count,
        correct=correct,
        accuracy=correct / count,
        low=low,
        high=high,
        macro=macro(answers),
        chance=1 / len(LETTERS),
        constant=max(Counter(answer.gold for answer in answers).values()) / count,
        extracted=sum(answer.prediction is not None for answer in answers) / count,
    )


def macro(answers: Sequence[QuestionResult]) -> float:
    """Return the mean of the subjects' accuracies."""
    by_subject: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        by_subject[answer.subject].append(answer.correct)
    return sum(sum(right) / len(right) for right in by_subject.values()) / len(by_subject)
