"""Gradient statistics of a model's parts: from one rank's pieces to lines of ``stats.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layertracer.ops import layer_grad_stats


@dataclass(frozen=True)
class Slot:
    """One row of the statistics: a part of the model, and whether it trains."""

    group: str
    layer: int | None
    frozen: bool


@dataclass(frozen=True)
class Piece:
    """What one rank holds of one parameter: gradient and weight, flat, of equal length.

    ``weight`` is 0 for a replica that another rank counts.
    """

    slot: int
    gradient: Tensor
    parameter: Tensor
    weight: float


def local_statistics(pieces: Sequence[Piece], num_slots: int) -> Tensor:
    """Return this rank's ``[slots, 4]``: gradient squares, largest, non-finite, weight squares."""
    slots = [piece.slot for piece in pieces]
    weights = [piece.weight for piece in pieces]
    gradient = layer_grad_stats([piece.gradient for piece in pieces], slots, num_slots, weights)
    parameter = layer_grad_stats([piece.parameter for piece in pieces], slots, num_slots, weights)
    columns = [*gradient, parameter.sum_of_squares]
    return torch.stack(columns, dim=1)


def combine(gathered: Tensor) -> Tensor:
    """Return ``[slots, 4]`` from the statistics of all ranks, ``[ranks, slots, 4]``."""
    combined = gathered.sum(dim=0)
    combined[:, 1] = gathered[:, :, 1].amax(dim=0)
    return combined


def lines(
    step: int, slots: Sequence[Slot], statistics: Tensor, loss_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Return a line of ``stats.jsonl`` for each part; frozen ones have no numbers."""
    made = []
    for slot, row in zip(slots, statistics.tolist(), strict=True):
        line: dict[str, Any] = {"step": step, **slot.__dict__}
        if slot.frozen:
            line |= dict.fromkeys(
                ("grad_norm", "grad_max_abs", "nonfinite", "weight_norm", "ratio")
            )
        else:
            squares, largest, nonfinite, weight_squares = row
            grad_norm, weight_norm = math.sqrt(squares) / loss_scale, math.sqrt(weight_squares)
            line |= {
                "grad_norm": grad_norm,
                "grad_max_abs": largest / loss_scale,
                "nonfinite": int(nonfinite),
                "weight_norm": weight_norm,
                "ratio": grad_norm / weight_norm if weight_norm else None,
            }
        made.append(line)
    return made
