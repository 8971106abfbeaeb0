"""``layertracer plan``: which layers train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertracer.plan import Strategy


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("plan")(plan)


def plan(
    source: Annotated[Path, typer.Argument(help="A trace folder, or a Hugging Face model folder.")],
    out: Annotated[Path, typer.Option(help="The plan file to write.")] = Path("plan.json"),
    strategy: Annotated[
        Strategy, typer.Option(help="Which part trains: the shallow one, the deep one, or all.")
    ] = Strategy.TRAIN_SHALLOW,
    boundary: Annotated[
        str, typer.Option(help="Number of shallow layers (14), or their share of all (0.5).")
    ] = "0.5",
    embedding: Annotated[
        bool | None, typer.Option(help="Train the embedding? Default: with layer 0.")
    ] = None,
    final_norm: Annotated[
        bool | None, typer.Option(help="Train the final norm? Default: with the last layer.")
    ] = None,
    output_layer: Annotated[
        bool | None, typer.Option(help="Train the head? Default: with the last layer.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing plan.")] = False,
) -> None:
    """Say which layers train and which are frozen, and what each costs.

    Prints a table of parameters and training bytes, then writes `plan.json` for `--freeze-plan`.

    Example: `layertracer plan trace/ --strategy train-shallow --boundary 0.5`
    """
    from layertracer.files import refuse_existing
    from layertracer.plan import FreezePlan
    from layertracer.plan_table import parse_boundary, print_table, source_model

    refuse_existing(out, overwrite=overwrite)
    model = source_model(source)
    made = FreezePlan.from_strategy(
        strategy,
        num_layers=model.num_layers,
        tied_embeddings=model.tied_embeddings,
        boundary=parse_boundary(boundary, model.num_layers),
        embedding=embedding,
        final_norm=final_norm,
        output_layer=output_layer,
        model=str(model.path),
    )
    print_table(made, model.parameter_counts)
    made.save(out)
    typer.echo(f"wrote {out}")
