"""The ``layertracer`` command line: every command, and what happens on bad input."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from layertracer import __version__
from layertracer.commands import COMMANDS
from layertracer.errors import EXIT_USER_ERROR, UserError

app = typer.Typer(
    name="layertracer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Find the layers worth training, train only those in Megatron, prove what it did.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"layertracer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    if debug:
        os.environ["LAYERTRACER_DEBUG"] = "1"


for register in COMMANDS:
    register(app)


def main() -> None:
    """Run the command line; a UserError becomes one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        if os.environ.get("LAYERTRACER_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
