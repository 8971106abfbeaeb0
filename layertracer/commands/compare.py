"""``layertracer compare``: two traces, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("compare")(compare)


def compare(
    first: Annotated[Path, typer.Argument(help="A trace folder, for example before training.")],
    second: Annotated[Path, typer.Argument(help="Another, for example after it.")],
    out: Annotated[
        Path, typer.Option(help="The page to write; the numbers go beside it as .json.")
    ] = Path("compare.html"),
    overwrite: Annotated[bool, typer.Option(help="Replace an existing page.")] = False,
) -> None:
    """Show what changed from one trace to another, per layer, with 95% intervals.

    Traces of the same prompts are compared prompt by prompt, which shows smaller changes.

    Example: `layertracer compare trace-before trace-after --out compare.html`
    """
    from layertracer.files import refuse_existing
    from layertracer.report.compare_section import interval_text, write_comparison

    refuse_existing(out, overwrite=overwrite)
    refuse_existing(out.with_suffix(".json"), overwrite=overwrite)
    found = write_comparison(first, second, out)
    typer.echo(f"task particle moved by {interval_text(found.task_particle, 2)} layers")
    typer.echo(f"layer-wise sensitivity changed by {interval_text(found.ls_drift)} of its size")
    clear = [str(layer.layer) for layer in found.layers if layer.clear]
    typer.echo(f"layers whose sensitivity changed clearly: {', '.join(clear) or 'none'}")
    for setting in found.other_settings:
        typer.echo(f"note: settings differ: {setting}")
    typer.echo(f"wrote {out}")
