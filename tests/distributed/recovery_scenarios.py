"""Runs with damaged checkpoints and failing saves; started by test_recovery.py."""

from __future__ import annotations

import io
import resource
import shutil
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from layertracer.errors import UserError
from tests.distributed.session import Run, Session

# Steps long enough that a run can be stopped between two of them.
FLAGS = ["--pipeline-model-parallel-size", "2", "--save-interval", "2", "--train-iters", "6"]
FLAGS += ["--global-batch-size", "32"]


def iteration(folder: Path, step: int) -> Path:
    """Return the folder of ``step``."""
    return folder / f"iter_{step:07d}"


def flip_a_byte(folder: Path) -> None:
    """Change one byte in the middle of the largest file."""
    file = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_short(folder: Path) -> None:
    """Drop the end of a file."""
    file = sorted(folder.glob("*.distcp"))[0]
    file.write_bytes(file.read_bytes()[:-100])


def lose_the_index(folder: Path) -> None:
    """Remove what says where each tensor is."""
    (folder / ".metadata").unlink()


def never_finished(folder: Path) -> None:
    """Remove the file that is written last."""
    (folder / "metadata.json").unlink()


class Recovery:
    """The session with what these runs share."""

    def __init__(self, session: Session) -> None:
        self.session = session
        while not (session.folder / "corpus.idx").is_file():  # the first rank writes it
            time.sleep(0.05)

    def alone(self, action: Any) -> None:
        """Do ``action`` on the first rank while the others wait."""
        if self.session.rank == 0:
            action()
        torch.distributed.barrier()

    def train(self, name: str, flags: list[str], **hooks: Any) -> None:
        """Train; what is printed is kept in the run's facts."""
        printed = io.StringIO()

        def keep(run: Run, *_: Any) -> None:
            run.facts["printed"] = printed.getvalue()

        with redirect_stdout(printed):
            self.session.train(name, [*FLAGS, *flags], at_end=keep, **hooks)

    def copy_of(self, whole: Path, name: str, *damages: tuple[int, Any]) -> Path:
        """Copy the checkpoints of a run and damage some."""
        copy = self.session.folder / name

        def make() -> None:
            shutil.copytree(whole, copy)
            for step, damage in damages:
                damage(iteration(copy, step))

        self.alone(make)
        return copy


def damaged(session: Session) -> None:
    """Load checkpoints of which the latest, or more, are damaged."""
    work = Recovery(session)
    whole = session.folder / "whole"
    work.train("whole", ["--save", str(whole)])

    for name, damages in {
        "flipped": [(6, flip_a_byte)],
        "short-and-lost": [(6, cut_short), (4, lose_the_index)],
        "unfinished": [(6, never_finished)],
    }.items():
        copy = work.copy_of(whole, name, *damages)
        work.train(name, ["--save", str(copy), "--load", str(copy)])

    source = work.copy_of(whole, "source", (6, flip_a_byte))
    work.train("from-source", ["--load", str(source)])

    hopeless = work.copy_of(whole, "hopeless", *((step, flip_a_byte) for step in (2, 4, 6)))
    try:
        work.train("hopeless", ["--load", str(hopeless)])
    except UserError as error:
        session.record("hopeless-error", str(error))


def failing(session: Session) -> None:
    """Save where saving fails at step 4, for the reasons that there are."""
    work = Recovery(session)

    def files_small_at_step_4(_: Run, step: int, *__: Any) -> None:
        size = 4096 if step == 3 and session.rank == 1 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    rank_fails = session.folder / "rank-fails"
    work.train("rank-fails", ["--save", str(rank_fails)], before_step=files_small_at_step_4)

    index_fails = session.folder / "index-fails"
    # A folder in the place of the index: opening it fails on the rank that writes it, only.
    work.alone(lambda: (iteration(index_fails, 4) / ".metadata").mkdir(parents=True))
    work.train("index-fails", ["--save", str(index_fails)])

    full = session.folder / "full"
    if full.is_mount():  # what the test could do as root only
        work.train("full", ["--save", str(full)])
