"""An evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from layertracer.evaluate.files import EvalFile, Score, SuiteResult


def print_evaluation(made: EvalFile, *, by_subject: bool = False) -> None:
    """Print a table for each suite and protocol: overall, categories and, if asked, subjects."""
    console = Console()
    for result in made.suites:
        console.print(_table(result, by_subject))
        for note in notes(result):
            console.print(note, style="yellow")
    work = made.work
    if work.tokens < work.tokens_unshared:
        ratio = work.tokens_unshared / max(work.tokens, 1)
        console.print(
            f"{work.seconds:.1f} s, {work.tokens:,} tokens ({ratio:.1f}x fewer by sharing)"
        )
    else:
        console.print(f"{work.seconds:.1f} s, {work.tokens:,} tokens")


def notes(result: SuiteResult) -> Sequence[str]:
    """Say what a reader of the accuracy must know."""
    found, overall = [], result.overall
    if overall.low <= max(overall.chance, overall.constant):
        found.append(
            f"{result.suite}: not shown to be better than guessing ({_percent(overall.chance)} by "
            f"chance, {_percent(overall.constant)} by always giving the most frequent letter)"
        )
    if overall.extracted < 1:
        found.append(f"{result.suite}: {_percent(1 - overall.extracted)} of answers had no option")
    if result.truncated:
        found.append(
            f"{result.suite}: {result.truncated} prompts were longer than the model's context and "
            "were cut on the left: fewer shots would fit"
        )
    return found


def _table(result: SuiteResult, by_subject: bool) -> Table:
    table = Table(title=f"{result.suite}, {result.protocol}", title_justify="left")
    table.add_column("")
    for column in ("questions", "accuracy", "95% interval", "macro", "chance"):
        table.add_column(column, justify="right", no_wrap=True)
    _row(table, "overall", result.overall)
    for category in result.categories:
        _row(table, category.category, category.score)
    if by_subject:
        table.add_section()
        for subject in result.subjects:
            _row(table, f"{subject.title} {subject.subject}", subject.score)
    return table


def _row(table: Table, name: str, score: Score) -> None:
    interval = f"{100 * score.low:.1f}-{_percent(score.high)}"
    accuracy, macro, chance = map(_percent, (score.accuracy, score.macro, score.chance))
    table.add_row(name, str(score.questions), accuracy, interval, macro, chance)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
