"""A step of the demo: a command that anyone can type, and how its output is judged."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path


class State(Enum):
    """What a step's output is."""

    DONE = auto()
    OPEN = auto()  # not there, or begun by a command that goes on where it stopped
    STALE = auto()  # damaged, or made from something else than what is there now


@dataclass(frozen=True)
class Step:
    """One command of the main job.

    Attributes:
        title: what it does, for the headline.
        command: as typed, with ``.venv/bin`` on the ``PATH``.
        outputs: what it writes; removed when stale, since commands don't overwrite.
        judge: looks at the outputs, and at nothing else, to say whether there is work to do.
        environment: variables set in front of the command.
    """

    title: str
    command: tuple[str, ...]
    outputs: tuple[Path, ...]
    judge: Callable[[], State]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The command line, to be read and copied."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])

    @property
    def arguments(self) -> list[str]:
        """What is started: the same command, by this Python and the programs beside it."""
        program, *rest = self.command
        if program == "layertracer":
            return [sys.executable, "-m", "layertracer", *rest]
        if program == "python":
            return [sys.executable, *rest]
        return [str(Path(sys.executable).with_name(program)), *rest]

    @property
    def full_environment(self) -> dict[str, str]:
        """The environment of the started process."""
        # torchrun gives each rank one thread, and a warning, unless told otherwise.
        threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
        return {"OMP_NUM_THREADS": threads} | os.environ | self.environment

    def remove_outputs(self) -> None:
        """Delete what the step wrote."""
        for output in self.outputs:
            remove(output)


def remove(path: Path) -> None:
    """Delete a file, a folder or a link; a missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
