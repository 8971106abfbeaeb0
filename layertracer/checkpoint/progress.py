"""A progress bar in bytes, for reading and writing weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn


@contextmanager
def byte_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for ``total`` bytes with its speed; yield a function that advances it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)
