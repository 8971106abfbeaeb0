"""``layertracer nightly``: new checkpoints evaluated and compared with a pinned baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertracer.commands.eval import Dtype, Prompt


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("nightly")(nightly)


def nightly(
    watch: Annotated[Path, typer.Option(help="The training's --save folder.")],
    history: Annotated[Path, typer.Option(help="The data base; made where there is none.")] = Path(
        "history.sqlite"
    ),
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of evaluations and dashboard. Default: beside the history."),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Of builtin, ceval and cmmlu, separated by commas.")
    ] = "builtin",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the questions, as in `layertracer eval`.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="logit, generate, or both.")] = "logit",
    shots: Annotated[int, typer.Option(min=0, max=5, help="Worked examples.")] = 0,
    prompt: Annotated[Prompt, typer.Option(help="Whose wording.")] = Prompt.OFFICIAL,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many questions of each subject.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Checkpoint to compare with, like iter_0000100. Default: the earliest."),
    ] = None,
    min_effect: Annotated[
        float, typer.Option(min=0, help="Smallest fall in points that is a regression.")
    ] = 1.0,
    noise: Annotated[
        bool, typer.Option(help="Evaluate the first checkpoint twice, for the noise floor.")
    ] = True,
    trace: Annotated[bool, typer.Option("--trace", help="Trace each checkpoint too.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try checkpoints again that failed before.")
    ] = False,
    notify_command: Annotated[
        str | None, typer.Option(help="Shell command that gets the one-line summary on stdin.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Precision of the weights.")] = Dtype.FLOAT32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per batch.")] = None,
) -> None:
    """Evaluate new Megatron checkpoints, keep a history, and flag what got worse.

    Exit code 0: fine, 1: a regression, 2: something failed. Safe to start again at any time: what
    is done is skipped, a second job at once leaves, a damaged checkpoint is marked and passed over.

    Example: `layertracer nightly --watch cpt --history nightly/history.sqlite --notify-command
    'mail -s eval team@example.org'`
    """
    import os

    os.environ.setdefault("TQDM_DISABLE", "1")  # lm-eval would draw a bar for every subject
    from layertracer.commands.eval import eval_settings
    from layertracer.evaluate.nightly.job import run_nightly
    from layertracer.evaluate.nightly.settings import Nightly
    from layertracer.evaluate.runner import Machine

    settings = eval_settings(
        tasks=tasks,
        protocols=protocol,
        shots=shots,
        prompt=prompt.value,
        limit=limit,
        dtype=dtype.value,
    )
    outcome = run_nightly(
        Nightly(
            watch=watch,
            history=history,
            out=out or history.parent,
            settings=settings,
            data_dir=data_dir,
            baseline=baseline,
            min_effect=min_effect / 100,
            noise=noise,
            trace=trace,
            retry=retry_failed,
            notify=notify_command,
            machine=Machine(device, batch_tokens),
        )
    )
    typer.echo(outcome.summary)
    raise typer.Exit(int(outcome.status))
