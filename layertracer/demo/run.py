"""Running the steps in order: what is done is skipped, what is stopped goes on next time."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil
from rich.console import Console
from rich.markup import escape

from layertracer.demo.step import State, Step, remove
from layertracer.errors import UserError

_PATIENCE = 45.0  # seconds to clean up before each stronger signal; torchrun gives its ranks 30


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock, and of processor time of the command and all it started."""

    seconds: float
    cpu_seconds: float


def run_steps(folder: Path, steps: Sequence[Step], console: Console) -> Spent:
    """Run what is not done yet; return what all of it took.

    Raises:
        UserError: a command failed, or another demo is at work in ``folder``.
        KeyboardInterrupt: stopped, after the command at work has cleaned up.
    """
    began, cpu_began = time.monotonic(), _cpu_seconds_of_children()
    with _only_one(folder), _termination_as_interrupt():
        remove_abandoned(folder)
        for number, step in enumerate(steps, 1):
            _run_step(f"{number}/{len(steps)}", step, console)
    return Spent(time.monotonic() - began, _cpu_seconds_of_children() - cpu_began)


def _run_step(number: str, step: Step, console: Console) -> None:
    state = step.judge()
    if state is State.DONE:
        _say(console, f"[bold]{number}  {step.title}[/]: done before, skipped")
        return
    _say(console, f"\n[bold]{number}  {step.title}[/]")
    if state is State.STALE:
        _say(console, f"      {step.outputs[0]} is damaged or out of date: made again")
        step.remove_outputs()
    _say(console, f"[cyan]$ {escape(step.shown)}[/]")
    spent = _run_command(number, step)
    if step.judge() is not State.DONE:
        raise UserError(
            f"step {number} ended without an error, but its output is not complete: remove "
            f"{step.outputs[0]} and run the demo again"
        )
    _say(console, f"      {spent.seconds:.0f} s ({spent.cpu_seconds:.0f} s of processor time)")


def _say(console: Console, text: str) -> None:
    """Print without breaking lines, so that commands can be copied."""
    console.print(text, highlight=False, soft_wrap=True)


def _run_command(number: str, step: Step) -> Spent:
    began, cpu_began = time.monotonic(), _cpu_seconds_of_children()
    with subprocess.Popen(step.arguments, env=step.full_environment) as child:
        try:
            code = child.wait()
        except BaseException:
            _stop(child)
            raise
    if code:
        raise UserError(
            f"step {number} ({step.command[0]}) failed with exit code {code}, see above: mend the "
            "cause and run the demo again; finished steps are skipped"
        )
    return Spent(time.monotonic() - began, _cpu_seconds_of_children() - cpu_began)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Let ``child`` clean up; a Ctrl-C on the terminal has reached it already."""
    patience = 1.0
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        with suppress(subprocess.TimeoutExpired):
            child.wait(patience)
            return
        child.send_signal(signal_number)
        patience = _PATIENCE
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        _kill_with_descendants(child.pid)
        child.wait()


def _kill_with_descendants(pid: int) -> None:
    """Kill a process and all it started: torchrun's ranks would live on without it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def remove_abandoned(folder: Path) -> None:
    """Delete unfinished files and folders in ``folder`` whose writer was killed."""
    for place in (folder, *(inner for inner in folder.iterdir() if inner.is_dir())):
        for unfinished in place.glob(".*.tmp-*"):
            writer = unfinished.name.rpartition("-")[2]
            if writer.isdigit() and not Path("/proc", writer).exists():
                remove(unfinished)


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder``, which the system gives back when this process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"--dir {folder}: another demo is at work there") from error
        os.set_inheritable(lock.fileno(), False)
        yield


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the command at work is stopped too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
