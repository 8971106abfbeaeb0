"""``layertracer trace``: where a model executes a task, and how sensitive each layer is."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Precision of the weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Kind(StrEnum):
    """How the context of a prompt is disturbed."""

    MASK = "mask"
    DROP = "drop"
    NOISE = "noise"


class Target(StrEnum):
    """Whose token the probabilities are about."""

    MODEL = "model"
    GIVEN = "given"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("trace")(trace)


def trace(
    model: Annotated[Path, typer.Argument(help="A Hugging Face model folder.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("trace"),
    prompts: Annotated[
        str,
        typer.Option(help="builtin, antsynnet:FILE, cmmlu:DIR, ceval:DIR or FILE.jsonl."),
    ] = "builtin",
    num_prompts: Annotated[int, typer.Option(min=1, help="How many, drawn by the seed.")] = 500,
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before a word pair.")] = 5,
    language: Annotated[
        str | None, typer.Option(help="Templates: en or zh. Default: the source's own.")
    ] = None,
    perturbation: Annotated[
        Kind, typer.Option(help="Replace context tokens, hide them, or add noise to them.")
    ] = Kind.MASK,
    fraction: Annotated[float, typer.Option(help="Share of the context that is hit.")] = 0.3,
    noise_scale: Annotated[
        float, typer.Option(help="Standard deviation of the noise, relative to the embedding.")
    ] = 1.0,
    null_control: Annotated[
        bool, typer.Option(help="Also compare two draws of the perturbation (1.5x the time).")
    ] = True,
    target: Annotated[
        Target, typer.Option(help="Probability of the model's own answer, or of the given one.")
    ] = Target.MODEL,
    truncate: Annotated[bool, typer.Option(help="Cut too long prompts; keep their end.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts, perturbation, bootstrap.")] = 0,
    bootstrap: Annotated[int, typer.Option(min=1, help="Resamples for the intervals.")] = 1000,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the weights.")] = Dtype.FLOAT32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per batch: speed and memory, not numbers.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code from the folder.")
    ] = False,
    page: Annotated[bool, typer.Option(help="Also write trace.html and pictures.")] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing trace.")] = False,
) -> None:
    """Find where in depth a model does a task, and how sensitive each layer is.

    Every layer's state at the answer is decoded by the model's own head; a part of the prompt is
    then disturbed, to see how far each layer's answer moves. A killed trace goes on where it
    stopped.

    Example: `layertracer trace models/smollm2 --out trace --num-prompts 64`
    """
    from pydantic import ValidationError

    from layertracer.errors import UserError
    from layertracer.report.trace_figures import write_trace_page
    from layertracer.trace.files import TraceSettings
    from layertracer.trace.printing import print_trace
    from layertracer.trace.runner import run_trace

    try:
        settings = TraceSettings(
            prompts=prompts,
            num_prompts=num_prompts,
            shots=shots,
            language=language,
            perturbation=perturbation.value,
            fraction=fraction,
            noise_scale=noise_scale,
            null_control=null_control,
            target=target.value,
            truncate=truncate,
            seed=seed,
            bootstrap=bootstrap,
            dtype=dtype.value,
        )
    except ValidationError as error:
        fault = error.errors()[0]
        flag = str(fault["loc"][0]).replace("_", "-")
        raise UserError(f"--{flag} {fault['input']}: {fault['msg']}") from error
    made = run_trace(
        model,
        out,
        settings,
        batch_tokens=batch_tokens,
        device=device,
        trust_code=trust_remote_code,
        overwrite=overwrite,
    )
    if page:
        write_trace_page(made, out / "trace.html")
    print_trace(made)
    typer.echo(f"wrote {out}")
