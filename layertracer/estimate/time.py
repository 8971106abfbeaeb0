"""Step time of a partly frozen model over full training, and the pipeline split that keeps it.

One unit is the forward pass of one layer's matrices over one micro-batch; the input gradient and
the weight gradient take one unit each. Attention has no weight gradient, so it is counted apart:
``rho`` units forward, ``BETA * rho`` backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from layertracer.estimate.settings import Layout, ModelShape, Recompute
from layertracer.plan import Phase

# Flash attention recomputes the scores in its backward pass: 5 products there against 2 forward.
BETA = 2.5


def attention_share(shape: ModelShape, sequence_length: int) -> float:
    """Return ``rho``: causal attention's forward work over that of the layer's matrices."""
    matrices = shape.split_layer(0)[0]
    return sequence_length * shape.query / matrices


def layer_costs(shape: ModelShape, phase: Phase, layout: Layout) -> list[float]:
    """Return the cost of each layer in units.

    A trained layer costs forward, input gradient and weight gradient; a frozen layer above a
    trained part passes gradients through (no weight gradient); a frozen layer with nothing
    trained below runs forward only. Recompute adds a forward pass, of everything or of the
    feed-forward part, wherever there is a backward pass.
    """
    rho = attention_share(shape, layout.sequence_length)
    again = 0.0
    if layout.recompute is Recompute.FULL:
        again = 1 + rho
    elif layout.recompute is Recompute.SELECTIVE:
        again = 3 * shape.hidden * shape.ffn / shape.split_layer(0)[0]
    costs = []
    trained_below = phase.embedding
    for layer in range(shape.num_layers):
        trains = phase.trains_layer(layer)
        if trains:
            costs.append(3 + (1 + BETA) * rho + again)
        elif trained_below:
            costs.append(2 + (1 + BETA) * rho + again)
        else:
            costs.append(1 + rho)
        trained_below |= trains
    return costs


def head_cost(shape: ModelShape, phase: Phase) -> float:
    """Return the cost of the output layer in units of one layer's forward pass."""
    units = shape.vocab * shape.hidden / shape.split_layer(0)[0]
    anything_below = phase.embedding or bool(phase.layers) or phase.final_norm
    return units * (1 + anything_below + phase.output_layer)


def stage_costs(
    shape: ModelShape, phase: Phase, layout: Layout, stages: Sequence[range]
) -> list[float]:
    """Return the cost of each pipeline stage, the head included in the last."""
    costs = layer_costs(shape, phase, layout)
    sums = [sum(costs[layer] for layer in stage) for stage in stages]
    sums[-1] += head_cost(shape, phase)
    return sums


def step_time(costs: Sequence[float], micro_batches: int) -> float:
    """Return the time of a step in units: the slowest stage sets the pace of the pipeline.

    ``(m + p - 1) * max_i t_i`` for ``m`` micro-batches and ``p`` stages.
    """
    return (micro_batches + len(costs) - 1) * max(costs)


def balanced_split(shape: ModelShape, phase: Phase, layout: Layout, stages: int) -> list[range]:
    """Return the contiguous split whose slowest stage is fastest (by dynamic programming)."""
    costs = layer_costs(shape, phase, layout)
    count = len(costs)
    before = [0.0]
    for cost in costs:
        before.append(before[-1] + cost)
    head = head_cost(shape, phase)
    # best[s][n]: slowest of s+1 stages over the first n layers; cut[s][n]: where the last begins.
    best = [[before[n] for n in range(count + 1)]]
    cut = [[0] * (count + 1)]
    for stage in range(1, stages):
        extra = head if stage == stages - 1 else 0.0
        row, places = [], []
        for n in range(count + 1):
            options = [(max(best[-1][m], before[n] - before[m] + extra), m) for m in range(n + 1)]
            value, place = min(options)
            row.append(value)
            places.append(place)
        best.append(row)
        cut.append(places)
    ends = [count]
    for stage in range(stages - 1, 0, -1):
        ends.append(cut[stage][ends[-1]])
    ends.append(0)
    ends.reverse()
    return [range(begin, end) for begin, end in pairwise(ends)]


def layout_flag(stages: Sequence[range]) -> str:
    """Return the value of Megatron's ``--pipeline-model-parallel-layout`` for ``stages``."""
    parts = [f"t*{len(stage)}" if stage else "" for stage in stages]
    return "E" + "|".join(parts) + "L"
