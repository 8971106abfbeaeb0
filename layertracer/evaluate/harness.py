"""Running suites through lm-eval, quietly and with one progress bar."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from layertracer.evaluate.files import EvalSettings, Protocol
from layertracer.evaluate.questions import LETTERS, Suite


def run_lm_eval(lm: Any, suites: Sequence[Suite], settings: EvalSettings) -> dict[str, Any]:
    """Return lm-eval's results, samples included, of every suite under every protocol.

    ``lm_eval.simple_evaluate`` would do the same and, for its record, start git, pip and nvidia-smi
    (seconds); what ran is in ``eval.json``.
    """
    from lm_eval import evaluate
    from lm_eval.tasks import TaskManager

    from layertracer.evaluate.tasks import suite_group

    groups = [
        suite_group(suite, protocol, settings)
        for suite in suites
        for protocol in settings.protocols
    ]
    results = evaluate(
        lm=lm,
        task_dict=TaskManager(include_defaults=False).load(groups),
        bootstrap_iters=0,
        apply_chat_template=settings.chat_template,
        fewshot_as_multiturn=settings.chat_template,
    )
    return results or {}


def count_requests(suites: Sequence[Suite], protocols: Sequence[Protocol]) -> int:
    """Return how many requests lm-eval will make: an option each, or a generation."""
    questions = sum(len(subject.test) for suite in suites for subject in suite.subjects)
    return sum(questions * (len(LETTERS) if name == "logit" else 1) for name in protocols)


@contextmanager
def answer_progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar for ``total`` requests on stderr; yield a function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as progress:
        task = progress.add_task("evaluating", total=total)
        yield lambda done: progress.advance(task, done)


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Let only errors of a library through: its warnings are about choices made on purpose."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
