"""``layertracer doctor``: is this machine ready?"""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show versions, GPUs and network, and for each problem the one-line remedy.

    Exit code 1 when something required is missing, so that it serves as a health check.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from layertracer.doctor import examine

    findings = examine()
    if as_json:
        typer.echo(json.dumps([finding.model_dump() for finding in findings], indent=2))
    else:
        table = Table("what", "value", "remedy")
        for finding in findings:
            style = "red" if finding.is_problem else "yellow" if finding.remedy else None
            table.add_row(finding.name, finding.value, finding.remedy or "", style=style)
        Console().print(table)
    if any(finding.is_problem for finding in findings):
        raise typer.Exit(1)
