"""The trace's pictures: what they show, and that a real browser shows the same numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from layertracer.report.page import write_page
from layertracer.report.trace_figures import charts, figures, shaded_ranges, trace_section
from layertracer.trace.files import TraceFile, TraceSettings
from layertracer.trace.runner import run_trace
from tests.trace.conftest import save_model

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# Added to a copy of the page: what each chart holds once drawn, as text the test can read.
PROBE = """<pre id="probe"></pre><script>
document.getElementById("probe").textContent = JSON.stringify(Object.fromEntries(
  [...document.querySelectorAll(".js-plotly-plot")].map(plot => [plot.id, {
    axis: plot._fullLayout.xaxis.title?.text,
    drawn: plot.querySelectorAll(".scatterlayer .trace").length,
    lines: Object.fromEntries(plot._fullData.filter(t => t.name && t.y?.length)
      .map(t => [t.name, [...t.y]])),
  }])));
</script></body>"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    """A hybrid, so that layers are of several kinds."""
    folder = save_model(tmp_path_factory.mktemp("hybrid") / "model", "qwen3_next")
    settings = TraceSettings(num_prompts=6, bootstrap=40, shots=0)
    return run_trace(folder, folder.parent / "trace", settings)


def test_charts_show_the_traces_numbers(trace: TraceFile) -> None:
    made = {chart.name: chart for chart in charts(trace, boundary=2)}
    assert list(made) == [
        "trace-target", "trace-landmarks", "trace-js", "trace-ls", "trace-boundary",
    ]  # fmt: skip
    sensitivity, null = made["trace-ls"].series
    assert sensitivity.y == [layer.ls.mean for layer in trace.layers]
    assert sensitivity.low == [layer.ls.low for layer in trace.layers]
    assert null.y == [layer.ls_null.mean for layer in trace.layers] and null.dashed
    assert [mark.x for mark in made["trace-ls"].marks] == [1.5], "between layers 1 and 2"
    assert made["trace-boundary"].series[0].x == [1, 2, 3]
    assert len(made["trace-target"].single) == 6
    assert made["trace-target"].single[3].y == trace.table().p[3, 1:].tolist()


def test_layers_of_the_rarer_kinds_are_shaded_and_named(trace: TraceFile) -> None:
    assert set(trace.layer_kinds) == {"linear_attention", "full_attention"}
    drawn = figures(trace)[0]
    shades = [shape for shape in drawn.layout.shapes if shape.type == "rect"]
    assert {(shape.x0, shape.x1) for shape in shades} == {(-0.5, 0.5), (1.5, 2.5)}
    assert [t.name for t in drawn.data if t.name == "linear_attention"] == ["linear_attention"]


def test_neighbours_of_one_kind_share_a_shade() -> None:
    spans = [span for span, _ in shaded_ranges(["a", "m", "m", "a", "a", "x"])]
    assert spans == [(1, 2, "m"), (5, 5, "x")]
    assert shaded_ranges(["a", "a"]) == []


def test_the_menu_shows_the_mean_or_one_prompt_beside_it(trace: TraceFile) -> None:
    drawn = figures(trace)[0]
    buttons = drawn.layout.updatemenus[0].buttons
    assert buttons[0].label == "all prompts"
    assert len(buttons) == 7
    for index, button in enumerate(buttons):
        shown = list(button.args[1])
        assert len(shown) == len(drawn.data)
        assert shown[-6:] == [i == index - 1 for i in range(6)]
        assert all(shown[:-6])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_without_network_shows_the_same_numbers(trace: TraceFile, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(page, title="Trace", sections=[trace_section(trace, boundary=2)])
    html = page.read_text("utf-8")
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="http', html)
    body, _, end = html.rpartition("</body>")
    page.write_text(body + PROBE + end, "utf-8")
    dumped = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000",
         "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}/profile",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    shown = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dumped, re.DOTALL).group(1))
    assert shown["chart-trace-ls"]["axis"] == "layer"
    assert shown["chart-trace-ls"]["drawn"] >= 2
    found = shown["chart-trace-ls"]["lines"]["sensitivity"]
    assert found == pytest.approx([layer.ls.mean for layer in trace.layers])
    found = shown["chart-trace-target"]["lines"]["mean"]
    assert found == pytest.approx([layer.p_target.mean for layer in trace.layers])
    for chart in charts(trace):
        picture = tmp_path / "page_plots" / f"{chart.name}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
