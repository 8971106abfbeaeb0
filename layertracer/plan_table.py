"""What a plan trains and freezes, in parameters and bytes, as a table for people."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from layertracer.model_folder import ParameterCounts
from layertracer.plan import FreezePlan

# Mixed-precision Adam: bf16 weight 2, fp32 gradient 4, fp32 main copy 4, two fp32 moments 8.
BYTES_TRAINED = 18
BYTES_FROZEN = 2


@dataclass(frozen=True)
class PlanRow:
    """One part of the model: its name, parameters, and whether the first phase trains it."""

    part: str
    parameters: int
    trains: bool

    @property
    def training_bytes(self) -> int:
        """Weights, gradients and optimizer state of mixed-precision Adam, unsharded."""
        return self.parameters * (BYTES_TRAINED if self.trains else BYTES_FROZEN)


def plan_rows(plan: FreezePlan, counts: ParameterCounts) -> list[PlanRow]:
    """Return a row for the embedding, each layer, the final norm and the head."""
    phase = plan.phases[0]
    rows = [PlanRow("embedding", counts.embedding, phase.embedding)]
    for layer, parameters in enumerate(counts.layers):
        rows.append(PlanRow(f"layer {layer}", parameters, phase.trains_layer(layer)))
    rows.append(PlanRow("final norm", counts.final_norm, phase.final_norm))
    rows.append(PlanRow("output layer", counts.output_layer, phase.output_layer))
    return rows


def print_table(plan: FreezePlan, counts: ParameterCounts) -> None:
    """Print the rows, equal neighbours joined, and the totals."""
    table = Table(title=f"{plan.strategy.value}, boundary {plan.boundary}")
    for column in ("part", "parameters", "", "training bytes"):
        table.add_column(column, justify="left" if column in ("part", "") else "right")
    rows = plan_rows(plan, counts)
    for row in _join_equal_neighbours(rows):
        state = "[green]trains[/]" if row.trains else "[dim]frozen[/]"
        if row.part == "output layer" and plan.tied_embeddings:
            state += " (tied to the embedding)"
        table.add_row(
            row.part, f"{row.parameters:,}", state, f"{row.training_bytes / 2**20:,.1f} MiB"
        )
    console = Console()
    console.print(table)
    trained = sum(row.parameters for row in rows if row.trains)
    console.print(
        f"trains {trained:,} of {counts.total:,} parameters ({trained / counts.total:.1%}); "
        f"weights, gradients and optimizer state take "
        f"{sum(row.training_bytes for row in rows) / 2**30:.2f} GiB "
        f"instead of {counts.total * BYTES_TRAINED / 2**30:.2f} GiB (bf16, fp32 Adam, unsharded)"
    )


def _join_equal_neighbours(rows: list[PlanRow]) -> list[PlanRow]:
    joined: list[tuple[PlanRow, PlanRow]] = []
    for row in rows:
        first, last = joined[-1] if joined else (None, None)
        if (
            first is not None
            and row.part.startswith("layer")
            and last.part.startswith("layer")
            and last.trains == row.trains
        ):
            total = PlanRow(first.part, first.parameters + row.parameters, row.trains)
            joined[-1] = (total, row)
        else:
            joined.append((row, row))
    return [
        first
        if first.part == last.part
        else PlanRow(f"{first.part} to {last.part.split()[1]}", first.parameters, first.trains)
        for first, last in joined
    ]
