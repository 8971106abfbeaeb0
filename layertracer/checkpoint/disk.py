"""Errors of writing, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from layertracer.errors import UserError


@contextmanager
def clear_write_errors(target: Path) -> Iterator[None]:
    """Turn an error of the file system while ``target`` is written into a UserError.

    Torch's own writer reports a full disk as a RuntimeError, with the cause in its context.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = _system_error(error)
        torch_writer = "inline_container" in str(error) or "PytorchStreamWriter" in str(error)
        if cause is None and not torch_writer:
            raise
        reason = cause.strerror if cause is not None else "writing failed, is the disk full?"
        raise UserError(f"{target} could not be written: {reason}; nothing was kept") from error


def _system_error(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
