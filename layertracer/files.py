"""Writing files so that nothing half-written is ever taken for complete."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from layertracer import __version__
from layertracer.errors import UserError

PROVENANCE = "made_by.json"


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it to ``path`` if the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(
    path: Path | str, *, overwrite: bool = False, inputs: dict[str, Any] | None = None
) -> Iterator[Path]:
    """Yield a temporary directory beside ``path``; rename it if the block succeeds.

    The directory gets a ``made_by.json`` that says which command, version and ``inputs`` made it.

    Raises:
        UserError: ``path`` exists and is not empty, and ``overwrite`` is not set.
    """
    path = Path(path)
    refuse_existing(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        write_provenance(temporary, inputs or {})
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(path: Path | str, *, overwrite: bool = False) -> None:
    """Raise UserError when ``path`` holds something that would be lost."""
    path = Path(path)
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another name or pass --overwrite")


def write_json(path: Path | str, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON, under a temporary name first."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_model[Model: BaseModel](kind: type[Model], file: Path) -> Model:
    """Read JSON ``file`` as ``kind``.

    Raises:
        UserError: it is not JSON, or not valid; the message names the file and the place in it.
    """
    try:
        return kind.model_validate(json.loads(file.read_text("utf-8")))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise UserError(f"{file}: {place}: {fault['msg']}") from error
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from error


def provenance(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return which command, version and inputs are at work now, and since when."""
    return {
        "command": ["layertracer", *sys.argv[1:]],
        "version": __version__,
        "inputs": {key: str(value) for key, value in inputs.items()},
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_provenance(directory: Path | str, inputs: dict[str, Any]) -> None:
    """Write ``made_by.json`` into ``directory``."""
    write_json(Path(directory) / PROVENANCE, provenance(inputs))
