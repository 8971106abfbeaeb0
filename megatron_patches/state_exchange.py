"""Optimizer state of surviving parameters, moved to the ranks that own it under a new plan.

The distributed optimizer cuts each bucket into equal shards, one a data-parallel rank. Where a
parameter lies in its bucket depends on what else trains, so that a change of plan moves pieces of
its state from rank to rank. Every rank can compute who holds and who needs what: one all-to-all for
each kind of state, nothing gathered whole.
Megatron versions: 0.19.x (fields of ``_ParamAndGradBuffer``).
Tests: tests/megatron_patches/test_state_exchange.py, tests/distributed/test_freeze_events.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Range = tuple[int, int]


def ranges_of_ranks(start: int, end: int, bucket: Range, ranks: int) -> list[Range]:
    """Return which elements of a parameter each rank owns, counted from its first.

    Args:
        start: the parameter's first element in its buffer; ``end``: behind its last.
        bucket: the bucket's first element in the buffer, and how many it has with padding.
        ranks: into how many equal shards the bucket is cut.
    """
    first, size = bucket[0], bucket[1] // ranks
    owned = []
    for rank in range(ranks):
        low, high = first + rank * size, first + (rank + 1) * size
        owned.append((min(max(low, start), end) - start, max(min(high, end), start) - start))
    return owned


def owners(buffer: Any) -> dict[torch.nn.Parameter, list[Range]]:
    """Return the ranges of all ranks for each parameter of a Megatron buffer."""
    ranks = buffer.data_parallel_group.size()
    buckets = [(bucket.offset, bucket.grad_data.numel()) for bucket in buffer.buckets]
    return {
        parameter: ranges_of_ranks(start, end, buckets[bucket], ranks)
        for parameter, (start, end, bucket) in buffer.param_index_map.items()
    }


def common(one: Range, other: Range) -> Range:
    """Return what two ranges have in common; it may be empty (its end not above its start)."""
    return max(one[0], other[0]), min(one[1], other[1])


@dataclass
class Move:
    """One parameter's way from the old owners to the new ones."""

    old: list[Range]
    new: list[Range]

    def sent(self, source: int, target: int) -> Range:
        """Return the elements that ``source`` has and ``target`` needs."""
        return common(self.old[source], self.new[target])


def exchange(
    moves: list[Move], pieces: list[torch.Tensor | None], group: Any, like: torch.Tensor
) -> list[torch.Tensor]:
    """Return this rank's new pieces, flat, in the order of ``moves`` (a collective call).

    Args:
        moves: the parameters, in the same order on all ranks of ``group``.
        pieces: this rank's old piece of each, flat; None where it has none.
        like: gives the type and device of the pieces.
    """
    me, ranks = group.rank(), group.size()
    sent = [[move.sent(me, target) for move in moves] for target in range(ranks)]
    received = [[move.sent(source, me) for move in moves] for source in range(ranks)]
    outgoing = torch.cat(
        [like.new_empty(0)]
        + [
            piece[low - move.old[me][0] : high - move.old[me][0]]
            for target in sent
            for move, piece, (low, high) in zip(moves, pieces, target, strict=True)
            if piece is not None and low < high
        ]
    )
    sizes_out = [sum(max(high - low, 0) for low, high in target) for target in sent]
    sizes_in = [sum(max(high - low, 0) for low, high in source) for source in received]
    incoming = like.new_empty(sum(sizes_in))
    if ranks == 1:
        incoming = outgoing
    else:
        torch.distributed.all_to_all_single(incoming, outgoing, sizes_in, sizes_out, group=group)
    new = [like.new_empty(max(move.new[me][1] - move.new[me][0], 0)) for move in moves]
    place = 0
    for source in received:
        for move, target, (low, high) in zip(moves, new, source, strict=True):
            if low < high:
                start = move.new[me][0]
                target[low - start : high - start] = incoming[place : place + high - low]
                place += high - low
    return new
