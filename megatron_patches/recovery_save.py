"""A disk that fills up while a checkpoint is saved: the last one stays, and training goes on.

What it changes: wraps ``megatron.training.training.save_checkpoint`` and what in Megatron's
distributed checkpoints would fail on one rank while the others wait for it: the threads that write
data, the index and ``metadata.json``.
Why: Megatron dies of a failed save, or hangs in it, and what was trained since the last checkpoint
is lost, although the disk may be cleared before the next one is due.
Megatron versions: 0.19.x (torch_dist, not ``--async-save``).
Tests: tests/distributed/test_recovery.py
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from megatron_patches import memory_report
from megatron_patches.recovery_check import iteration_path

# Index, random-number states and what the file system needs for itself.
MARGIN_FACTOR = 1.02
MARGIN_BYTES = 2**20
_failures: list[Exception] = []


class SaveError(Exception):
    """A checkpoint could not be saved; raised on every rank."""


def needed_bytes(model: list[Any], optimizer: Any) -> int:
    """Return what a checkpoint takes on disk (a collective call).

    Weights as they are; main copies (float32 weights are copied too) and moments of what trains.
    """
    counts = memory_report.report(model, optimizer)
    width = next(model[0].parameters()).element_size()
    trained = counts["trained_parameters"]
    weights = (trained + counts["frozen_parameters"]) * width
    copies = 4 * trained if width == 4 else 0
    return int((weights + copies + counts["optimizer_bytes"]) * MARGIN_FACTOR) + MARGIN_BYTES


def free_bytes(folder: Path) -> int:
    """Return the free bytes where ``folder`` is, the least that any rank sees (collective)."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = torch.tensor([shutil.disk_usage(place).free], dtype=torch.int64, device="cuda")
    torch.distributed.all_reduce(free, op=torch.distributed.ReduceOp.MIN)
    return int(free.item())


def keep_error(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with an OSError noted, not raised: other ranks wait for this one."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except OSError as error:
            _failures.append(error)
            return None

    return guarded


def raise_together() -> None:
    """Raise SaveError on every rank when any rank noted an error (a collective call)."""
    failed = torch.tensor([len(_failures)], dtype=torch.int64, device="cuda")
    torch.distributed.all_reduce(failed, op=torch.distributed.ReduceOp.MAX)
    reason = str(_failures[0]) if _failures else "another rank could not write"
    _failures.clear()
    if failed.item():
        raise SaveError(reason)


def apply() -> None:
    """Wrap Megatron's functions."""
    from megatron.training import training
    from torch.distributed.checkpoint.api import CheckpointException

    _guard_writers()
    save = training.save_checkpoint

    def save_checkpoint(
        iteration: int, model: list[Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        run = training.get_args()
        if run.ckpt_format != "torch_dist" or run.async_save or kwargs.get("non_persistent_ckpt"):
            save(iteration, model, optimizer, *args, **kwargs)
            return
        folder = Path(run.save)
        needed, free = needed_bytes(model, optimizer), free_bytes(folder)
        if free < needed:
            shown = f"{needed / 1e9:.3f} GB are needed, {free / 1e9:.3f} GB are free"
            _give_up(iteration, folder, f"the disk is full ({shown})")
            return
        try:
            save(iteration, model, optimizer, *args, **kwargs)
        except (CheckpointException, SaveError) as error:
            for context in args:
                if isinstance(context, dict):
                    context.pop("save_strategy", None)  # it remembers the failed one
            torch.distributed.barrier()
            if torch.distributed.get_rank() == 0:
                shutil.rmtree(iteration_path(folder, iteration), ignore_errors=True)
            _give_up(iteration, folder, _reason(error))

    training.save_checkpoint = save_checkpoint


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line]
    return lines[-1] if lines else str(error).splitlines()[0]


def _give_up(iteration: int, folder: Path, reason: str) -> None:
    if torch.distributed.get_rank() == 0:
        print(
            f"warning: checkpoint {iteration} was not saved in {folder}: {reason}; training goes "
            "on, and the next one is tried as usual",
            flush=True,
        )


def _guard_writers() -> None:
    """Let no rank leave a save alone: errors are noted, then raised on every rank."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import serialization
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    FileSystemWriterAsync.finish = keep_error(FileSystemWriterAsync.finish)
    serialization.save_config = keep_error(serialization.save_config)
    write = FileSystemWriterAsync.write_preloaded_data_multithread

    def write_all(transforms: Any, use_msc: bool, rank: int, buckets: Any, results: Any) -> None:
        try:
            write(transforms, use_msc, rank, buckets, results)
        except Exception as error:  # a thread failed; Megatron expects the error in the queue
            results.put(RuntimeError(str(error)))

    FileSystemWriterAsync.write_preloaded_data_multithread = staticmethod(write_all)
    save = dist_checkpointing.save

    def save_together(*args: Any, **kwargs: Any) -> Any:
        answer = save(*args, **kwargs)
        raise_together()
        return answer

    dist_checkpointing.save = save_together
