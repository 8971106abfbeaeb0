"""``layertracer plan``: which layers train."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Arm(StrEnum):
    """What ``--strategy`` takes."""

    FULL = "full"
    TRAIN_SHALLOW = "train-shallow"
    TRAIN_DEEP = "train-deep"
    AUTO = "auto"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("plan")(plan)


def plan(
    source: Annotated[Path, typer.Argument(help="A trace folder, or a Hugging Face model folder.")],
    out: Annotated[Path, typer.Option(help="The plan file to write.")] = Path("plan.json"),
    strategy: Annotated[
        Arm, typer.Option(help="Which part trains; auto: what the trace speaks for.")
    ] = Arm.TRAIN_SHALLOW,
    boundary: Annotated[
        str,
        typer.Option(
            help="Number of shallow layers (14), their share (0.5), or auto: argmax S(b)."
        ),
    ] = "0.5",
    model: Annotated[
        Path | None, typer.Option(help="The model folder, when the traced one has moved.")
    ] = None,
    max_optimizer_gib: Annotated[
        float | None, typer.Option(help="With auto: at most this much optimizer state.")
    ] = None,
    max_step_time_ratio: Annotated[
        float | None, typer.Option(help="With auto: at most this share of full training's step.")
    ] = None,
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
    from layertracer.allocation import Limits, Switches, decide
    from layertracer.files import refuse_existing
    from layertracer.plan_table import print_table

    refuse_existing(out, overwrite=overwrite)
    decision = decide(
        source,
        strategy=strategy.value,
        boundary=boundary,
        model=model,
        switches=Switches(embedding, final_norm, output_layer),
        limits=Limits(max_optimizer_gib, max_step_time_ratio),
    )
    print_table(decision.plan, decision.folder.parameter_counts)
    for reason in decision.reasons:
        typer.echo(reason)
    decision.plan.save(out)
    typer.echo(f"wrote {out}")
