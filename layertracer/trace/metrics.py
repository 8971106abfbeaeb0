"""The numbers of a trace, from probabilities and divergences per prompt and depth.

``p`` and ``js`` are ``[prompts, L + 1]``: column 0 is the embedding output, column ``l + 1`` block
``l``. Results per block are ``[prompts, L]``; layers in results are 0-based block indices.
Definitions: arXiv 2605.11416 and 2604.20556, as written down in the README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from layertracer.trace.files import TraceFile

Array = NDArray[np.float64]
Layers = NDArray[np.int64]
EPSILON = 1e-10


def ratio(p: Array) -> Array:
    """Return ``|P(l) - P(l-1)| / (P(l) + eps)`` of each block.

    It saturates near 1 for any large relative rise and exceeds 1 only for falls.
    """
    return np.abs(np.diff(p, axis=1)) / (p[:, 1:] + EPSILON)


def task_particle(p: Array) -> Layers:
    """Return ``TP = argmax_l ratio(l)`` of each prompt, as published."""
    return ratio(p).argmax(axis=1)


def onset(p: Array) -> Layers:
    """Return the first block whose probability is half the largest of any block."""
    blocks = p[:, 1:]
    return (blocks >= 0.5 * blocks.max(axis=1, keepdims=True)).argmax(axis=1)


def largest_rise(p: Array) -> Layers:
    """Return the block that raises the probability most."""
    return np.diff(p, axis=1).argmax(axis=1)


def js_rise(js: Array) -> Array:
    """Return ``dJS(l) = JS(l) - JS(l-1)`` of each block; the embedding comes before block 0."""
    return np.diff(js, axis=1)


def sensitivity(js: Array) -> Array:
    """Return the layer-wise sensitivity ``LS(l) = |dJS(l)|``."""
    return np.abs(js_rise(js))


def vulnerable_layer(js: Array) -> Layers:
    """Return the block with the largest divergence."""
    return js[:, 1:].argmax(axis=1)


def boundary_scores(ls: Array) -> Array:
    """Return ``S(b) = mean_{l<b} LS - mean_{l>=b} LS`` for ``b = 1..L-1``, on the last axis.

    Args:
        ls: ``[..., L]``; ``[..., L-1]`` is returned, empty for a single layer.
    """
    layers = ls.shape[-1]
    shallow = ls.cumsum(axis=-1)[..., :-1]
    counts = np.arange(1, layers)
    deep = ls.sum(axis=-1, keepdims=True) - shallow
    return shallow / counts - deep / (layers - counts)


def best_boundary(trace: TraceFile) -> int:
    """Return the boundary with the highest score ``S(b)``: its number of shallow layers.

    The smallest one where several are equally good.
    """
    return max(trace.boundaries, key=lambda entry: (entry.score.mean, -entry.boundary)).boundary


def bootstrap_means(values: Array, resamples: int, seed: int) -> Array:
    """Return the means of ``values`` ``[prompts, k]`` over resampled prompts, ``[resamples, k]``.

    Prompts are drawn with replacement, the same ones for every column.
    """
    count = len(values)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=resamples)
    return weights @ values / count


def interval(resampled: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Return the percentile interval over the first axis of ``resampled``."""
    tail = (1 - level) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return low, high
