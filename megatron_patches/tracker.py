"""The file that says which checkpoint is the latest is never seen half-written.

What it changes: how ``megatron.training.checkpointing`` opens files: ``latest_checkpointed_
iteration.txt`` is written under a temporary name and renamed.
Why: Megatron empties the file and then writes it; a run killed between the two can't resume.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_tracker.py, tests/distributed/test_resume.py
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from layertracer.files import atomic_file

TRACKER = "latest_checkpointed_iteration.txt"


class Storage:
    """Megatron's file access, with the tracker written at once."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def open(self, path: str, mode: str = "r", **options: Any) -> AbstractContextManager[Any]:
        """Open a file; the tracker, when written, gets its name when it is complete."""
        if mode == "w" and Path(path).name == TRACKER:
            return _written_at_once(Path(path))
        return self._storage.open(path, mode, **options)


@contextmanager
def _written_at_once(path: Path) -> Any:
    with atomic_file(path) as temporary, temporary.open("w") as stream:
        yield stream


def apply() -> None:
    """Put the storage where Megatron's checkpointing looks it up."""
    from megatron.training import checkpointing

    checkpointing.maybe_msc = Storage(checkpointing.maybe_msc)
