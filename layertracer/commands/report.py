"""``layertracer report``: one page for a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("report")(report)


def report(
    run: Annotated[
        Path, typer.Argument(help="Folder with trace/, plan.json, cpt/, eval-before/, eval-after/.")
    ] = Path(),
    out: Annotated[
        Path | None, typer.Option(help="The page to write. Default: report.html in the folder.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace folder.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan file.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model the plan is for.")] = None,
    training: Annotated[Path | None, typer.Option(help="The --save folder of a run.")] = None,
    evaluations: Annotated[
        list[Path] | None, typer.Option("--eval", help="An evaluation; repeat in order.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Headline of the page.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing page.")] = False,
) -> None:
    """Write one self-contained HTML page, and a PNG of every chart beside it.

    Shows the trace, the plan, loss, gradient norms, memory and the evaluation, as far as they are
    in the folder.

    Example: `layertracer report demo/`
    """
    from layertracer.report.build import RunParts, write_report

    parts = RunParts(trace, plan, model, training, evaluations or []).found_in(run)
    page = out or run / "report.html"
    shown = write_report(
        parts, page, title=title or f"LayerTracer: {run.resolve().name}", overwrite=overwrite
    )
    typer.echo(f"wrote {page} ({', '.join(shown).lower()})")
