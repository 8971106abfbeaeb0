"""From logits to numbers: the target's probability, and how far distributions are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layertracer import ops

LN2 = math.log(2)


def _alone(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class Columns:
    """Which columns of the vocabulary the logits hold, and how to join those of other ranks.

    Attributes:
        first: token id of the first column.
        combine: makes the lens states of the whole vocabulary from those of these columns.
        add: sums ``[rows]`` over the parts of the vocabulary.
    """

    first: int = 0
    combine: Callable[[Tensor], Tensor] = _alone
    add: Callable[[Tensor], Tensor] = _alone


WHOLE = Columns()


def compare_logits(logits: Sequence[Tensor], target: Tensor, columns: Columns = WHOLE) -> Tensor:
    """Return P(target), JS and, of three variants, the null JS of each row: ``[2 or 3, rows]``.

    JS is the Jensen-Shannon divergence in nats, in ``[0, ln 2]``: of the clean distribution and
    the first disturbed one; the null JS of the two disturbed ones. All are float64.

    Args:
        logits: ``[rows, columns]``, contiguous, of the clean prompts and of each draw.
        target: token ids, ``[rows]``.
    """
    states = [_state(variant, target, columns) for variant in logits]
    sums = [ops.log_sum_exp(state) for state in states]

    def divergence(p: int, q: int) -> Tensor:
        added = ops.js_divergence(logits[p], logits[q], sums[p], sums[q])
        return columns.add(added).clamp(0.0, LN2)

    found = [ops.target_log_prob(states[0]).exp(), divergence(0, 1)]
    if len(logits) == 3:
        found.append(divergence(1, 2))
    return torch.stack(found)


def _state(logits: Tensor, target: Tensor, columns: Columns) -> Tensor:
    start = ops.lens_start(len(logits), logits.device)
    return columns.combine(ops.lens_update(logits, target, start, columns.first))
