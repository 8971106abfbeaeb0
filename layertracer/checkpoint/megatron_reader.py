"""Reads tensors of a Megatron ``torch_dist`` checkpoint, one at a time, without Megatron.

Optimizer state is left on disk. Layers may be stacked in one tensor (``decoder.layers.X``, first
axis the layer) or stored one by one (``decoder.layers.N.X``), as runs with a plan save them.
"""

from __future__ import annotations

import io
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

from layertracer.checkpoint.megatron_writer import RELEASE, TRACKER
from layertracer.errors import UserError


def iteration_folder(checkpoint: Path, iteration: int | None) -> Path:
    """Return the folder of ``iteration``, or of the latest one.

    Raises:
        UserError: there is no complete checkpoint of that iteration.
    """
    tracker = checkpoint / TRACKER
    if not tracker.is_file():
        raise UserError(f"{checkpoint}: no Megatron checkpoint there (no {TRACKER})")
    latest = tracker.read_text("utf-8").strip()
    if iteration is not None:
        latest = str(iteration)
    folder = checkpoint / (RELEASE if latest == RELEASE else f"iter_{int(latest):07d}")
    if not (folder / ".metadata").is_file():
        raise UserError(f"{folder}: no complete checkpoint there")
    return folder


class MegatronReader:
    """The model's tensors in one iteration's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._metadata = FileSystemReader(folder).read_metadata()
        self._tensors = self._metadata.state_dict_metadata

    def layer(self, layer: int, name: str) -> Tensor:
        """Return ``name`` of decoder layer ``layer``.

        Raises:
            UserError: the checkpoint doesn't hold it.
        """
        single = f"decoder.layers.{layer}.{name}"
        if single in self._tensors:
            return self.whole(single)
        return self._slice(f"decoder.layers.{name}", layer)

    def whole(self, key: str) -> Tensor:
        """Return the whole tensor ``key``.

        Raises:
            UserError: the checkpoint doesn't hold it.
        """
        stored = self._stored(key)
        tensor = torch.empty(stored.size, dtype=stored.properties.dtype)
        for chunk in stored.chunks:
            piece = self._read_chunk(key, chunk.offsets)
            _at(tensor, chunk.offsets, chunk.sizes).copy_(piece.reshape(chunk.sizes))
        return tensor

    def _slice(self, key: str, row: int) -> Tensor:
        """Return ``key[row]``, reading only the chunks that hold a part of it."""
        stored = self._stored(key)
        tensor = torch.empty(stored.size[1:], dtype=stored.properties.dtype)
        for chunk in stored.chunks:
            first, count = chunk.offsets[0], chunk.sizes[0]
            if not first <= row < first + count:
                continue
            piece = self._read_chunk(key, chunk.offsets).reshape(chunk.sizes)[row - first]
            _at(tensor, chunk.offsets[1:], chunk.sizes[1:]).copy_(piece)
        return tensor

    def _stored(self, key: str) -> TensorStorageMetadata:
        stored = self._tensors.get(key)
        if not isinstance(stored, TensorStorageMetadata):
            raise UserError(f"{self.folder}: tensor {key} is missing: another model's checkpoint?")
        return stored

    def _read_chunk(self, key: str, offsets: torch.Size) -> Tensor:
        place = self._metadata.storage_data[MetadataIndex(key, offsets)]
        file = self.folder / place.relative_path
        with file.open("rb") as stream:
            stream.seek(place.offset)
            content = stream.read(place.length)
        if len(content) != place.length:
            raise UserError(f"{file} is truncated: tensor {key} ends behind its end")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _at(tensor: Tensor, offsets: torch.Size, sizes: torch.Size) -> Tensor:
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(axis, offset, size)
    return tensor
