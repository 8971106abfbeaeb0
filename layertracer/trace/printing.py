"""A trace as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from layertracer.trace.files import Estimate, TraceFile


def print_trace(trace: TraceFile) -> None:
    """Print a line per layer, and what they say together."""
    table = Table(title=f"{trace.model.architecture}, {trace.prompts.count} prompts")
    for column in ("layer", "kind", "P(target)", "JS", "LS", "95%", "LS null", "TP"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for layer in trace.layers:
        table.add_row(
            str(layer.layer),
            layer.kind,
            f"{layer.p_target.mean:.4f}",
            f"{layer.js.mean:.4f}",
            f"{layer.ls.mean:.4f}",
            f"{layer.ls.low:.3f}..{layer.ls.high:.3f}",
            "" if layer.ls_null is None else f"{layer.ls_null.mean:.4f}",
            f"{layer.task_particle_share:.0%}",
        )
    console = Console()
    console.print(table)
    for line in summary_lines(trace):
        console.print(line, highlight=False, soft_wrap=True)


def summary_lines(trace: TraceFile) -> list[str]:
    """Return the findings in words, with their intervals."""
    vulnerable = trace.vulnerable_layer
    lines = [
        f"task particle: layer {_with_interval(trace.task_particle.mean, 1)} on average",
        f"onset: layer {_with_interval(trace.onset.mean, 1)}; "
        f"largest rise: layer {_with_interval(trace.largest_rise.mean, 1)}",
        f"vulnerable layer: {vulnerable.layer} ({vulnerable.low} to {vulnerable.high})",
    ]
    if trace.best_boundary is not None:
        best = trace.boundaries[trace.best_boundary - 1]
        lines.append(
            f"best boundary: {best.boundary} shallow layers, S = {_with_interval(best.score)}, "
            f"best in {best.best_share:.0%} of resamples"
        )
    if trace.prompts.accuracy is not None:
        lines.append(f"the model answers {trace.prompts.accuracy:.0%} of the prompts right")
    if trace.prompts.duplicates:
        lines.append(f"note: {trace.prompts.duplicates} prompts equal an earlier one")
    if trace.prompts.without_context:
        lines.append(
            f"note: {trace.prompts.without_context} prompts have no context to disturb (JS is 0)"
        )
    return lines


def _with_interval(value: Estimate, digits: int = 4) -> str:
    return f"{value.mean:.{digits}f} ({value.low:.{digits}f} to {value.high:.{digits}f})"
