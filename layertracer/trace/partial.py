"""The finished part of an unfinished trace, so that the next start does the rest."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from layertracer.files import atomic_file, write_json
from layertracer.trace.measure import Measured


class PartialTrace:
    """Batches already measured, in ``<out>.partial``; dropped when it is of another trace.

    Args:
        identity: everything that decides the numbers; a difference in it starts afresh.
    """

    def __init__(self, out: Path, identity: dict[str, object]) -> None:
        self.folder = out.with_name(f"{out.name}.partial")
        content = json.dumps(identity, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha256(content.encode()).hexdigest()
        key = self.folder / "identity.json"
        if not key.is_file() or json.loads(key.read_text("utf-8")).get("sha256") != digest:
            shutil.rmtree(self.folder, ignore_errors=True)
            write_json(key, {"sha256": digest})
        self.batches = [b for b in map(_read, sorted(self.folder.glob("*.npz"))) if b is not None]

    @property
    def done(self) -> set[int]:
        """Indices of the prompts already measured."""
        return {int(index) for batch in self.batches for index in batch.index}

    def add(self, measured: Measured) -> None:
        """Store a batch."""
        arrays = {name: value for name, value in asdict(measured).items() if value is not None}
        with (
            atomic_file(self.folder / f"{measured.index.min():08d}.npz") as temporary,
            temporary.open("wb") as stream,
        ):
            np.savez(stream, **arrays)
        self.batches.append(measured)

    def remove(self) -> None:
        """Delete it, once the whole trace is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(file: Path) -> Measured | None:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return Measured(**{"js_null": None, **arrays})
    except (OSError, ValueError, TypeError, zipfile.BadZipFile):
        return None  # damaged: measured again
