"""The page of a run: one file, the numbers of the run, parts that are missing named."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from layertracer.errors import UserError
from layertracer.model_folder import ParameterCounts
from layertracer.plan import FreezePlan, Strategy
from layertracer.report.build import RunParts, write_report
from layertracer.report.chart import BarChart, HeatMap, LineChart, Section, Series, Table
from layertracer.report.page import write_page
from layertracer.report.plan_section import plan_section, ranges
from layertracer.report.plotly_view import figure
from layertracer.report.training_section import training_section
from tests.test_model_folder import make_folder

LINES = LineChart("lines", "Lines", "x", "y", [Series("a", [0, 1], [1.0, 2.0], [0.5, 1], [2, 3])])
BARS = BarChart("bars", "Bars", "y", ["p", "q"], {"one": [1, 2], "two": [3, 4]})
HEAT = HeatMap("heat", "Heat", "x", "y", "z", [0, 1], [0, 1], [[1.0, None], [2.0, 3.0]])


def write_records(folder, steps=4, layers=2):
    """What a run of a two-layer model leaves, layer 1 frozen."""
    folder.mkdir(parents=True)
    train = [
        {"step": s, "loss": 3.0 - s / 8, "seconds": 1.0 + s, "tokens_per_second": 100.0 - s}
        for s in range(1, steps + 1)
    ]
    stats = [
        {
            "step": s,
            "group": "layer",
            "layer": layer,
            "frozen": layer == 1,
            "grad_norm": None if layer == 1 else float(s),
        }
        for s in range(1, steps + 1)
        for layer in range(layers)
    ]
    for name, lines in (("train.jsonl", train), ("stats.jsonl", stats)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = {"trained_parameters": 56, "frozen_parameters": 60, "gradient_bytes": 224}
    (folder / "run.json").write_text(json.dumps({**counts, "optimizer_bytes": 448}))
    return folder


@pytest.mark.parametrize("chart", [LINES, BARS, HEAT], ids=lambda chart: chart.name)
def test_a_chart_is_drawn_for_the_page_and_as_a_picture(chart, tmp_path):
    section = Section("Part", "What to see.", charts=[chart])
    write_page(tmp_path / "page.html", title="Title", sections=[section])
    with Image.open(tmp_path / "page_plots" / f"{chart.name}.png") as picture:
        assert picture.format == "PNG" and picture.size[0] > 600
    assert len(figure(chart).data) == {"lines": 2, "bars": 2, "heat": 1}[chart.name]


def test_the_page_is_one_file_that_asks_nothing_of_the_network(tmp_path):
    write_page(tmp_path / "page.html", title="T", sections=[Section("S", "L", charts=[LINES])])
    page = (tmp_path / "page.html").read_text("utf-8")
    outside = page.replace(page[page.index("<script>") : page.rindex("<script>")], "")
    assert "http://" not in outside and "https://" not in outside and "src=" not in outside


def test_what_comes_from_files_cannot_become_markup(tmp_path):
    evil = "</script><script>alert(1)</script>"
    chart = LineChart("lines", evil, evil, "y", [Series(evil, [0], [1])])
    section = Section(evil, evil, [Table([evil], [[evil]])], [chart])
    write_page(tmp_path / "page.html", title=evil, sections=[section])
    assert evil not in (tmp_path / "page.html").read_text("utf-8")


def test_the_training_section_shows_the_runs_numbers(tmp_path):
    section = training_section(write_records(tmp_path / "records"))
    assert "from 2.8750 to 2.5000" in section.lead
    charts = {chart.name: chart for chart in section.charts}
    assert list(charts["loss"].series[0].y) == [2.875, 2.75, 2.625, 2.5]
    assert charts["gradient-norms"].z == [[1.0, 2.0, 3.0, 4.0], [None] * 4], "frozen: empty"
    memory = section.tables[1]
    assert memory.rows[0] == ["parameters", "56", "60"]


def test_a_run_that_never_trained_is_an_error_that_names_the_file(tmp_path):
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(UserError, match=r"train\.jsonl holds no step"):
        training_section(tmp_path)


def test_the_plan_section_counts_what_trains():
    plan = FreezePlan.from_strategy(
        Strategy.TRAIN_SHALLOW, num_layers=2, tied_embeddings=False, boundary=1
    )

    section = plan_section(plan, ParameterCounts((16, 16), 40, 4, 40))
    assert "56 of 116 parameters train" in section.lead
    assert section.tables[0].rows == [["0", "0", "trains", "frozen", "frozen"]]
    assert sum(sum(values) for values in section.charts[0].groups.values()) * 1e6 == 116


@pytest.mark.parametrize(
    ("layers", "text"),
    [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 4, 9), "0, 2-4, 9")],
)
def test_layers_are_written_as_ranges(layers, text):
    assert ranges(layers) == text


def test_a_run_folder_is_reported_as_far_as_it_goes(tmp_path):
    run = tmp_path / "run"
    write_records(run / "cpt" / "layertracer")
    make_folder(run / "weights")
    FreezePlan.from_strategy(
        Strategy.TRAIN_SHALLOW, num_layers=2, tied_embeddings=False, boundary=1
    ).save(run / "plan.json")
    parts = RunParts().found_in(run)
    titles = write_report(parts, run / "report.html", title="Run", overwrite=False)
    assert titles == ["Plan", "Training"]
    with pytest.raises(UserError, match="exists already"):
        write_report(parts, run / "report.html", title="Run", overwrite=False)


def test_nothing_to_report_says_what_belongs_there(tmp_path):
    with pytest.raises(UserError, match="nothing to report"):
        write_report(RunParts().found_in(tmp_path), tmp_path / "r.html", title="", overwrite=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no such run folder"):
        RunParts().found_in(tmp_path / "nowhere")
