"""One nightly job at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_one(path: Path) -> Iterator[str | None]:
    """Hold the lock file; yield None, or who holds it already.

    The kernel frees the lock when the process ends, however it ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            yield stream.read().strip() or "another process"
            return
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {os.uname().nodename}")
        stream.flush()
        yield None
