"""Writes a Megatron ``torch_dist`` checkpoint: one process, no GPU, no model built, streaming.

Each tensor is read, fused and written when its turn comes, so memory holds one tensor per thread.
Any tensor- or pipeline-parallel size can load the result.
"""

from __future__ import annotations

import io
import json
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, FileSystemWriter
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
    """One piece to write, made when its turn comes.

    ``make()`` returns a tensor of ``inner_size``, which is ``key[place]`` of a tensor whose first
    sizes are ``grid``.
    """

    key: str
    place: tuple[int, ...]
    grid: tuple[int, ...]
    inner_size: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the piece lies in the whole tensor."""
        return (*self.place, *(0 for _ in self.inner_size))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Size of the piece, in the axes of the whole tensor."""
        return (*(1 for _ in self.place), *self.inner_size)

    @property
    def global_size(self) -> tuple[int, ...]:
        """Size of the whole tensor."""
        return (*self.grid, *self.inner_size)

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
        self.cancelled = False
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
        if self.cancelled:
            raise InterruptedError
        if write_item.type is WriteItemType.BYTE_IO:
            buffer = io.BytesIO()
            torch.save(self._objects[write_item.index.fqn], buffer)
            return buffer
        chunk = self._chunks[MetadataIndex(write_item.index.fqn, write_item.index.offset)]
        tensor = chunk.make()
        # The checkpoint library does not compare what it is handed with what was announced.
        if tensor.dtype != chunk.dtype or tuple(tensor.shape) != chunk.inner_size:
            raise ValueError(f"{chunk.key}: made {tensor.shape} {tensor.dtype}, announced {chunk}")
        self._written(chunk.bytes)
        return tensor.reshape(chunk.sizes)


@contextmanager
def _thread_errors(planner: _StreamingPlanner) -> Iterator[list[BaseException]]:
    """Collect what goes wrong in the writer's threads, which the checkpoint library loses.

    An error in this thread stops the others, and comes out as itself.
    """
    errors: list[BaseException] = []
    before = threading.excepthook

    def collect(failure: threading.ExceptHookArgs) -> None:
        planner.cancelled = True
        if failure.exc_value is not None:
            errors.append(failure.exc_value)

    threading.excepthook = collect
    try:
        yield errors
    except CheckpointException as error:
        planner.cancelled = True
        if not errors:
            raise next(iter(error.failures.values()))[0] from error
    except BaseException:
        planner.cancelled = True
        raise
    finally:
        threading.excepthook = before


def write_release(
    folder: Path,
    *,
    chunks: Iterator[Chunk],
    objects: dict[str, Any],
    args: Namespace,
    written: Callable[[int], None],
    threads: int = 1,
) -> None:
    """Write ``folder`` as a Megatron checkpoint in the ``release`` layout.

    Args:
        objects: extra entries by key, pickled.
        args: what Megatron reads back as the checkpoint's arguments.
        written: called with the bytes of each finished chunk.
        threads: how many read, fuse and write at once, each into a file of its own.
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
    writer = FileSystemWriter(inner, thread_count=threads)
    with _thread_errors(planner) as errors, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        dcp_save({}, storage_writer=writer, planner=planner, no_dist=True)
    if errors:
        raise errors[0]
    (inner / "metadata.json").write_text(
        json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}), "utf-8"
    )
    (folder / TRACKER).write_text(RELEASE, "utf-8")
