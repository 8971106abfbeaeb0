"""Writes a Megatron ``torch_dist`` checkpoint: one process, no GPU, no model built, streaming.

Each tensor is read, fused and written when its turn comes, so memory holds one layer's largest
tensor at a time. Any tensor- or pipeline-parallel size can load the result.
"""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint import save as dcp_save
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

TRACKER = "latest_checkpointed_iteration.txt"
RELEASE = "release"


@dataclass(frozen=True)
class Chunk:
    """One piece to write: ``make()`` returns it; it lies at ``offsets`` of the tensor ``key``."""

    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    global_size: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return torch.Size(self.sizes).numel() * self.dtype.itemsize


class _StreamingPlanner(DefaultSavePlanner):
    """Plans from descriptions instead of tensors, and makes each tensor when it is written."""

    def __init__(
        self, chunks: list[Chunk], objects: dict[str, Any], written: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._objects, self._written = objects, written
        self._chunks = {MetadataIndex(c.key, torch.Size(c.offsets)): c for c in chunks}

    def create_local_plan(self) -> SavePlan:
        items = [
            WriteItem(
                index=index,
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes)),
                    properties=TensorProperties(dtype=c.dtype),
                    size=torch.Size(c.global_size),
                ),
            )
            for index, c in self._chunks.items()
        ]
        items += [WriteItem(MetadataIndex(k), WriteItemType.BYTE_IO) for k in self._objects]
        self.plan = SavePlan(items, planner_data={})
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        if write_item.type is WriteItemType.BYTE_IO:
            buffer = io.BytesIO()
            torch.save(self._objects[write_item.index.fqn], buffer)
            return buffer
        chunk = self._chunks[MetadataIndex(write_item.index.fqn, write_item.index.offset)]
        tensor = chunk.make().reshape(chunk.sizes)
        # The checkpoint library does not compare what it is handed with what was announced.
        if tensor.dtype != chunk.dtype:
            raise ValueError(f"{chunk.key}: made {tensor.dtype}, announced {chunk.dtype}")
        self._written(chunk.bytes)
        return tensor


def write_release(
    folder: Path,
    *,
    chunks: Iterator[Chunk],
    objects: dict[str, Any],
    args: Namespace,
    written: Callable[[int], None],
) -> None:
    """Write ``folder`` as a Megatron checkpoint in the ``release`` layout.

    Args:
        objects: extra entries by key, pickled.
        args: what Megatron reads back as the checkpoint's arguments.
        written: called with the bytes of each finished chunk.
    """
    common = {
        "args": args,
        "iteration": 0,
        "checkpoint_version": 3.0,
        "num_floating_point_operations_so_far": 0,
        "content_metadata": {"singleton_local_shards": False},
    }
    inner = folder / RELEASE
    planner = _StreamingPlanner(
        list(chunks), {**objects, "common_state/shard_0_1": [common]}, written
    )
    dcp_save({}, storage_writer=FileSystemWriter(inner), planner=planner, no_dist=True)
    (inner / "metadata.json").write_text(
        json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}), "utf-8"
    )
    (folder / TRACKER).write_text(RELEASE, "utf-8")
