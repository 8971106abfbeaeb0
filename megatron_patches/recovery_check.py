"""Is a checkpoint whole? Its files against its own index, and every record against its checksum.

What it changes: nothing in Megatron.
Why: a run may be killed, or a disk filled or gone bad, between the data and what points at it.
Megatron's own ``--verify-integrity`` has one rank read everything; here the ranks share the files.
Megatron versions: 0.19.x (torch_dist).
Test: tests/megatron_patches/test_recovery_check.py
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import defaultdict
from pathlib import Path

from layertracer.checkpoint.megatron_reader import read_index

Record = tuple[int, int]
TRACKER = "latest_checkpointed_iteration.txt"


def iterations(folder: Path) -> list[int]:
    """Return the iterations that have a folder in the checkpoint ``folder``, newest first."""
    found = [path.name.removeprefix("iter_") for path in folder.glob("iter_*") if path.is_dir()]
    return sorted((int(name) for name in found if name.isdigit()), reverse=True)


def iteration_path(folder: Path, iteration: int) -> Path:
    """Return where Megatron keeps ``iteration``."""
    return folder / f"iter_{iteration:07d}"


def damage(iteration: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return what is wrong with the checkpoint in ``iteration``, or None.

    Args:
        part: which share of its files to read, of ``parts``; the index is always read.
    """
    try:
        json.loads((iteration / "metadata.json").read_text("utf-8"))
    except (OSError, ValueError):
        return "metadata.json, which is written last, is missing or damaged"
    records: dict[str, list[Record]] = defaultdict(list)
    try:
        for info in read_index(iteration).storage_data.values():
            records[info.relative_path].append((info.offset, info.length))
    except Exception as error:  # a damaged pickle can raise nearly anything
        return f".metadata can't be read ({type(error).__name__})"
    for name in sorted(records)[part::parts]:
        problem = _damaged_file(iteration / name, records[name])
        if problem:
            return f"{name} {problem}"
    return None


def _damaged_file(file: Path, records: list[Record]) -> str | None:
    if not file.is_file():
        return "is missing"
    end = max(offset + length for offset, length in records)
    if file.stat().st_size < end:
        return f"has {file.stat().st_size} bytes of {end}"
    with file.open("rb") as stream:
        for offset, length in sorted(records):
            stream.seek(offset)
            if not _whole_record(stream.read(length)):
                return f"is damaged in the record at byte {offset}"
    return None


def _whole_record(content: bytes) -> bool:
    """Whether a record, which is a zip archive of ``torch.save``, has the checksums it claims."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False
