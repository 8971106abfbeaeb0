"""Which texts share a forward pass: a subject's common prefix once, the rest packed by length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]

_SHORTEST_PREFIX = 16  # below that, computing it apart costs more than it saves


@dataclass(frozen=True)
class Row:
    """Token ids to run, of which the last ``heads`` positions are wanted; ``index`` names it."""

    index: int
    group: str
    tokens: Tokens
    heads: int = 1


@dataclass(frozen=True)
class Batch:
    """Rows that run at once after ``prefix`` tokens, which all of them begin with."""

    prefix: int
    rows: tuple[Row, ...]

    @property
    def cost(self) -> int:
        """Tokens to run, without the prefix."""
        return sum(len(row.tokens) - self.prefix for row in self.rows)


def pack(rows: Iterable[Row], budget: int, *, share: bool = True) -> list[Batch]:
    """Return batches, group after group, in each the longest rows first.

    Args:
        rows: what to run.
        budget: tokens of a batch, padding and prefix included; a row above it runs alone.
        share: whether prefixes may be shared.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    batches = []
    for group in groups.values():
        prefix = common_prefix(group) if share else 0
        batches += _fill(sorted(group, key=lambda row: -len(row.tokens)), prefix, budget)
    return batches


def common_prefix(rows: Sequence[Row]) -> int:
    """Return how many first tokens all rows share, leaving each its wanted positions."""
    if len(rows) < 2:
        return 0
    first, last = (find(row.tokens for row in rows) for find in (min, max))
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    length = min(length, *(len(row.tokens) - row.heads for row in rows))
    return length if length >= _SHORTEST_PREFIX else 0


def _fill(rows: Sequence[Row], prefix: int, budget: int) -> list[Batch]:
    batches, start = [], 0
    while start < len(rows):
        size = max(1, budget // len(rows[start].tokens))
        batches.append(Batch(prefix, tuple(rows[start : start + size])))
        start += size
    return batches


def share_out(batches: Sequence[Batch], ranks: int) -> list[list[Batch]]:
    """Return consecutive batches for each rank, of about equal cost."""
    total = sum(batch.cost for batch in batches)
    parts: list[list[Batch]] = [[] for _ in range(ranks)]
    done = 0
    for batch in batches:
        middle = done + batch.cost / 2
        parts[min(ranks - 1, int(middle * ranks / total))].append(batch)
        done += batch.cost
    return parts
