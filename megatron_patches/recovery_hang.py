"""A step that does not end: the process says where it waits and ends, so that torchrun restarts.

What it changes: wraps ``megatron.training.training.train_step``; after the first step a thread
watches each one. The limit is Megatron's ``--distributed-timeout-seconds-after-init``, else
``--distributed-timeout-minutes``.
Why: gloo's point-to-point calls, which pipelines use, keep the time-out they were made with, and a
rank that waits for data or storage is in no collective at all.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_recovery_hang.py
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from argparse import Namespace
from typing import Any

EXIT_CODE = 75  # sysexits.h: a temporary failure, try again


def limit(args: Namespace) -> float:
    """Return the seconds that a step may take."""
    after_init = args.distributed_timeout_seconds_after_init
    return after_init if after_init is not None else 60.0 * args.distributed_timeout_minutes


class Watch:
    """Ends the process when a step takes longer than ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began: float | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(min(1.0, self.seconds / 4))
            began = self.began
            if began is not None and time.monotonic() - began > self.seconds:
                self._end()

    def _end(self) -> None:
        rank = os.environ.get("RANK", "0")
        print(
            f"error: rank {rank}: no end of the step in {self.seconds:.0f} s: a rank hangs or is "
            "gone; ending, so that all start again from the last checkpoint. It waits here:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(all_threads=True)
        os._exit(EXIT_CODE)  # the main thread is in a call that does not return


def apply() -> None:
    """Wrap Megatron's function."""
    from megatron.training import training

    step = training.train_step
    watch: Watch | None = None

    def train_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal watch
        if watch is not None:
            watch.began = time.monotonic()
        answer = step(*args, **kwargs)
        if watch is None:  # the first step may compile and connect
            watch = Watch(limit(training.get_args()))
        watch.began = None
        return answer

    training.train_step = train_step
