"""What surrounds a run: its records folder, and what the checkpoint needs beside it."""

from __future__ import annotations

from argparse import Namespace
from typing import Any


def prepare(args: Namespace, model: Any) -> None:
    """Prepare."""
