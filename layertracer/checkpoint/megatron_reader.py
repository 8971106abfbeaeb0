"""Reads tensors of a Megatron ``torch_dist`` checkpoint, one at a time, without Megatron.

Optimizer state is left on disk. Layers may be stacked in one tensor (``decoder.layers.X``, first
axis the layer) or stored one by one (``decoder.layers.N.X``), as runs with a plan save them.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from layertracer.checkpoint.megatron_writer import RELEASE, TRACKER
from layertracer.checkpoint.slots import Slot
from layertracer.errors import UserError

_ALLOWED = {
    "torch": {
        "Size",
        *(
            str(dtype).split(".")[1]
            for dtype in vars(torch).values()
            if isinstance(dtype, torch.dtype)
        ),
    },
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    # A training run keeps the ranks' plans in the metadata, to save the next time without asking.
    "torch.distributed.checkpoint.planner": {
        "BytesIOWriteData",
        "SavePlan",
        "TensorWriteData",
        "WriteItem",
        "WriteItemType",
    },
    "pathlib": {"Path", "PosixPath"},
    "collections": {"OrderedDict"},
}


def iteration_folder(checkpoint: Path, iteration: int | None) -> Path:
    """Return the folder of ``iteration``, or of the latest one.

    Raises:
        UserError: there is no complete checkpoint of that iteration.
    """
    tracker = checkpoint / TRACKER
    if not tracker.is_file():
        raise UserError(f"{checkpoint}: no Megatron checkpoint there (no {TRACKER})")
    latest = tracker.read_text("utf-8").strip() if iteration is None else str(iteration)
    if latest != RELEASE and not latest.isdigit():
        raise UserError(f"{tracker}: '{latest}' is neither a step nor '{RELEASE}'")
    folder = checkpoint / (RELEASE if latest == RELEASE else f"iter_{int(latest):07d}")
    if not (folder / ".metadata").is_file():
        raise UserError(f"{folder}: no complete checkpoint there")
    return folder


class _MetadataUnpickler(pickle.Unpickler):
    """Builds checkpoint metadata and nothing else: a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _ALLOWED.get(module, ()):
            raise UserError(f"the checkpoint's .metadata asks for {module}.{name}: not loaded")
        return super().find_class(module, name)


def read_index(folder: Path) -> Metadata:
    """Return the index of one iteration's folder: what is stored, in which file, at which byte.

    Raises:
        UserError: it is damaged.
    """
    file = folder / ".metadata"
    with file.open("rb") as stream:
        try:
            return _MetadataUnpickler(stream).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise UserError(f"{file} is damaged: {error}") from error


class MegatronReader:
    """The model's tensors in one iteration's folder. Safe to read from several threads.

    Raises:
        UserError: the folder's metadata is damaged, or one of its files is missing or truncated.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metadata = read_index(folder)
        self._tensors = self._metadata.state_dict_metadata
        self._check_files()

    def _check_files(self) -> None:
        """Compare the files' sizes with where the metadata says that tensors end."""
        ends: dict[str, tuple[int, str]] = {}
        for index, place in self._metadata.storage_data.items():
            end = (place.offset + place.length, index.fqn)
            ends[place.relative_path] = max(end, ends.get(place.relative_path, end))
        for name, (end, key) in sorted(ends.items()):
            file = self.folder / name
            if not file.is_file():
                raise UserError(f"{file} is missing: it holds tensor {key}")
            if file.stat().st_size < end:
                raise UserError(f"{file} is truncated: tensor {key} ends behind its end")

    def dtype(self, slot: Slot) -> torch.dtype:
        """Return the stored type of the slot's tensor."""
        return self._find(slot)[0].properties.dtype

    def check(self, slot: Slot) -> None:
        """Raise UserError unless the slot's tensor is there, whole and with its size."""
        stored, key, place = self._find(slot)
        size, expected = tuple(stored.size[len(place) :]), slot.size
        rows = slot.rule.megatron in ("embedding.word_embeddings.weight", "output_layer.weight")
        if size != expected and not (rows and size[0] >= expected[0] and size[1:] == expected[1:]):
            raise UserError(
                f"{self.folder}: tensor {key} has size {list(size)}, but the model's is "
                f"{list(expected)}: another model's checkpoint?"
            )
        present = sum(torch.Size(chunk.sizes).numel() for chunk in stored.chunks)
        if present != torch.Size(stored.size).numel():
            raise UserError(f"{self.folder}: tensor {key} is incomplete")

    def read(self, slot: Slot) -> Tensor:
        """Return the slot's tensor, reading only the chunks that hold a part of it.

        Raises:
            UserError: the checkpoint doesn't hold it.
        """
        stored, key, place = self._find(slot)
        axes = len(place)
        tensor = torch.empty(stored.size[axes:], dtype=stored.properties.dtype)
        for chunk in stored.chunks:
            inside = _index_inside(chunk, place)
            if inside is None:
                continue
            piece = self._read_chunk(key, chunk)[inside]
            _at(tensor, chunk.offsets[axes:], chunk.sizes[axes:]).copy_(piece)
        return tensor

    def _find(self, slot: Slot) -> tuple[TensorStorageMetadata, str, tuple[int, ...]]:
        """Return the stored tensor, its key, and the indices that select the slot's part."""
        for key in slot.keys:
            single = key
            if slot.place:
                single = key.replace("decoder.layers.", f"decoder.layers.{slot.place[0]}.", 1)
                stored = self._tensors.get(single)
                if isinstance(stored, TensorStorageMetadata):
                    return stored, single, slot.place[1:]
            stored = self._tensors.get(key)
            if isinstance(stored, TensorStorageMetadata):
                self._check_grid(key, stored, slot)
                return stored, key, slot.place
        raise UserError(f"{self.folder}: tensor {slot.keys[0]} is missing: another model's?")

    def _check_grid(self, key: str, stored: TensorStorageMetadata, slot: Slot) -> None:
        grid = tuple(stored.size[: len(slot.grid)])
        if grid != slot.grid:
            raise UserError(
                f"{self.folder}: tensor {key} is for {list(grid)} layers (and experts), but the "
                f"model has {list(slot.grid)}: another model's checkpoint?"
            )

    def _read_chunk(self, key: str, chunk: ChunkStorageMetadata) -> Tensor:
        place = self._metadata.storage_data[MetadataIndex(key, chunk.offsets)]
        with (self.folder / place.relative_path).open("rb") as stream:
            stream.seek(place.offset)
            content = io.BytesIO(stream.read(place.length))
        tensor = torch.load(content, map_location="cpu", weights_only=True)
        return tensor.reshape(chunk.sizes)


def _index_inside(chunk: ChunkStorageMetadata, place: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the index within ``chunk`` of what lies at ``place``, or None if nothing does."""
    inside = tuple(
        wanted - first for wanted, first in zip(place, chunk.offsets[: len(place)], strict=True)
    )
    within = all(0 <= at < size for at, size in zip(inside, chunk.sizes, strict=False))
    return inside if within else None


def _at(tensor: Tensor, offsets: torch.Size, sizes: torch.Size) -> Tensor:
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(axis, offset, size)
    return tensor
