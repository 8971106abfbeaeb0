"""Which Megatron the patches are written for."""

from __future__ import annotations

import importlib.metadata

from layertracer.errors import UserError

SERIES = "0.19."


def check_version() -> None:
    """Raise UserError unless megatron-core is of the series that the patches were written for."""
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        raise UserError("megatron-core is not installed: run `make setup`") from None
    if not version.startswith(SERIES):
        raise UserError(
            f"megatron-core {version}: the patches are written for {SERIES}x; install "
            "'megatron-core[training]==0.19.2'"
        )
