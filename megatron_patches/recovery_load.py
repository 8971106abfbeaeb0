"""A damaged latest checkpoint: the newest whole one is taken, and the run says so.

What it changes: wraps ``megatron.training.training.load_checkpoint``, outermost.
Why: Megatron loads what the tracker file names or fails; a run that is put back in the queue by a
scheduler would then fail for ever.
Megatron versions: 0.19.x (torch_dist).
Tests: tests/distributed/test_recovery.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from layertracer.errors import UserError
from layertracer.files import atomic_file
from megatron_patches.recovery_check import TRACKER, damage, iteration_path, iterations

RELEASE = "release"


def common_damage(folder: Path) -> str | None:
    """Return what any rank finds wrong with the checkpoint in ``folder`` (a collective call)."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found: list[str | None] = [None] * ranks
    torch.distributed.all_gather_object(found, damage(folder, rank, ranks))
    return next((problem for problem in found if problem), None)


def named_by_tracker(folder: Path) -> int | None:
    """Return the iteration that the tracker file names, None when it can't be read."""
    text = (folder / TRACKER).read_text("utf-8").strip()
    return int(text) if text.isdigit() else None


def newest_whole(folder: Path) -> tuple[int, list[int]]:
    """Return the newest whole iteration, and the damaged ones before it (a collective call).

    Raises:
        UserError: none is whole.
    """
    latest = named_by_tracker(folder)
    candidates = [one for one in iterations(folder) if latest is None or one <= latest]
    damaged = []
    for iteration in candidates:
        problem = common_damage(iteration_path(folder, iteration))
        if problem is None:
            return iteration, damaged
        _say(f"checkpoint {iteration} in {folder} is damaged: {problem}")
        damaged.append(iteration)
    raise UserError(
        f"--load {folder}: none of its checkpoints is whole; remove the folder, or load another one"
    )


def settle(folder: Path, *, own: bool) -> int | None:
    """See that what the tracker in ``folder`` names can be loaded (a collective call).

    Args:
        own: the folder is this run's ``--save``, so that damaged iterations may be moved aside and
            the tracker set to the newest whole one.

    Returns:
        The iteration to load instead of the tracker's; None: the tracker's.

    Raises:
        UserError: nothing whole is there.
    """
    if (folder / TRACKER).read_text("utf-8").strip() == RELEASE:
        problem = common_damage(folder / RELEASE)
        if problem:
            raise UserError(f"--load {folder} is damaged: {problem}; convert the model again")
        return None
    latest = named_by_tracker(folder)
    chosen, damaged = newest_whole(folder)
    if chosen == latest:
        return None
    _say(f"going on from checkpoint {chosen} instead")
    if not own:
        return chosen
    if torch.distributed.get_rank() == 0:
        for iteration in damaged:
            _move_aside(iteration_path(folder, iteration))
        with atomic_file(folder / TRACKER) as temporary:
            temporary.write_text(str(chosen), "utf-8")
    torch.distributed.barrier()
    return None


def _move_aside(path: Path) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(aside)


def _say(message: str) -> None:
    if torch.distributed.get_rank() == 0:
        print(f"warning: {message}", flush=True)


def apply() -> None:
    """Wrap Megatron's function."""
    from megatron.training import get_args, training

    load = training.load_checkpoint

    def load_checkpoint(*args: Any, **kwargs: Any) -> Any:
        run = get_args()
        wanted = run.load is not None and (Path(run.load) / TRACKER).is_file()
        if not wanted or run.ckpt_format != "torch_dist" or run.ckpt_step is not None:
            return load(*args, **kwargs)
        run.ckpt_step = settle(Path(run.load), own=run.load == run.save)
        try:
            return load(*args, **kwargs)
        finally:
            run.ckpt_step = None  # Megatron writes its arguments into checkpoints

    training.load_checkpoint = load_checkpoint
