"""Draws a chart as a plotly figure for the page."""

from __future__ import annotations

from functools import singledispatch

import plotly.graph_objects as go

from layertracer.report.chart import BarChart, HeatMap, LineChart, Mark, Series

# Okabe and Ito's colours, told apart with any colour vision.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]


@singledispatch
def figure(chart: object) -> go.Figure:
    """Return the plotly figure of ``chart``."""
    raise TypeError(f"no view for {type(chart).__name__}")


@figure.register
def _lines(chart: LineChart) -> go.Figure:
    drawn = go.Figure()
    for number, series in enumerate(chart.series):
        colour = COLOURS[number % len(COLOURS)]
        if series.low is not None and series.high is not None:
            drawn.add_trace(_band(series, colour))
        drawn.add_trace(_line(series, colour))
    drawn.update_layout(xaxis_title=chart.x_label, yaxis_title=chart.y_label, hovermode="x unified")
    if chart.log_y:
        drawn.update_yaxes(type="log", exponentformat="power")
    _add_marks(drawn, chart.marks)
    return drawn


@figure.register
def _bars(chart: BarChart) -> go.Figure:
    drawn = go.Figure(
        [
            go.Bar(name=name, x=list(chart.categories), y=list(values), marker_color=colour)
            for (name, values), colour in zip(chart.groups.items(), COLOURS, strict=False)
        ]
    )
    drawn.update_layout(barmode="stack", yaxis_title=chart.y_label)
    return drawn


@figure.register
def _heat_map(chart: HeatMap) -> go.Figure:
    drawn = go.Figure(
        go.Heatmap(
            x=list(chart.x),
            y=list(chart.y),
            z=[list(row) for row in chart.z],
            colorscale="Viridis",
            colorbar={"title": chart.z_label},
            hovertemplate=(
                f"{chart.x_label} %{{x}}<br>{chart.y_label} %{{y}}<br>%{{z:.4g}}<extra></extra>"
            ),
        )
    )
    drawn.update_layout(xaxis_title=chart.x_label, yaxis_title=chart.y_label)
    _add_marks(drawn, chart.marks)
    return drawn


def _line(series: Series, colour: str) -> go.Scatter:
    interval = (
        [f" [{low:.4g}, {high:.4g}]" for low, high in zip(series.low, series.high, strict=True)]
        if series.low is not None and series.high is not None
        else None
    )
    return go.Scatter(
        name=series.name,
        x=list(series.x),
        y=list(series.y),
        text=interval,
        mode="lines+markers" if series.markers else "lines",
        line={"color": colour, "dash": "dash" if series.dashed else "solid"},
        hovertemplate="%{y:.4g}" + ("%{text}" if interval else ""),
    )


def _band(series: Series, colour: str) -> go.Scatter:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return go.Scatter(
        x=[*series.x, *reversed(series.x)],
        y=[*series.high, *reversed(series.low)],
        fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.18)",
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )


def _add_marks(drawn: go.Figure, marks: tuple[Mark, ...] | list[Mark]) -> None:
    for mark in marks:
        drawn.add_vline(x=mark.x, line_dash="dot", annotation_text=mark.label)
