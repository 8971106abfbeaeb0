"""The page of a training run: accuracy over steps, subjects, verdicts, noise and failures."""

from __future__ import annotations

from collections.abc import Sequence

from layertracer.evaluate.history import OVERALL, Checkpoint, History, Result
from layertracer.evaluate.nightly.settings import Nightly
from layertracer.evaluate.nightly.verdict import Verdict
from layertracer.report.chart import LineChart, Section, Series, Table
from layertracer.report.page import write_page


def write_dashboard(
    job: Nightly, history: History, baseline: Checkpoint | None, verdicts: Sequence[Verdict]
) -> None:
    """Write ``dashboard.html`` from the history and the verdicts on the evaluated checkpoints."""
    checkpoints, results = history.checkpoints(), history.results()
    sections = [_curves(checkpoints, results)]
    if baseline is not None:
        sections += [
            _verdicts(baseline, verdicts, job.min_effect),
            _subjects(baseline, checkpoints, results),
        ]
    sections.append(_health(checkpoints, history.noise()))
    write_page(job.dashboard, title=f"LayerTracer nightly: {job.watch}", sections=sections)


def _curves(checkpoints: Sequence[Checkpoint], results: Sequence[Result]) -> Section:
    steps = {one.name: one.step for one in checkpoints}
    whole = [result for result in results if result.subject == OVERALL]
    keys = dict.fromkeys((result.suite, result.protocol) for result in whole)
    charts = []
    for suite, protocol in keys:
        part = [one for one in whole if (one.suite, one.protocol) == (suite, protocol)]
        x = [steps[one.checkpoint] for one in part]
        low, high = [one.low for one in part], [one.high for one in part]
        accuracy = [one.accuracy for one in part]
        series = [
            Series("accuracy", x, accuracy, low, high, markers=True),
            Series("macro", x, [one.macro for one in part], markers=True),
            Series("chance", x, [one.chance for one in part], dashed=True),
        ]
        if protocol == "generate":
            series.append(Series("answers with an option", x, [one.extracted for one in part]))
        name = f"accuracy-{suite}-{protocol}"
        charts.append(LineChart(name, f"{suite}, {protocol}", "step", "share", series))
    return Section(
        title="Accuracy over steps",
        lead="Share of right answers with its 95% interval; where it holds chance, the model "
        "can't be told from a guess.",
        charts=charts,
    )


def _verdicts(baseline: Checkpoint, verdicts: Sequence[Verdict], min_effect: float) -> Section:
    rows = [
        [
            verdict.checkpoint,
            f"{one.suite}, {one.protocol}",
            f"{one.first:.1%}",
            f"{one.second:.1%}",
            f"{100 * one.micro.mean:+.2f}",
            f"{100 * one.micro.low:+.2f} to {100 * one.micro.high:+.2f}",
            f"{one.p_holm:.3g}",
            "REGRESSION" if one in verdict.regressions else one.verdict,
        ]
        for verdict in verdicts
        for one in verdict.comparisons
    ]
    columns = ["checkpoint", "suite", "baseline", "accuracy", "points", "95%", "p", "verdict"]
    return Section(
        title="Against the baseline",
        lead=f"Baseline: {baseline.name}. Exact McNemar test on the same questions, Holm-corrected "
        f"over suites; a regression is a shown fall of at least {100 * min_effect:g} points.",
        tables=[Table(columns=columns, rows=rows)],
    )


def _subjects(
    baseline: Checkpoint, checkpoints: Sequence[Checkpoint], results: Sequence[Result]
) -> Section:
    latest = [one for one in checkpoints if one.done][-1]
    by_key = {(r.checkpoint, r.suite, r.protocol, r.subject): r for r in results}
    rows = []
    for result in results:
        if result.checkpoint != latest.name or result.subject == OVERALL:
            continue
        key = (baseline.name, result.suite, result.protocol, result.subject)
        before = by_key.get(key)
        rows.append(
            [
                f"{result.suite}, {result.protocol}: {result.subject}",
                str(result.questions),
                f"{before.accuracy:.1%}" if before else "",
                f"{result.accuracy:.1%}",
                f"{result.low:.1%} to {result.high:.1%}",
            ]
        )
    return Section(
        title="Subjects",
        lead="For information: with so few questions each, some subject falls on almost every "
        "night without any change.",
        tables=[
            Table(
                columns=["subject", "questions", "baseline", f"latest ({latest.name})", "95%"],
                rows=rows,
            )
        ],
    )


def _health(
    checkpoints: Sequence[Checkpoint], noise: dict[tuple[str, str], tuple[int, int]]
) -> Section:
    lines = [
        [one.name, one.status, one.detail or (one.fingerprint or "")[:12], one.written]
        for one in checkpoints
    ]
    floor = [
        [f"{suite}, {protocol}", str(questions), str(differ)]
        for (suite, protocol), (questions, differ) in noise.items()
    ]
    return Section(
        title="Checkpoints and noise",
        lead="What was evaluated or failed; and how many answers changed sides when one checkpoint "
        "was evaluated twice, in other batches.",
        tables=[
            Table(columns=["checkpoint", "status", "weights or reason", "written"], rows=lines),
            Table(columns=["noise floor", "questions", "answers that differ"], rows=floor),
        ],
    )
