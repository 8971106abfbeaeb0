"""Processes that share the work, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process's number and how many there are; one process needs no process group."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the results."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's ``value``, on all ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def torchrun_ranks() -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes, if there is one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo")  # what is gathered are a few Python objects, not tensors
    try:
        yield Ranks(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()
