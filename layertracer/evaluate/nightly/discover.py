"""Finding the complete checkpoints of a training run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import UserError

_TRACKER = "latest_checkpointed_iteration.txt"
_NAME = re.compile(r"iter_(\d{7,})")


@dataclass(frozen=True)
class Found:
    """A checkpoint folder ``name`` of training step ``step``; 0 and None is a conversion."""

    name: str
    step: int
    iteration: int | None


def find_checkpoints(watch: Path) -> list[Found]:
    """Return the complete checkpoints below ``watch``, in the order of their steps.

    Megatron writes a folder's ``.metadata`` when all its shards are there, and the tracker file
    after that; what is newer than the tracker is still being written.

    Raises:
        UserError: there is no such folder.
    """
    if not watch.is_dir():
        raise UserError(f"--watch {watch}: no such folder")
    try:
        latest = (watch / _TRACKER).read_text("utf-8").strip()
    except FileNotFoundError:
        return []
    if latest == "release":
        whole = (watch / "release" / ".metadata").is_file()
        return [Found("release", 0, None)] if whole else []
    if not latest.isdigit():
        raise UserError(f"{watch / _TRACKER}: '{latest}' is neither a step nor 'release'")
    found = []
    for folder in watch.iterdir():
        named = _NAME.fullmatch(folder.name)
        if named and int(named[1]) <= int(latest) and (folder / ".metadata").is_file():
            found.append(Found(folder.name, int(named[1]), int(named[1])))
    return sorted(found, key=lambda one: one.step)
