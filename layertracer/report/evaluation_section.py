"""Evaluations side by side: before and after, with interval and chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layertracer.evaluate.compare import compare_evaluations
from layertracer.evaluate.files import EvalFile, Score
from layertracer.report.chart import Section, Table


def evaluation_section(evaluations: Sequence[EvalFile]) -> Section:
    """Return the section; the last evaluation is compared with the first, question by question."""
    tables = [_overall_table(evaluations)]
    if len(evaluations) > 1:
        tables.append(_paired_table(evaluations[0], evaluations[-1]))
    tables += _subject_tables(evaluations)
    return Section(
        title="Evaluation",
        lead=(
            "Accuracy of each evaluated model, with its 95% interval and the accuracy of guessing: "
            "where the interval holds chance, the model can't be told from a guess."
        ),
        tables=tables,
    )


def _name(evaluation: EvalFile) -> str:
    return evaluation.model.path


def _overall_table(evaluations: Sequence[EvalFile]) -> Table:
    rows = [
        [
            f"{_name(evaluation)}: {suite.suite}, {suite.protocol}",
            str(suite.overall.questions),
            _percent(suite.overall.accuracy),
            f"{_percent(suite.overall.low)} to {_percent(suite.overall.high)}",
            _percent(suite.overall.macro),
            _percent(suite.overall.chance),
        ]
        for evaluation in evaluations
        for suite in evaluation.suites
    ]
    return Table(
        columns=["model, suite, protocol", "questions", "accuracy", "95%", "macro", "chance"],
        rows=rows,
    )


def _paired_table(before: EvalFile, after: EvalFile) -> Table:
    return Table(
        columns=[
            "first to last",
            *("questions", "newly right", "newly wrong", "change", "p", "verdict"),
        ],
        rows=[
            [
                f"{one.suite}, {one.protocol}",
                str(one.questions),
                str(one.won),
                str(one.lost),
                str(one.micro),
                f"{one.p_holm:.3f}",
                one.verdict,
            ]
            for one in compare_evaluations(before, after)
        ],
        caption="The questions both answered: exact McNemar test, bootstrap interval; better or "
        "worse when p < 0.05.",
    )


def _subject_tables(evaluations: Sequence[EvalFile]) -> Iterator[Table]:
    for suite in evaluations[0].suites:
        scores: dict[str, list[Score | None]] = {}
        for place, evaluation in enumerate(evaluations):
            for other in evaluation.suites:
                if (other.suite, other.protocol) != (suite.suite, suite.protocol):
                    continue
                for subject in other.subjects:
                    row = scores.setdefault(subject.subject, [None] * len(evaluations))
                    row[place] = subject.score
        yield Table(
            caption=f"{suite.suite}, {suite.protocol}: right answers by subject",
            columns=["subject", "questions", *(_name(evaluation) for evaluation in evaluations)],
            rows=[
                [
                    subject,
                    str(next(score.questions for score in row if score)),
                    *(str(score.correct) if score else "" for score in row),
                ]
                for subject, row in sorted(scores.items())
            ],
        )


def _percent(share: float) -> str:
    return f"{share:.1%}"
