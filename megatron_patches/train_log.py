"""One line a step for people, and one in ``train.jsonl`` for programs.

What it changes: wraps ``megatron.training.training.train_step``; Megatron's own line is left out.
Why: Megatron's line has no tokens per second and its figures can only be read back by parsing.
TensorBoard and W&B are Megatron's own flags (``--tensorboard-dir``, ``--wandb-project``).
Megatron versions: 0.19.x.
Test: tests/distributed/test_launch.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from layertracer.files import write_json
from layertracer.stats.records import StepRecords
from megatron_patches import cpu, freeze


class TrainLog:
    """Writes the lines of a run; the last rank does, which is where the loss is."""

    def __init__(self, folder: Path | None, first_step: int, total_steps: int) -> None:
        self.total_steps = total_steps
        self.writes = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
        self.records = None
        if folder is not None and self.writes:
            self.records = StepRecords(folder / "train.jsonl", first_step)

    def step(self, step: int, loss: float, grad_norm: float, lr: float, **timing: float) -> None:
        """Print and record step ``step`` (1-based: how many updates were made)."""
        if not self.writes:
            return
        line = {"step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr, **timing}
        if self.records is not None:
            self.records.write([line])
        print(
            f"step {step:>{len(str(self.total_steps))}}/{self.total_steps}  loss {loss:.4f}  "
            f"grad norm {grad_norm:.3f}  lr {lr:.2e}  {timing['seconds']:.2f} s  "
            f"{timing['tokens_per_second']:,.0f} tokens/s  {timing['tflops_per_rank']:.3g} TFLOP/s "
            f" {timing['memory_gb']:.2f} GB  {timing['trained_layers']} layers train",
            flush=True,
        )


def apply(folder: Path | None) -> None:
    """Wrap Megatron's step; records go to ``folder``."""
    from megatron.training import training

    from megatron_patches import memory_report

    step_of_megatron = training.train_step
    training.print_rank_last = _without_step_lines(training.print_rank_last)
    log: TrainLog | None = None

    def train_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal log
        run = training.get_args()
        iteration = kwargs.get("iteration", run.curr_iteration)
        if log is None:
            log = TrainLog(folder, run.iteration, run.train_iters)
        first = iteration == run.iteration
        began = time.perf_counter()
        answer = step_of_megatron(*args, **kwargs)
        seconds = time.perf_counter() - began
        losses, grad_norm = answer[0], answer[5]
        model, optimizer = args[2], args[3]
        if first and folder is not None:
            counts = memory_report.report(model, optimizer)
            if torch.distributed.get_rank() == 0:
                write_json(folder / "run.json", counts)
        if losses:
            log.step(
                iteration + 1,
                loss=float(losses["lm loss"]),
                grad_norm=float(grad_norm or 0.0),
                lr=float(max(group["lr"] for group in optimizer.param_groups)),
                seconds=seconds,
                tokens_per_second=run.global_batch_size * run.seq_length / seconds,
                tflops_per_rank=_operations(run) / seconds / run.world_size / 1e12,
                memory_gb=_memory_bytes() / 1e9,
                trained_layers=_trained_layers(run),
            )
        return answer

    training.train_step = train_step


def _operations(run: Any) -> float:
    """Return the floating-point operations of a step, of what trains."""
    from megatron.training import training

    return training.num_floating_point_operations(run, run.global_batch_size)


def _trained_layers(run: Any) -> int:
    return run.num_layers if freeze.in_force is None else len(freeze.in_force.layers)


def _memory_bytes() -> int:
    """Return the most that this rank's GPU had to hold; without a GPU, what the process holds."""
    if cpu.needed():
        return psutil.Process().memory_info().rss
    return torch.cuda.max_memory_allocated()


def _without_step_lines(printer: Callable[..., None]) -> Callable[..., None]:
    def print_rank_last(message: str) -> None:
        if " iteration " not in message or "elapsed time per iteration" not in message:
            printer(message)

    return print_rank_last
