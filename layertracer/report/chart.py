"""What a chart shows, apart from how it is drawn.

``plotly_view`` draws a chart for the HTML page and ``png_view`` for a picture file, so that both
always show the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Number = float | int | None


@dataclass(frozen=True)
class Series:
    """One line: ``y`` over ``x``, with an optional interval ``low..high``."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    dashed: bool = False
    markers: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line at ``x``, for example the boundary, with a short label."""

    x: float
    label: str


@dataclass(frozen=True)
class LineChart:
    """Lines over a common axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = field(default_factory=tuple)
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class BarChart:
    """Stacked bars: for each group of ``groups``, one value a category."""

    name: str
    title: str
    y_label: str
    categories: Sequence[str]
    groups: dict[str, Sequence[Number]]
    note: str = ""


@dataclass(frozen=True)
class HeatMap:
    """``z[row][column]`` as colour; rows are ``y``, columns ``x``. ``None`` stays empty."""

    name: str
    title: str
    x_label: str
    y_label: str
    z_label: str
    x: Sequence[Number]
    y: Sequence[Number | str]
    z: Sequence[Sequence[Number]]
    marks: Sequence[Mark] = field(default_factory=tuple)
    note: str = ""


Chart = LineChart | BarChart | HeatMap


@dataclass(frozen=True)
class Table:
    """A plain table; the first column is text, the others are numbers already formatted."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page: a sentence that says what to see, then tables and charts."""

    title: str
    lead: str
    tables: Sequence[Table] = field(default_factory=tuple)
    charts: Sequence[Chart] = field(default_factory=tuple)
