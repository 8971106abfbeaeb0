"""Draws a chart as a PNG picture."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layertracer.files import atomic_file
from layertracer.report.chart import BarChart, Chart, HeatMap, LineChart
from layertracer.report.plotly_view import COLOURS

matplotlib.use("Agg")


def write_png(chart: Chart, path: Path) -> None:
    """Write ``chart`` to ``path`` (150 dots per inch), under a temporary name first."""
    drawn = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawn.add_subplot()
    axes.set_title(chart.title)
    _draw(chart, axes)
    with atomic_file(path) as temporary:
        drawn.savefig(temporary, dpi=150, format="png")


@singledispatch
def _draw(chart: object, axes: Axes) -> None:
    raise TypeError(f"no view for {type(chart).__name__}")


@_draw.register
def _lines(chart: LineChart, axes: Axes) -> None:
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        style = "--" if series.dashed else "-"
        marker = "." if series.markers else None
        axes.plot(series.x, _gaps(series.y), style, color=colour, marker=marker, label=series.name)
        if series.low is not None and series.high is not None:
            axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18)
    for mark in chart.marks:
        axes.axvline(mark.x, linestyle=":", color="grey")
        axes.annotate(mark.label, (mark.x, 1), xycoords=("data", "axes fraction"), fontsize=8)
    if chart.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.legend(fontsize=8)


@_draw.register
def _bars(chart: BarChart, axes: Axes) -> None:
    bottom = [0.0] * len(chart.categories)
    for (name, values), colour in zip(chart.groups.items(), COLOURS, strict=False):
        axes.bar(list(chart.categories), list(values), bottom=bottom, color=colour, label=name)
        bottom = [below + (value or 0) for below, value in zip(bottom, values, strict=True)]
    axes.tick_params(axis="x", labelrotation=90 if len(chart.categories) > 12 else 0, labelsize=7)
    axes.set_ylabel(chart.y_label)
    axes.legend(fontsize=8)


@_draw.register
def _heat_map(chart: HeatMap, axes: Axes) -> None:
    image = axes.pcolormesh(
        range(len(chart.x) + 1),
        range(len(chart.y) + 1),
        [_gaps(row) for row in chart.z],
        cmap="viridis",
    )
    every_x, every_y = max(1, len(chart.x) // 10), max(1, len(chart.y) // 16)
    axes.set_xticks([i + 0.5 for i in range(0, len(chart.x), every_x)], list(chart.x)[::every_x])
    axes.set_yticks([i + 0.5 for i in range(0, len(chart.y), every_y)], list(chart.y)[::every_y])
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.figure.colorbar(image, label=chart.z_label)


def _gaps(values: object) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
