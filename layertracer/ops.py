"""The compiled ops, and a plain-torch reference of each.

The references say what an op computes; they are in float64 and slow on purpose.
"""

from __future__ import annotations

import math
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


class Drift(NamedTuple):
    """Sums of each layer over activations x and their reference r, ``[layers]``, float64."""

    dot: Tensor
    x_squares: Tensor
    reference_squares: Tensor
    difference_squares: Tensor

    @property
    def relative(self) -> Tensor:
        """``||x - r|| / ||r||``."""
        return (self.difference_squares / self.reference_squares).sqrt()

    @property
    def cosine(self) -> Tensor:
        """Cosine of the angle between x and r."""
        return self.dot / (self.x_squares * self.reference_squares).sqrt()

    @property
    def norm_ratio(self) -> Tensor:
        """``||x|| / ||r||``."""
        return (self.x_squares / self.reference_squares).sqrt()


def activation_drift(
    tensors: Sequence[Tensor],
    references: Sequence[Tensor],
    layers: Sequence[int],
    num_layers: int,
    weights: Sequence[float] | None = None,
) -> Drift:
    """Return how far each layer's activations are from their references, in one read of each.

    Sums are in float64, in an order that depends on the sizes alone; a NaN or infinity makes the
    layer's sums NaN or infinite.

    Args:
        tensors: contiguous, float32, bfloat16 or float16, of any shape, all on one device.
        references: of the same shapes, of any of these types.
        layers, weights: as in :func:`layer_grad_stats`.

    Raises:
        ValueError, TypeError: names the argument.
    """
    if not tensors:
        return Drift(*torch.zeros(num_layers, 4, dtype=torch.float64).unbind(1))
    sums = torch.ops.layertracer.activation_drift(
        list(tensors),
        list(references),
        list(layers),
        list(weights) if weights is not None else [],
        num_layers,
    )
    return Drift(*sums.unbind(1))


def activation_drift_reference(
    tensors: Sequence[Tensor],
    references: Sequence[Tensor],
    layers: Sequence[int],
    num_layers: int,
    weights: Sequence[float] | None = None,
) -> Drift:
    """Compute what :func:`activation_drift` does, in plain torch and float64."""
    sums = torch.zeros(num_layers, 4, dtype=torch.float64)
    for index, layer in enumerate(layers):
        weight = 1.0 if weights is None else weights[index]
        if not weight:
            continue
        x, r = tensors[index].detach().cpu().double(), references[index].detach().cpu().double()
        products = (x * r, x * x, r * r, (x - r).square())
        sums[layer] += weight * torch.stack([product.sum() for product in products])
    return Drift(*sums.unbind(1))


def lens_start(rows: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the state of ``rows`` rows of logits before any column: ``[rows, 3]`` float64.

    Its columns: the largest logit, the sum of ``exp(logit - largest)``, the target's logit.
    """
    start = torch.tensor([-math.inf, 0.0, -math.inf], dtype=torch.float64, device=device)
    return start.expand(rows, 3).contiguous()


def lens_update(logits: Tensor, targets: Tensor, state: Tensor, first_column: int = 0) -> Tensor:
    """Return ``state`` with a piece of the vocabulary added; see :func:`lens_start`.

    Exponentials are float32, added up in float32 over at most 256 columns and in float64 beyond.

    Args:
        logits: ``[rows, columns]``, contiguous, float32, bfloat16 or float16; -inf is allowed.
        targets: ``[rows]`` int64, the target token of each row in the whole vocabulary.
        first_column: the token of the first column.

    Raises:
        ValueError, TypeError: names the argument.
    """
    return torch.ops.layertracer.lens_update(logits, targets, state, first_column)


def lens_combine(states: Tensor) -> Tensor:
    """Return one state ``[rows, 3]`` from those of vocabulary parts, ``[parts, rows, 3]``."""
    largest = states[..., 0].amax(0)
    base = torch.where(largest.isfinite(), largest, 0.0)
    total = (states[..., 1] * (states[..., 0] - base).exp()).sum(0)
    return torch.stack([largest, total, states[..., 2].amax(0)], dim=-1)


def log_sum_exp(state: Tensor) -> Tensor:
    """Return the log-sum-exp of each row, ``[rows]``: NaN where a logit was NaN or inf."""
    return state[:, 0] + state[:, 1].log()


def target_log_prob(state: Tensor) -> Tensor:
    """Return the target's log-probability in each row, ``[rows]``."""
    return state[:, 2] - log_sum_exp(state)


def lens_update_reference(
    logits: Tensor, targets: Tensor, state: Tensor, first_column: int = 0
) -> Tensor:
    """Compute what :func:`lens_update` does, in plain torch and float64."""
    exact = logits.double()
    largest = torch.maximum(state[:, 0], exact.amax(1)) if exact.shape[1] else state[:, 0]
    base = torch.where(largest.isfinite(), largest, 0.0)
    total = state[:, 1] * (state[:, 0] - base).exp() + (exact - base[:, None]).exp().sum(1)
    local = targets - first_column
    inside = (local >= 0) & (local < exact.shape[1])
    target = state[:, 2].clone()
    target[inside] = exact[inside].gather(1, local[inside, None])[:, 0]
    return torch.stack([largest, total, target], dim=1)


def js_divergence(
    logits_p: Tensor, logits_q: Tensor, log_sum_p: Tensor, log_sum_q: Tensor
) -> Tensor:
    """Return what a piece of the vocabulary adds to the Jensen-Shannon divergence of each row.

    In nats, ``[rows]`` float64. The sum over all pieces is in ``[0, ln 2]`` up to rounding. Each
    term is computed without cancellation in float32 and is symmetric in p and q, so nearly equal
    distributions keep their digits.

    Args:
        logits_p, logits_q: ``[rows, columns]``, contiguous, both float32, bfloat16 or float16.
        log_sum_p, log_sum_q: ``[rows]`` float64, over the whole vocabulary (:func:`log_sum_exp`).

    Raises:
        ValueError, TypeError: names the argument.
    """
    return torch.ops.layertracer.js_divergence(logits_p, logits_q, log_sum_p, log_sum_q)


def js_divergence_reference(
    logits_p: Tensor, logits_q: Tensor, log_sum_p: Tensor, log_sum_q: Tensor
) -> Tensor:
    """Compute what :func:`js_divergence` does, by ``(KL(p || m) + KL(q || m)) / 2`` in float64."""
    log_p = logits_p.double() - log_sum_p[:, None]
    log_q = logits_q.double() - log_sum_q[:, None]
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    parts = [
        torch.where(one.isneginf(), 0.0, one.exp() * (one - log_m)).sum(1) for one in (log_p, log_q)
    ]
    return (parts[0] + parts[1]) / 2
