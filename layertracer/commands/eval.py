"""``layertracer eval``: C-Eval, CMMLU and the built-in questions, by logits and by generation."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from layertracer.evaluate.files import EvalSettings


class Prompt(StrEnum):
    """Whose wording of the prompt."""

    OFFICIAL = "official"
    LM_EVAL = "lm-eval"


class Dtype(StrEnum):
    """Precision of the weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("eval")(evaluate)


def evaluate(
    model: Annotated[Path, typer.Argument(help="A Hugging Face model folder.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("eval"),
    tasks: Annotated[
        str, typer.Option(help="Of builtin, ceval and cmmlu, separated by commas.")
    ] = "builtin",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder in C-Eval layout (val/, dev/) or CMMLU layout (test/, dev/), or with both "
            "in ceval/ and cmmlu/; csv or parquet. Default: the hub."
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="logit (probability of each letter), generate (text), or both.")
    ] = "logit",
    shots: Annotated[int, typer.Option(min=0, max=5, help="Worked examples.")] = 0,
    prompt: Annotated[
        Prompt, typer.Option(help="The benchmark's own wording, or that of lm-eval's tasks.")
    ] = Prompt.OFFICIAL,
    chat_template: Annotated[
        bool, typer.Option("--chat-template", help="Use the tokenizer's chat template.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many questions of each subject.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of a generated answer.")] = 32,
    by_subject: Annotated[bool, typer.Option("--by-subject", help="Print every subject.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the weights.")] = Dtype.FLOAT32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per batch: speed and memory, not answers.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run model code from the folder.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing evaluation.")] = False,
) -> None:
    """Ask a model Chinese multiple-choice questions; chance and 95% interval beside each number.

    A killed evaluation goes on where it stopped. Several processes share the work:
    `torchrun --nproc-per-node 8 -m layertracer eval …`

    Example: `layertracer eval models/smollm2 --tasks ceval,cmmlu --data-dir data --shots 5`
    """
    import os

    os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval would draw a bar for every subject
    from layertracer.evaluate.printing import print_evaluation
    from layertracer.evaluate.runner import Machine, run_evaluation

    settings = eval_settings(
        tasks=tasks,
        protocols=protocol,
        shots=shots,
        prompt=prompt.value,
        chat_template=chat_template,
        limit=limit,
        max_new_tokens=max_new_tokens,
        dtype=dtype.value,
    )
    made = run_evaluation(
        model,
        out,
        settings,
        data_dir=data_dir,
        machine=Machine(device, batch_tokens, trust_remote_code),
        overwrite=overwrite,
    )
    if made is not None:
        print_evaluation(made, by_subject=by_subject)
        typer.echo(f"wrote {out}")


def eval_settings(tasks: str, protocols: str, **others: Any) -> EvalSettings:
    """Return checked settings; ``tasks`` and ``protocols`` are lists with commas.

    Raises:
        UserError: one is not allowed; the message names the flag.
    """
    from pydantic import ValidationError

    from layertracer.errors import UserError
    from layertracer.evaluate.files import EvalSettings

    try:
        return EvalSettings(tasks=_names(tasks), protocols=_names(protocols), **others)
    except ValidationError as error:
        fault = error.errors()[0]
        flag = str(fault["loc"][0]).replace("protocols", "protocol").replace("_", "-")
        raise UserError(f"--{flag} {fault['input']}: {fault['msg']}") from error


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
