"""The trace in pictures: where the answer appears, and how sensitive each layer is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from layertracer.report import plotly_view, png_view
from layertracer.report.chart import LineChart, Mark, Section, Series, Table
from layertracer.report.page import write_page
from layertracer.trace.files import Estimate, TraceFile
from layertracer.trace.printing import summary_lines

# Single curves a page offers; more would only make the page heavy.
MOST_PROMPTS = 60
_KIND_COLOURS = ["#E69F00", "#56B4E9", "#CC79A7"]
_SHADE = 0.15


@dataclass(frozen=True)
class LayerChart(LineChart):
    """Lines over a model's layers; blocks of the rarer kinds are shaded.

    Attributes:
        kinds: what each layer is, from layer 0.
        single: the same quantity for single prompts, chosen in a menu of the page.
    """

    kinds: Sequence[str] = ()
    single: Sequence[Series] = ()


def trace_section(trace: TraceFile, boundary: int | None = None) -> Section:
    """Return the report's section; ``boundary`` is the one that the plan uses."""
    used = trace.settings
    words = [line.split(": ", 1) for line in summary_lines(trace) if ": " in line]
    return Section(
        title="Trace",
        lead=(
            f"{trace.prompts.count} prompts ({used.prompts}) through {trace.model.architecture}, "
            f"every layer decoded by the model's own head; context disturbed by "
            f"{used.perturbation.value} of {used.fraction:.0%} of its tokens. "
            "Bands and brackets are 95% bootstrap intervals over prompts."
        ),
        tables=[Table(columns=["finding", "value"], rows=words)],
        charts=charts(trace, boundary),
    )


def write_trace_page(trace: TraceFile, path: Path) -> None:
    """Write the section alone as the page ``path``, and its pictures beside it."""
    write_page(path, title=f"Trace of {trace.model.path}", sections=[trace_section(trace)])


def charts(trace: TraceFile, boundary: int | None = None) -> list[LayerChart]:
    """Return the charts of a trace, for the page and as pictures."""
    marks = [] if boundary is None else [Mark(boundary - 0.5, f"boundary {boundary}")]
    made = [
        _target_chart(trace, marks),
        _landmark_chart(trace, marks),
        _divergence_chart(trace, marks),
        _sensitivity_chart(trace, marks),
    ]
    return [*made, _boundary_chart(trace, boundary)] if trace.boundaries else made


def figures(trace: TraceFile, boundary: int | None = None) -> list[go.Figure]:
    """Return the charts as plotly figures, with their titles."""
    return [
        plotly_view.figure(chart).update_layout(title=chart.title)
        for chart in charts(trace, boundary)
    ]


def estimate_series(
    name: str, values: Sequence[Estimate], first: int = 0, *, dashed: bool = False
) -> Series:
    """Return a line with its interval over ``first, first + 1, ...``."""
    return Series(
        name,
        list(range(first, first + len(values))),
        [value.mean for value in values],
        [value.low for value in values],
        [value.high for value in values],
        dashed=dashed,
    )


def _chart(trace: TraceFile, name: str, title: str, y_label: str, **rest: object) -> LayerChart:
    return LayerChart(name, title, "layer", y_label, kinds=trace.layer_kinds, **rest)


def _target_chart(trace: TraceFile, marks: list[Mark]) -> LayerChart:
    return _chart(
        trace,
        "trace-target",
        "Probability of the answer after each layer",
        "P(target)",
        series=[estimate_series("mean", [layer.p_target for layer in trace.layers])],
        marks=marks,
        single=_single(trace, trace.table().p[:, 1:]),
        note="The menu shows one prompt alone.",
    )


def _landmark_chart(trace: TraceFile, marks: list[Mark]) -> LayerChart:
    layers = [layer.layer for layer in trace.layers]
    shares = {
        "task particle": [layer.task_particle_share for layer in trace.layers],
        "onset": [layer.onset_share for layer in trace.layers],
        "largest rise": [layer.largest_rise_share for layer in trace.layers],
    }
    return _chart(
        trace,
        "trace-landmarks",
        "Where the task is executed",
        "share of prompts",
        series=[Series(name, layers, share, markers=True) for name, share in shares.items()],
        marks=marks,
        note="The published task particle saturates for any large relative rise; "
        "onset and largest rise don't.",
    )


def _divergence_chart(trace: TraceFile, marks: list[Mark]) -> LayerChart:
    vulnerable = trace.vulnerable_layer.layer
    return _chart(
        trace,
        "trace-js",
        "How far the disturbance moves each layer's answer",
        "JS divergence (nats)",
        series=_with_null(trace, "js", "clean and disturbed"),
        marks=[*marks, Mark(vulnerable, f"vulnerable layer {vulnerable}")],
        single=_single(trace, trace.table().js[:, 1:]),
        note="The null control compares two independent draws of the same disturbance.",
    )


def _sensitivity_chart(trace: TraceFile, marks: list[Mark]) -> LayerChart:
    return _chart(
        trace,
        "trace-ls",
        "Layer-wise sensitivity",
        "LS = |change of JS| (nats)",
        series=_with_null(trace, "ls", "sensitivity"),
        marks=marks,
        single=_single(trace, np.abs(np.diff(trace.table().js, axis=1))),
    )


def _with_null(trace: TraceFile, name: str, label: str) -> list[Series]:
    series = [estimate_series(label, [getattr(layer, name) for layer in trace.layers])]
    null = [getattr(layer, f"{name}_null") for layer in trace.layers]
    if null[0] is not None:
        series.append(estimate_series("null control", null, dashed=True))
    return series


def _boundary_chart(trace: TraceFile, boundary: int | None) -> LayerChart:
    series = [estimate_series("S(b)", [entry.score for entry in trace.boundaries], 1)]
    null = [entry.score_null for entry in trace.boundaries]
    if null[0] is not None:
        series.append(estimate_series("null control", null, 1, dashed=True))
    marks = [Mark(trace.best_boundary, f"best {trace.best_boundary}")]
    if boundary is not None and boundary != trace.best_boundary:
        marks.append(Mark(boundary, f"plan {boundary}"))
    return LayerChart(
        "trace-boundary",
        "Boundary score: shallow minus deep sensitivity",
        "boundary b (number of shallow layers)",
        "S(b) (nats)",
        series=series,
        marks=marks,
        note="Positive: the shallow part is the sensitive one.",
    )


def _single(trace: TraceFile, values: np.ndarray) -> list[Series]:
    layers = list(range(values.shape[1]))
    texts = trace.table().text[:MOST_PROMPTS]
    return [
        Series(f"{index + 1}: {_ending(text)}", layers, row.tolist())
        for index, (text, row) in enumerate(zip(texts, values, strict=False))
    ]


def _ending(text: str, length: int = 36) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"…{flat[-length:]}"


@plotly_view.figure.register
def _figure(chart: LayerChart) -> go.Figure:
    drawn = plotly_view.figure.dispatch(LineChart)(chart)
    named: set[str] = set()
    for (first, last, kind), colour in shaded_ranges(chart.kinds):
        drawn.add_vrect(
            x0=first - 0.5, x1=last + 0.5, fillcolor=colour, opacity=_SHADE, line_width=0
        )
        if kind not in named:
            named.add(kind)
            drawn.add_trace(_legend_entry(kind, colour))
    if chart.single:
        _add_menu(drawn, chart.single)
    return drawn


def _legend_entry(kind: str, colour: str) -> go.Scatter:
    marker = {"color": colour, "symbol": "square", "size": 12, "opacity": 0.5}
    return go.Scatter(name=kind, x=[None], y=[None], mode="markers", marker=marker)


@png_view._draw.register
def _picture(chart: LayerChart, axes: Axes) -> None:
    named: set[str] = set()
    for (first, last, kind), colour in shaded_ranges(chart.kinds):
        label = None if kind in named else kind
        named.add(kind)
        axes.axvspan(first - 0.5, last + 0.5, color=to_rgba(colour, _SHADE), lw=0, label=label)
    png_view._draw.dispatch(LineChart)(chart, axes)


def shaded_ranges(kinds: Sequence[str]) -> list[tuple[tuple[int, int, str], str]]:
    """Return ``((first, last, kind), colour)`` of each run of layers of a rarer kind."""
    names = sorted(set(kinds), key=lambda kind: (-list(kinds).count(kind), kind))
    colours = {
        kind: _KIND_COLOURS[index % len(_KIND_COLOURS)] for index, kind in enumerate(names[1:])
    }
    ranges: list[tuple[int, int, str]] = []
    for layer, kind in enumerate(kinds):
        if ranges and ranges[-1][1] == layer - 1 and ranges[-1][2] == kind:
            ranges[-1] = (ranges[-1][0], layer, kind)
        else:
            ranges.append((layer, layer, kind))
    return [(span, colours[span[2]]) for span in ranges if span[2] in colours]


def _add_menu(drawn: go.Figure, single: Sequence[Series]) -> None:
    """Add the single curves, hidden, and a menu that shows one beside the mean."""
    always = len(drawn.data)
    for series in single:
        drawn.add_trace(
            go.Scatter(
                name=series.name,
                x=list(series.x),
                y=list(series.y),
                visible=False,
                line={"color": "#888888"},
                hovertemplate="%{y:.4g}",
            )
        )

    def button(label: str, shown: int | None) -> dict[str, object]:
        visible = [True] * always + [index == shown for index in range(len(single))]
        return {"label": label, "method": "restyle", "args": ["visible", visible]}

    buttons = [button("all prompts", None)]
    buttons += [button(series.name, index) for index, series in enumerate(single)]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}
    drawn.update_layout(updatemenus=[menu], margin={"t": 60})
