"""Two traces on one page: the difference of each layer, and both curves."""

from __future__ import annotations

from pathlib import Path

from layertracer.report.chart import Section, Table
from layertracer.report.page import write_page
from layertracer.report.trace_figures import LayerChart, estimate_series
from layertracer.trace.compare import Comparison, compare
from layertracer.trace.files import Estimate, TraceFile


def write_comparison(first: Path, second: Path, out: Path) -> Comparison:
    """Compare two trace folders; write the page ``out`` and the numbers beside it as JSON.

    Raises:
        UserError: a folder holds no trace, or the traces can't be compared.
    """
    traces = TraceFile.load(first), TraceFile.load(second)
    found = compare(*traces)
    title = f"LayerTracer: {first} and {second}"
    write_page(out, title=title, sections=[comparison_section(found, *traces)])
    found.save(out.with_suffix(".json"))
    return found


def comparison_section(found: Comparison, first: TraceFile, second: TraceFile) -> Section:
    """Return the section that shows ``found``."""
    return Section(
        title="Comparison",
        lead=_lead(found),
        tables=[Table(columns=["quantity", "second minus first"], rows=_rows(found))],
        charts=_charts(found, first, second),
    )


def _lead(found: Comparison) -> str:
    how = "the same prompts, compared one by one" if found.paired else "different prompts"
    lead = f"First: {found.first}. Second: {found.second}. Traced with {how}."
    if found.other_settings:
        lead += f" Settings differ ({'; '.join(found.other_settings)}): compare with care."
    return lead


def _rows(found: Comparison) -> list[list[str]]:
    clear = [str(layer.layer) for layer in found.layers if layer.clear]
    rows = [
        ["task particle (layers)", interval_text(found.task_particle, 2)],
        ["onset (layers)", interval_text(found.onset, 2)],
        ["largest rise (layers)", interval_text(found.largest_rise, 2)],
        ["relative change of LS", interval_text(found.ls_drift)],
        ["correlation of LS over layers", interval_text(found.ls_correlation)],
        ["vulnerable layer", "{} → {}".format(*found.vulnerable_layers)],
        ["best boundary", "{} → {}".format(*found.best_boundaries)],
        ["layers whose LS changed clearly", ", ".join(clear) or "none"],
    ]
    if found.same_answer is not None:
        rows.append(["prompts with the same answer", f"{found.same_answer:.0%}"])
    return rows


def interval_text(value: Estimate, digits: int = 3) -> str:
    """Return ``mean (low to high)``."""
    return f"{value.mean:+.{digits}f} ({value.low:+.{digits}f} to {value.high:+.{digits}f})"


def _charts(found: Comparison, first: TraceFile, second: TraceFile) -> list[LayerChart]:
    charts = []
    for name, title, unit in (
        ("ls", "Layer-wise sensitivity", "LS (nats)"),
        ("js", "Divergence under disturbance", "JS divergence (nats)"),
        ("p_target", "Probability of the answer", "P(target)"),
    ):
        both = [
            estimate_series(label, [getattr(layer, name) for layer in trace.layers])
            for label, trace in (("first", first), ("second", second))
        ]
        change = [estimate_series("second - first", [getattr(la, name) for la in found.layers])]
        stem = f"compare-{name.replace('_', '-')}"
        kinds = first.layer_kinds
        charts += [
            LayerChart(stem, title, "layer", unit, series=both, kinds=kinds),
            LayerChart(
                f"{stem}-change", f"{title}: change", "layer", unit, series=change, kinds=kinds
            ),
        ]
    return charts
