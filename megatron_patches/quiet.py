"""Megatron's own messages go to a file, so that a run's output can be read.

What it changes: ``print`` inside Megatron's training modules writes rank 0's lines to
``<save>/layertracer/megatron.log``; what tells of checkpoints is shown too. The memory lines, which
cost a pass over the arguments each, are left out. With ``LAYERTRACER_DEBUG`` nothing is changed.
Why: 700 lines of arguments and a dozen lines a step hide the one line that matters.
Megatron versions: 0.19.x.
Test: tests/distributed/test_launch.py
"""

from __future__ import annotations

import builtins
import logging
import os
import re
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

_MODULES = (
    "arguments",
    "initialize",
    "training",
    "checkpointing",
    "global_vars",
    "one_logger_utils",
    "theoretical_memory_usage",
    "utils.common_utils",
    "models.dist_utils",
)
_SHOWN = re.compile(r"(successfully (saved|loaded)|ERROR)")


def quiet_imports() -> None:
    """Drop warnings that a user can't act on: missing GPU packages, deprecations inside others."""
    if os.environ.get("LAYERTRACER_DEBUG"):
        return
    warnings.filterwarnings("ignore")
    for name in ("torch.utils.cpp_extension", "megatron"):
        logging.getLogger(name).setLevel(logging.ERROR)


def apply(folder: Path | None) -> None:
    """Send Megatron's messages to ``folder/megatron.log`` (None: leave them out)."""
    if os.environ.get("LAYERTRACER_DEBUG"):
        return
    first = int(os.environ.get("RANK", "0")) == 0
    log = (folder / "megatron.log").open("a", encoding="utf-8") if folder and first else None

    def write(*values: Any, file: TextIO | None = None, **options: Any) -> None:
        text = " ".join(map(str, values))
        if file not in (None, sys.stdout) or (first and _SHOWN.search(text)):
            builtins.print(*values, file=file, **options)
        if log is not None:
            log.write(text + "\n")
            log.flush()

    for name in _MODULES:
        import_module(f"megatron.training.{name}").print = write
    from megatron.training import training

    training.report_memory = training.report_theoretical_memory = lambda *_, **__: None
