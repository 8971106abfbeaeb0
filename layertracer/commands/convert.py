"""``layertracer convert``: Hugging Face to Megatron and back."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

convert = typer.Typer(
    no_args_is_help=True, help="Hugging Face to Megatron and back, bit by bit the same weights."
)


class Dtype(StrEnum):
    """Types of weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(convert, name="convert")


@convert.command("to-megatron")
def to_megatron(
    model: Annotated[Path, typer.Argument(help="A Hugging Face model folder (safetensors).")],
    out: Annotated[Path, typer.Argument(help="The checkpoint folder to write.")],
    tensor_parallel: Annotated[
        int,
        typer.Option(
            min=1,
            help="Largest tensor-parallel size to train under. Where it doesn't divide the heads, "
            "groups of zero heads are added; they change nothing and are taken out again.",
        ),
    ] = 1,
    dtype: Annotated[Dtype | None, typer.Option(help="Cast the weights. Default: keep.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing checkpoint.")] = False,
) -> None:
    """Write a Megatron checkpoint that `--load` takes under any parallel layout.

    One process, no GPU, no model in memory.

    Example: `layertracer convert to-megatron weights/ megatron/`
    """
    from layertracer.checkpoint.to_megatron import to_megatron as run

    shape = run(
        model,
        out,
        tensor_parallel=tensor_parallel,
        dtype=dtype.value if dtype else None,
        overwrite=overwrite,
    )
    if shape.padded_query_groups:
        typer.echo(
            f"added {shape.padded_query_groups} query group(s) of zeros, so that tensor "
            f"parallelism {tensor_parallel} divides the heads; convert to-hf takes them out again"
        )
    if dtype is not None and (dtype.value != shape.dtype or shape.other_dtypes):
        typer.echo(f"cast the weights from {shape.dtype} to {dtype.value}")
    typer.echo(f"wrote {out}")


@convert.command("to-hf")
def to_hf(
    checkpoint: Annotated[Path, typer.Argument(help="A Megatron checkpoint folder.")],
    out: Annotated[Path, typer.Argument(help="The Hugging Face model folder to write.")],
    iteration: Annotated[int | None, typer.Option(help="Which one. Default: the latest.")] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type of the weights. Default: the original model's.")
    ] = None,
    max_shard_gb: Annotated[float, typer.Option(help="Largest file, in GB.")] = 5.0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing folder.")] = False,
) -> None:
    """Write a Hugging Face model from a converted or trained checkpoint.

    Config, tokenizer and chat template are those of the original model.

    Example: `layertracer convert to-hf cpt/ hf/`
    """
    from layertracer.checkpoint.to_hf import to_hf as run

    exported = run(
        checkpoint,
        out,
        iteration=iteration,
        dtype=dtype.value if dtype else None,
        max_shard_bytes=int(max_shard_gb * 1e9),
        overwrite=overwrite,
    )
    for change, count in exported.casts.items():
        typer.echo(f"cast {count} tensor(s) from {change}")
    typer.echo(f"wrote {out} from {exported.checkpoint}")


@convert.command("verify")
def verify(
    model: Annotated[Path, typer.Argument(help="A Hugging Face model folder.")],
    checkpoint: Annotated[Path, typer.Argument(help="A Megatron checkpoint folder.")],
    iteration: Annotated[int | None, typer.Option(help="Which one. Default: the latest.")] = None,
    logits: Annotated[
        bool, typer.Option(help="Run both models too: float32, both in memory one after another.")
    ] = True,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the long text (at most the model's context).")
    ] = 4096,
    text: Annotated[Path | None, typer.Option(help="A text file. Default: one of ours.")] = None,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel size of the run.")] = 1,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline-parallel size of the run.")] = 1,
    tolerance: Annotated[float, typer.Option(help="Largest difference of a logit.")] = 1e-4,
) -> None:
    """Prove that a model folder and a checkpoint are the same model.

    Weights bit by bit; then both are run on real text, short and long, and every layer's output is
    compared. Exit code 1 where they differ.

    Example: `layertracer convert verify weights/ megatron/`
    """
    from layertracer.checkpoint.sidecar import MegatronShape
    from layertracer.checkpoint.verify import Layout, compare_outputs, compare_weights
    from layertracer.checkpoint.verify_table import print_outputs, print_weights

    same = print_weights(compare_weights(model, checkpoint, iteration=iteration))
    if logits:
        longest = min(tokens, MegatronShape.load(checkpoint).max_position_embeddings)
        reports = compare_outputs(
            model,
            checkpoint,
            lengths=sorted({min(64, longest), longest}),
            text=text,
            iteration=iteration,
            layout=Layout(tp, pp),
        )
        same = print_outputs(reports, tolerance) and same
    raise typer.Exit(0 if same else 1)
