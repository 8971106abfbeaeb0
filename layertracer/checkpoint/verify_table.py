"""What ``convert verify`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from layertracer.checkpoint.verify import OutputReport, WeightReport

# Two orders of the same float32 sums differ by about this much of a layer's largest value.
LAYER_TOLERANCE = 1e-4


def _say(line: str) -> None:
    Console(highlight=False).print(line, soft_wrap=True)


def print_weights(report: WeightReport) -> bool:
    """Say whether the weights are the same; return it."""
    if report.cast:
        _say(f"{report.cast} tensor(s) of another type are cast to the folder's before comparing")
    if not report.different:
        _say(f"weights: {report.tensors} tensors, all equal bit by bit")
        return True
    name = max(report.different, key=lambda key: report.different[key])
    _say(
        f"weights: {len(report.different)} of {report.tensors} tensors differ, the first is "
        f"{next(iter(report.different))}, most {name} (by {report.different[name]:.3g})"
    )
    return False


def print_outputs(reports: Sequence[OutputReport], tolerance: float) -> bool:
    """Print each layer's difference; return whether all logits are within ``tolerance``."""
    table = Table(title="Megatron against Hugging Face, float32: largest difference")
    table.add_column("place")
    for report in reports:
        table.add_column(f"{report.tokens} tokens", justify="right")
        table.add_column("of the largest", justify="right")
    for row in zip(*(report.places for report in reports), strict=True):
        cells = [f"{place.difference:.2e} | {place.relative:.1e}".split(" | ") for place in row]
        table.add_row(row[0].place, *(cell for pair in cells for cell in pair))
    Console().print(table)
    same = True
    for report in reports:
        if report.logits.difference <= tolerance:  # false for NaN
            continue
        same = False
        first = report.first_beyond(LAYER_TOLERANCE) or report.logits
        _say(
            f"{report.tokens} tokens: logits differ by {report.logits.difference:.3g} "
            f"(allowed {tolerance:g}); the first place that differs is {first.place}"
        )
    if same:
        _say(f"logits: within {tolerance:g} at every length")
    return same
