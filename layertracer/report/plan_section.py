"""The plan: what trains, what is frozen, and what that costs."""

from __future__ import annotations

from itertools import pairwise

from layertracer.model_folder import ParameterCounts
from layertracer.plan import FreezePlan, Phase
from layertracer.plan_table import BYTES_FROZEN, BYTES_TRAINED, plan_rows
from layertracer.report.chart import BarChart, Section, Table


def plan_section(plan: FreezePlan, counts: ParameterCounts) -> Section:
    """Return the section; ``counts`` are the parameters of the source model."""
    rows = plan_rows(plan, counts)
    trained = sum(row.parameters for row in rows if row.trains)
    lead = (
        f"Arm {plan.strategy.value}: {trained:,} of {counts.total:,} parameters train "
        f"({trained / counts.total:.1%})."
    )
    if plan.boundary is not None:
        lead += (
            f" Boundary {plan.boundary}: layers 0 to {plan.boundary - 1} are shallow, "
            f"{plan.boundary} to {plan.num_layers - 1} deep."
        )
    return Section(
        title="Plan",
        lead=lead,
        tables=[_phase_table(plan)],
        charts=[
            BarChart(
                name="plan-parameters",
                title="Parameters by part",
                y_label="million parameters",
                categories=[row.part for row in rows],
                groups={
                    "trained": [row.parameters / 1e6 if row.trains else 0 for row in rows],
                    "frozen": [0 if row.trains else row.parameters / 1e6 for row in rows],
                },
                note=f"A trained parameter takes {BYTES_TRAINED} bytes (bf16 weight, fp32 gradient,"
                f" main copy and two moments), a frozen one {BYTES_FROZEN}.",
            )
        ],
    )


def _phase_table(plan: FreezePlan) -> Table:
    return Table(
        columns=["from step", "layers that train", "embedding", "final norm", "output layer"],
        rows=[
            [
                str(phase.at_step),
                ranges(phase.layers) or "none",
                *(_state(trains) for trains in _parts(phase)),
            ]
            for phase in plan.phases
        ],
    )


def _parts(phase: Phase) -> tuple[bool, bool, bool]:
    return phase.embedding, phase.final_norm, phase.output_layer


def _state(trains: bool) -> str:
    return "trains" if trains else "frozen"


def ranges(layers: tuple[int, ...]) -> str:
    """Return ``"0-14, 20"`` for sorted layer numbers."""
    if not layers:
        return ""
    breaks = [later for earlier, later in pairwise(layers) if later != earlier + 1]
    starts = [layers[0], *breaks]
    ends = [layers[layers.index(start) - 1] for start in breaks] + [layers[-1]]
    return ", ".join(
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )
