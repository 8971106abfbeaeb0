"""Changes of plan in mid-run, at the steps that the plan names.

What it changes: wraps ``megatron.training.training.train_step``; before the first step of a phase
everything is built again for it (``rebuild``), and a line goes to ``freeze_events.jsonl``.
Why: Megatron can't change what trains once training has begun.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze_events.py
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from layertracer.plan import FreezePlan, Phase
from layertracer.stats.records import StepRecords
from megatron_patches import memory_report, rebuild

FILE = "freeze_events.jsonl"


class Events:
    """Carries a plan's changes out, and keeps their record."""

    def __init__(self, plan: FreezePlan, folder: Path | None, first_step: int) -> None:
        self.plan = plan
        self.phase = plan.phase_at(first_step)
        writes = folder is not None and torch.distributed.get_rank() == 0
        self.records = StepRecords(folder / FILE, first_step) if writes else None

    def before_step(self, step: int, chunks: list[Any], optimizer: Any, scheduler: Any) -> None:
        """Change what trains when a phase begins with the update after ``step`` updates."""
        phase = self.plan.phase_at(step)
        if phase != self.phase:
            self.change(step, phase, chunks, optimizer, scheduler)

    def change(
        self, step: int, phase: Phase, chunks: list[Any], optimizer: Any, scheduler: Any
    ) -> None:
        """Let ``phase`` train from now on."""
        began = time.perf_counter()
        before = memory_report.report(chunks, optimizer)
        rebuild.rebuild(chunks, optimizer, scheduler, self.phase, phase)
        self.phase = phase
        after = memory_report.report(chunks, optimizer)
        if self.records is None:
            return
        trains = phase.model_dump(mode="json", exclude={"at_step"})
        seconds = time.perf_counter() - began
        line = {"step": step, "seconds": seconds, "trains": trains}
        self.records.write([line | {"before": before, "after": after}])


def apply(plan: FreezePlan, folder: Path | None) -> None:
    """Wrap Megatron's step."""
    from megatron.training import training

    step_of_megatron = training.train_step
    events: Events | None = None

    def train_step(
        forward: Any,
        data: Any,
        model: list[Any],
        optimizer: Any,
        scheduler: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        nonlocal events
        run = training.get_args()
        if events is None:
            events = Events(plan, folder, run.iteration)
        events.before_step(run.curr_iteration, model, optimizer, scheduler)
        return step_of_megatron(forward, data, model, optimizer, scheduler, *args, **kwargs)

    training.train_step = train_step
