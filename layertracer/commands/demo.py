"""``layertracer demo``: the whole loop on real weights and real text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("demo")(demo)


def demo(
    folder: Annotated[Path, typer.Option("--dir", help="The folder to write.")] = Path("demo"),
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 24,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of the trace.")] = 64,
) -> None:
    """Run the whole loop: trace, plan, convert, train, convert back, evaluate, report.

    Each step is a command that is printed before it runs, yours to try on your own model. What is
    done already is skipped, so the demo can be stopped and started again at any time.

    Example: `layertracer demo --dir demo`
    """
    from rich.console import Console

    from layertracer.demo.run import run_steps
    from layertracer.demo.steps import Size, main_job

    console = Console()
    try:
        spent = run_steps(folder, main_job(folder, Size(prompts, steps)), console)
    except KeyboardInterrupt:
        typer.echo("stopped; nothing is broken: the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    console.print(
        f"\n{spent.seconds / 60:.1f} minutes, {spent.cpu_seconds / 60:.1f} of processor time",
        highlight=False,
    )
    console.print(f"[bold]report: {folder / 'report.html'}[/]", highlight=False, soft_wrap=True)
