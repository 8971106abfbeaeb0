"""``layertracer estimate``: does it fit, and how much faster is it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertracer.estimate.settings import Recompute


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("estimate")(estimate)


def estimate(
    plan: Annotated[Path, typer.Argument(help="The plan file.")],
    model: Annotated[
        Path, typer.Option(help="The Hugging Face model folder, or a config.json alone.")
    ],
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline-parallel size.")] = 1,
    dp: Annotated[int, typer.Option(min=1, help="Data-parallel size.")] = 1,
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens a sequence.")] = 4096,
    micro_batch: Annotated[int, typer.Option(min=1, help="Sequences a micro-batch.")] = 1,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches a step.")] = 1,
    sequence_parallel: Annotated[bool, typer.Option(help="Split the sequence too.")] = False,
    distributed_optimizer: Annotated[bool, typer.Option(help="Shard its state.")] = True,
    bf16: Annotated[bool, typer.Option(help="bf16 weights, else float32.")] = True,
    recompute: Annotated[Recompute, typer.Option(help="Recompute activations.")] = Recompute.NONE,
) -> None:
    """Print memory per rank and step time over full training, for a plan and a parallel layout.

    With pipeline parallelism it also prints a balanced split: with equal stages, train-shallow
    gains no time, because the trained stage sets the pace.

    Example: `layertracer estimate plan.json --model weights/ --tp 2 --pp 2 --dp 4`
    """
    from layertracer.estimate.settings import Layout, read_shape
    from layertracer.estimate.table import print_estimate
    from layertracer.plan import FreezePlan

    loaded = FreezePlan.load(plan)
    shape = read_shape(model)
    loaded.check_model(num_layers=shape.num_layers, tied_embeddings=shape.tied, source=str(plan))
    layout = Layout(
        tensor=tp,
        pipeline=pp,
        data=dp,
        sequence_parallel=sequence_parallel,
        sequence_length=sequence_length,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        distributed_optimizer=distributed_optimizer,
        bf16=bf16,
        recompute=recompute,
    )
    print_estimate(loaded, shape, layout)
