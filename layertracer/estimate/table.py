"""The estimate as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from layertracer.estimate.memory import StageMemory, stage_memory
from layertracer.estimate.settings import Layout, ModelShape, equal_split, full_phase
from layertracer.estimate.time import balanced_split, layout_flag, stage_costs, step_time
from layertracer.plan import FreezePlan, Phase

GIB = 2**30


def print_estimate(plan: FreezePlan, shape: ModelShape, layout: Layout) -> None:
    """Print memory per rank and the step-time ratio of each phase, and a balanced split."""
    console = Console()
    full = full_phase(shape)
    for phase in plan.phases:
        if len(plan.phases) > 1:
            console.rule(f"from step {phase.at_step}")
        balanced = balanced_split(shape, phase, layout, layout.pipeline)
        equal = balanced
        if shape.num_layers % layout.pipeline == 0:
            equal = equal_split(shape.num_layers, layout.pipeline)
        console.print(_memory_table(stage_memory(shape, phase, layout, equal)))
        reference = _full_time(shape, full, layout)
        _print_time(console, "step time", shape, phase, layout, equal, reference)
        if layout.pipeline > 1:
            _print_time(console, "balanced", shape, phase, layout, balanced, reference)
            console.print(f"  --pipeline-model-parallel-layout '{layout_flag(balanced)}'")


def _memory_table(stages: Sequence[StageMemory]) -> Table:
    table = Table(title="GiB per rank")
    columns = ("stage", "trained", "frozen", "weights", "gradients", "optimizer", "activations")
    for column in (*columns, "total"):
        table.add_column(column, justify="right")
    for stage in stages:
        sizes = (stage.weights, stage.gradients, stage.optimizer, stage.activations, stage.total)
        table.add_row(
            str(stage.stage),
            f"{stage.trained_parameters / 1e6:,.1f} M",
            f"{stage.frozen_parameters / 1e6:,.1f} M",
            *(f"{size / GIB:.2f}" for size in sizes),
        )
    return table


def _print_time(
    console: Console,
    name: str,
    shape: ModelShape,
    phase: Phase,
    layout: Layout,
    stages: Sequence[range],
    reference: float,
) -> None:
    costs = stage_costs(shape, phase, layout, stages)
    ratio = step_time(costs, layout.micro_batches) / reference
    shown = " | ".join(f"{cost:.1f}" for cost in costs)
    console.print(f"{name}: {ratio:.3f} of full training (cost per stage: {shown})")


def _full_time(shape: ModelShape, full: Phase, layout: Layout) -> float:
    stages = balanced_split(shape, full, layout, layout.pipeline)
    if shape.num_layers % layout.pipeline == 0:
        stages = equal_split(shape.num_layers, layout.pipeline)
    return step_time(stage_costs(shape, full, layout, stages), layout.micro_batches)
