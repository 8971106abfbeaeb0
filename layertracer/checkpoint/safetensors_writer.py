"""Writes safetensors files a tensor at a time, so that memory never holds a whole file.

Format: 8 bytes little-endian header length, a JSON header padded with spaces to a multiple of 8,
then the tensors' bytes without gaps (https://github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from layertracer.files import write_json

INDEX = "model.safetensors.index.json"
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True)
class Planned:
    """A tensor to be written."""

    name: str
    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return torch.Size(self.size).numel() * self.dtype.itemsize


def split_into_files(groups: Sequence[Sequence[Planned]], limit: int) -> list[slice]:
    """Return slices of ``groups`` (tensors made together) that fit into ``limit`` bytes each."""
    cuts, filled = [0], 0
    for number, group in enumerate(groups):
        size = sum(tensor.bytes for tensor in group)
        if filled and filled + size > limit:
            cuts.append(number)
            filled = 0
        filled += size
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(groups)], strict=True)]


def file_names(count: int) -> list[str]:
    """Return the names that transformers gives ``count`` weight files."""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def write_file(path: Path, planned: Sequence[Planned], tensors: Iterable[Tensor]) -> Iterator[int]:
    """Write ``tensors`` to ``path`` in the order of ``planned``; yield each one's bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in planned:
        begin, end = end, end + tensor.bytes
        entries[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.size),
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        for plan, tensor in zip(planned, tensors, strict=True):
            if (tuple(tensor.shape), tensor.dtype) != (plan.size, plan.dtype):
                raise ValueError(f"{plan.name}: made {tensor.shape} {tensor.dtype}, want {plan}")
            stream.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            yield plan.bytes


def write_index(folder: Path, files: dict[str, Sequence[Planned]]) -> None:
    """Write the index of several weight files; nothing for one."""
    if len(files) == 1:
        return
    weight_map = {tensor.name: file for file, tensors in files.items() for tensor in tensors}
    total = sum(tensor.bytes for tensors in files.values() for tensor in tensors)
    write_json(
        folder / INDEX,
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
