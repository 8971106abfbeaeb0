"""The training run: loss, memory, and gradient norms per layer over time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layertracer.errors import UserError
from layertracer.plan import FreezePlan
from layertracer.report.chart import Chart, HeatMap, LineChart, Mark, Section, Series, Table


def training_section(records: Path) -> Section:
    """Return the section from ``<save>/layertracer/`` of a run.

    Raises:
        UserError: the run recorded no step.
    """
    steps = _read_lines(records / "train.jsonl")
    if not steps:
        raise UserError(f"{records}/train.jsonl holds no step: has the run trained yet?")
    plan = _optional_plan(records / "plan.json")
    first, last = steps[0], steps[-1]
    return Section(
        title="Training",
        lead=f"{len(steps)} steps; the loss went from {first['loss']:.4f} to {last['loss']:.4f}.",
        tables=[_speed_table(steps), *_memory_tables(records / "run.json")],
        charts=[_loss_chart(steps), *_gradient_charts(_read_lines(records / "stats.jsonl"), plan)],
    )


def _loss_chart(steps: list[dict[str, Any]]) -> LineChart:
    return LineChart(
        name="loss",
        title="Training loss",
        x_label="step",
        y_label="loss (nats per token)",
        series=[
            Series(
                "loss",
                [line["step"] for line in steps],
                [line["loss"] for line in steps],
                markers=len(steps) < 100,
            )
        ],
    )


def _speed_table(steps: list[dict[str, Any]]) -> Table:
    seconds = sorted(line["seconds"] for line in steps)
    speeds = sorted(line["tokens_per_second"] for line in steps)
    return Table(
        columns=["", "median", "best", "worst"],
        rows=[
            ["seconds a step", *(f"{v:.2f}" for v in (_median(seconds), seconds[0], seconds[-1]))],
            ["tokens a second", *(f"{v:,.0f}" for v in (_median(speeds), speeds[-1], speeds[0]))],
        ],
    )


def _median(values: list[float]) -> float:
    return values[len(values) // 2]


def _memory_tables(file: Path) -> list[Table]:
    if not file.is_file():
        return []
    run = json.loads(file.read_text("utf-8"))
    return [
        Table(
            caption="Counted from the live objects of the run, all ranks together.",
            columns=["", "trained", "frozen"],
            rows=[
                ["parameters", f"{run['trained_parameters']:,}", f"{run['frozen_parameters']:,}"],
                ["gradient bytes", f"{run['gradient_bytes']:,}", "0"],
                ["optimizer bytes", f"{run['optimizer_bytes']:,}", "0"],
            ],
        )
    ]


def _gradient_charts(lines: list[dict[str, Any]], plan: FreezePlan | None) -> list[Chart]:
    layers = [line for line in lines if line["group"] == "layer"]
    if not layers:
        return []
    steps = sorted({line["step"] for line in layers})
    numbers = sorted({line["layer"] for line in layers})
    norms = {(line["layer"], line["step"]): line["grad_norm"] for line in layers}
    marks = [] if plan is None or plan.boundary is None else [Mark(plan.boundary - 0.5, "boundary")]
    heat = HeatMap(
        name="gradient-norms",
        title="Gradient norm per layer over time",
        x_label="step",
        y_label="layer",
        z_label="L2 norm",
        x=steps,
        y=numbers,
        z=[[norms.get((number, step)) for step in steps] for number in numbers],
        note="After data-parallel reduction, before clipping. Frozen layers are empty: they have "
        "no gradient.",
    )
    profile = LineChart(
        name="gradient-profile",
        title="Gradient norm over depth",
        x_label="layer",
        y_label="L2 norm",
        series=[
            Series(f"step {step}", numbers, [norms.get((n, step)) for n in numbers], markers=True)
            for step in dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1]))
        ],
        marks=marks,
    )
    return [heat, profile]


def _optional_plan(file: Path) -> FreezePlan | None:
    return FreezePlan.load(file) if file.is_file() else None


def _read_lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
