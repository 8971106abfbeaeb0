"""The compiled ops, and a plain-torch reference of each.

The references say what an op computes; they are in float64 and slow on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

try:
    import layertracer._C  # noqa: F401  (loading it registers the ops)
except ImportError as error:
    raise ImportError(
        f"the extension layertracer._C can't be loaded ({error}): build it with `make setup`"
    ) from error


class LayerStats(NamedTuple):
    """Statistics of each layer, ``[layers]``, float64.

    ``sum_of_squares`` and ``max_abs`` are over the finite elements; ``nonfinite`` counts the rest.
    """

    sum_of_squares: Tensor
    max_abs: Tensor
    nonfinite: Tensor


def layer_grad_stats(
    tensors: Sequence[Tensor],
    layers: Sequence[int],
    num_layers: int,
    weights: Sequence[float] | None = None,
) -> LayerStats:
    """Return sum of squares, largest absolute value and non-finite count of each layer.

    One pass over memory and one call for any number of tensors. Sums are in float64, in an order
    that depends on the sizes alone: the same input gives the same bits for any number of threads.
    On a GPU nothing waits for the device.

    Args:
        tensors: contiguous, float32, bfloat16 or float16, of any shape, all on one device.
        layers: the layer of each tensor, from 0 to ``num_layers - 1``.
        weights: multiplies a tensor's sum and count; 0 leaves it out (a replica that another rank
            counts). None means 1 for each.

    Raises:
        ValueError: lists of different lengths, a layer out of range, a tensor not contiguous.
        TypeError: a tensor of another type.
    """
    if not tensors:  # torch finds an op's implementation by its tensors
        return LayerStats(*torch.zeros(num_layers, 3, dtype=torch.float64).unbind(1))
    stats = torch.ops.layertracer.layer_grad_stats(
        list(tensors), list(layers), list(weights) if weights is not None else [], num_layers
    )
    return LayerStats(*stats.unbind(1))


def layer_grad_stats_reference(
    tensors: Sequence[Tensor],
    layers: Sequence[int],
    num_layers: int,
    weights: Sequence[float] | None = None,
) -> LayerStats:
    """Compute what :func:`layer_grad_stats` does, in plain torch and float64."""
    stats = torch.zeros(num_layers, 3, dtype=torch.float64)
    for index, (tensor, layer) in enumerate(zip(tensors, layers, strict=True)):
        weight = 1.0 if weights is None else weights[index]
        values = tensor.detach().cpu().double().flatten()
        finite = values[values.isfinite()]
        stats[layer, 0] += weight * finite.square().sum()
        stats[layer, 2] += weight * (values.numel() - finite.numel())
        if weight and finite.numel():
            stats[layer, 1] = torch.maximum(stats[layer, 1], finite.abs().max())
    return LayerStats(*stats.unbind(1))
