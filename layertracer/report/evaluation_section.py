"""Evaluations side by side: before and after, with interval and chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scipy.stats import binomtest

from layertracer.evaluate.files import EvalFile, Score, SuiteResult
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
    """Compare the same questions: exact McNemar test on those whose answer changed sides."""
    rows = []
    for suite in before.suites:
        pairs = list(_pairs(before, after, suite))
        lost = sum(was and not now for was, now in pairs)
        won = sum(now and not was for was, now in pairs)
        p = binomtest(lost, lost + won, 0.5).pvalue if lost + won else 1.0
        verdict = "can't be told apart"
        if p < 0.05:
            verdict = "better" if won > lost else "worse"
        counts = (len(pairs), won, lost)
        rows.append([f"{suite.suite}, {suite.protocol}", *map(str, counts), f"{p:.3f}", verdict])
    return Table(
        columns=["first to last", "questions", "newly right", "newly wrong", "p", "verdict"],
        rows=rows,
        caption="Exact McNemar test on the questions both answered; better or worse when p < 0.05.",
    )


def _pairs(before: EvalFile, after: EvalFile, suite: SuiteResult) -> Iterator[tuple[bool, bool]]:
    later = {
        (q.suite, q.protocol, q.question_sha256, q.prompt_sha256): q.correct
        for q in after.questions
    }
    for q in before.questions:
        key = (q.suite, q.protocol, q.question_sha256, q.prompt_sha256)
        if (q.suite, q.protocol) == (suite.suite, suite.protocol) and key in later:
            yield q.correct, later[key]


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
