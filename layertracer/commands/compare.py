"""``layertracer compare``: two traces, layer by layer, or two evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("compare")(compare)


def compare(
    first: Annotated[
        Path, typer.Argument(help="A trace or evaluation, for example before training.")
    ],
    second: Annotated[Path, typer.Argument(help="Another of the same kind, for example after it.")],
    out: Annotated[
        Path, typer.Option(help="The page to write; the numbers go beside it as .json.")
    ] = Path("compare.html"),
    overwrite: Annotated[bool, typer.Option(help="Replace an existing page.")] = False,
) -> None:
    """Show what changed from one trace to another, per layer, with 95% intervals.

    Traces of the same prompts are compared prompt by prompt, which shows smaller changes. Of two
    evaluations it says, by a paired test, whether the second model is better, worse, or can't be
    told apart.

    Examples: `layertracer compare trace-before trace-after --out compare.html`,
    `layertracer compare eval-before eval-after`
    """
    from layertracer.evaluate.files import FILE as EVALUATION
    from layertracer.files import refuse_existing

    refuse_existing(out, overwrite=overwrite)
    refuse_existing(out.with_suffix(".json"), overwrite=overwrite)
    if (first / EVALUATION).is_file() and (second / EVALUATION).is_file():
        _compare_evaluations(first, second, out)
    else:
        _compare_traces(first, second, out)
    typer.echo(f"wrote {out}")


def _compare_traces(first: Path, second: Path, out: Path) -> None:
    from layertracer.report.compare_section import interval_text, write_comparison

    found = write_comparison(first, second, out)
    typer.echo(f"task particle moved by {interval_text(found.task_particle, 2)} layers")
    typer.echo(f"layer-wise sensitivity changed by {interval_text(found.ls_drift)} of its size")
    clear = [str(layer.layer) for layer in found.layers if layer.clear]
    typer.echo(f"layers whose sensitivity changed clearly: {', '.join(clear) or 'none'}")
    for setting in found.other_settings:
        typer.echo(f"note: settings differ: {setting}")


def _compare_evaluations(first: Path, second: Path, out: Path) -> None:
    from dataclasses import asdict

    from layertracer.evaluate.compare import compare_evaluations
    from layertracer.evaluate.files import EvalFile
    from layertracer.files import write_json
    from layertracer.report.evaluation_section import evaluation_section
    from layertracer.report.page import write_page

    both = EvalFile.load(first), EvalFile.load(second)
    found = compare_evaluations(*both)
    title = f"LayerTracer: {first} and {second}"
    write_page(out, title=title, sections=[evaluation_section(both)])
    write_json(out.with_suffix(".json"), [asdict(one) for one in found])
    for one in found:
        typer.echo(one.sentence)
