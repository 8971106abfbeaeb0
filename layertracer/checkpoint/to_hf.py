"""Megatron to Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from torch import Tensor

from layertracer.checkpoint.disk import clear_write_errors
from layertracer.checkpoint.hf_folder import copy_everything_but_weights
from layertracer.checkpoint.megatron_reader import MegatronReader, iteration_folder
from layertracer.checkpoint.progress import byte_progress
from layertracer.checkpoint.safetensors_writer import (
    Planned,
    file_names,
    split_into_files,
    write_file,
    write_index,
)
from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.checkpoint.slots import Slot, slots
from layertracer.checkpoint.to_megatron import DTYPES, THREADS
from layertracer.errors import UserError
from layertracer.files import atomic_directory, refuse_existing, write_json

DEFAULT_SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class Exported:
    """What a conversion read, and which types of weights it cast ("float32 to bfloat16")."""

    checkpoint: Path
    casts: dict[str, int]


@dataclass(frozen=True)
class _Group:
    """A Megatron tensor and the Hugging Face tensors that come out of it."""

    slot: Slot
    planned: tuple[Planned, ...]


def to_hf(
    checkpoint: Path,
    target: Path,
    *,
    iteration: int | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
    threads: int = THREADS,
) -> Exported:
    """Convert a Megatron checkpoint into the model folder ``target``.

    Args:
        iteration: which one; None takes the latest.
        dtype: type of the written weights; None takes those of the original model.
        max_shard_bytes: largest weight file, unless a single tensor is larger.
        threads: how many files are written at once.

    Raises:
        UserError: the checkpoint is missing, incomplete or another model's, or ``target`` exists.
    """
    shape = MegatronShape.load(checkpoint)
    if not (checkpoint / SOURCE / "config.json").is_file():
        raise UserError(f"{checkpoint}/{SOURCE} has no config.json: it came with the conversion")
    refuse_existing(target, overwrite=overwrite)
    reader = MegatronReader(iteration_folder(checkpoint, iteration))
    groups = [_group(slot, shape, dtype) for slot in slots(shape)]
    for group in groups:
        reader.check(group.slot)
    inputs = {"checkpoint": reader.folder}
    total = sum(planned.bytes for group in groups for planned in group.planned)
    with (
        clear_write_errors(target),
        atomic_directory(target, overwrite=overwrite, inputs=inputs) as unfinished,
        byte_progress("writing", total) as written,
    ):
        copy_everything_but_weights(checkpoint / SOURCE, unfinished)
        _name_dtype(unfinished / "config.json", dtype, shape.dtype)
        _write_weights(reader, groups, unfinished, max_shard_bytes, threads, written)
    return Exported(reader.folder, _casts(reader, groups))


def hf_tensors(reader: MegatronReader, slot: Slot) -> Iterator[tuple[str, Tensor]]:
    """Yield the Hugging Face tensors of ``slot`` by name, in the checkpoint's own type."""
    parts = slot.rule.fusion.split(reader.read(slot), slot.shape)
    yield from zip(slot.sources, parts, strict=True)


def _group(slot: Slot, shape: MegatronShape, dtype: str | None) -> _Group:
    planned = [
        Planned(name, size, DTYPES[dtype or shape.other_dtypes.get(name, shape.dtype)])
        for name, size in slot.sources.items()
    ]
    return _Group(slot, tuple(planned))


def _write_weights(
    reader: MegatronReader,
    groups: Sequence[_Group],
    folder: Path,
    max_shard_bytes: int,
    threads: int,
    written: Callable[[int], None],
) -> None:
    parts = split_into_files([group.planned for group in groups], max_shard_bytes)
    files = dict(zip(file_names(len(parts)), (groups[part] for part in parts), strict=True))
    stop = Event()

    def write(name: str) -> None:
        planned = [tensor for group in files[name] for tensor in group.planned]
        for size in write_file(folder / name, planned, _cast_tensors(reader, files[name])):
            written(size)
            if stop.is_set():
                return

    with ThreadPoolExecutor(threads) as pool:
        try:
            list(pool.map(write, files))
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    write_index(
        folder,
        {
            name: [tensor for group in part for tensor in group.planned]
            for name, part in files.items()
        },
    )


def _cast_tensors(reader: MegatronReader, groups: Sequence[_Group]) -> Iterator[Tensor]:
    for group in groups:
        for (_, tensor), planned in zip(hf_tensors(reader, group.slot), group.planned, strict=True):
            yield tensor.to(planned.dtype)


def _casts(reader: MegatronReader, groups: Sequence[_Group]) -> dict[str, int]:
    """Return how many tensors changed their type, by the change."""
    casts: dict[str, int] = {}
    names = {dtype: name for name, dtype in DTYPES.items()}
    for group in groups:
        stored = reader.dtype(group.slot)
        for planned in group.planned:
            if planned.dtype != stored:
                change = f"{names.get(stored, stored)} to {names[planned.dtype]}"
                casts[change] = casts.get(change, 0) + 1
    return casts


def _name_dtype(config: Path, asked: str | None, stored: str) -> None:
    """Name another type in ``config.json`` where one was asked for: else it stays as it was."""
    if asked is None or asked == stored:
        return
    content = json.loads(config.read_text("utf-8"))
    content["dtype" if "dtype" in content else "torch_dtype"] = asked
    write_json(config, content)
