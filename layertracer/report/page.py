"""Puts sections together into one self-contained HTML page, with PNG plots beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import jinja2
import plotly.offline

from layertracer import __version__
from layertracer.files import atomic_file
from layertracer.report.chart import Chart, Section
from layertracer.report.plotly_view import figure
from layertracer.report.png_view import write_png

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("layertracer.report"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write_page(path: Path, *, title: str, sections: Sequence[Section]) -> None:
    """Write the page to ``path`` and every chart to ``<path without suffix>_plots/<name>.png``.

    The page holds the plotting library and all numbers: it works offline, from one file.
    """
    charts = [chart for section in sections for chart in section.charts]
    for chart in charts:
        write_png(chart, path.with_name(f"{path.stem}_plots") / f"{chart.name}.png")
    html = _TEMPLATES.get_template("page.html.j2").render(
        title=title,
        sections=sections,
        figures={chart.name: _as_json(chart) for chart in charts},
        plotly_js=plotly.offline.get_plotlyjs(),
        version=__version__,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
    )
    with atomic_file(path) as temporary:
        temporary.write_text(html, "utf-8")


def _as_json(chart: Chart) -> str:
    """Return the figure as JSON that can't close the script element it stands in."""
    drawn = figure(chart)
    drawn.update_layout(template=None, margin={"l": 70, "r": 20, "t": 30, "b": 55}, height=380)
    return json.dumps(json.loads(drawn.to_json())).replace("</", "<\\/")
