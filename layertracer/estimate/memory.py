"""Bytes per rank: weights, gradients, optimizer state and activations of each pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layertracer.estimate.settings import Layout, ModelShape, Recompute
from layertracer.plan import Phase


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a pipeline stage."""

    stage: int
    trained_parameters: int
    frozen_parameters: int
    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of them; the framework's own buffers and fragmentation come on top."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class _Part:
    parameters: int
    trains: bool


def stage_memory(
    shape: ModelShape, phase: Phase, layout: Layout, stages: Sequence[range]
) -> list[StageMemory]:
    """Return the memory of one rank of each stage.

    bf16: weight 2, fp32 gradient 4, and fp32 main copy and two moments 12, the last divided by
    the data-parallel size under the distributed optimizer. fp32: weight 4, gradient 4, moments 8.
    """
    return [_one_stage(shape, phase, layout, stages, number) for number in range(len(stages))]


def _one_stage(
    shape: ModelShape, phase: Phase, layout: Layout, stages: Sequence[range], number: int
) -> StageMemory:
    parts = _parts(shape, phase, layout.tensor, stages, number)
    trained = sum(part.parameters for part in parts if part.trains)
    frozen = sum(part.parameters for part in parts if not part.trains)
    shards = layout.data if layout.distributed_optimizer else 1
    weight, state = (2, 12) if layout.bf16 else (4, 8)
    return StageMemory(
        stage=number,
        trained_parameters=trained,
        frozen_parameters=frozen,
        weights=weight * (trained + frozen),
        gradients=4 * trained,
        optimizer=state * trained / shards,
        activations=_activations(shape, phase, layout, stages, number),
    )


def _parts(
    shape: ModelShape, phase: Phase, tensor: int, stages: Sequence[range], number: int
) -> list[_Part]:
    parts = []
    for layer in stages[number]:
        split, copied = shape.split_layer(layer)
        parts.append(_Part(split // tensor + copied, phase.trains_layer(layer)))
    first, last = number == 0, number == len(stages) - 1
    if first:
        parts.append(_Part(shape.counts.embedding // tensor, phase.embedding))
    if last:
        parts.append(_Part(shape.counts.final_norm, phase.final_norm))
        if not shape.tied:
            parts.append(_Part(shape.counts.output_layer // tensor, phase.output_layer))
        elif not first:  # a tied head on another stage is a second copy of the embedding
            parts.append(_Part(shape.counts.embedding // tensor, phase.output_layer))
    return parts


def layer_activations(shape: ModelShape, *, trains: bool, trained_below: bool) -> int:
    """Return the elements that one layer keeps per token for its backward pass.

    Fused attention, SwiGLU, no dropout. A trained layer keeps the inputs of its norms (2h), its
    matrices (qkv h, proj q, fc1 h, fc2 f), q, k, v and the gate and up halves; a frozen one with
    something trained below drops the inputs that only a weight gradient needs; a frozen one with
    nothing trained below keeps nothing.
    """
    if not trains and not trained_below:
        return 0
    kept = 2 * shape.hidden + 2 * shape.query + 2 * shape.kv + 2 * shape.ffn
    return kept + (2 * shape.hidden + shape.ffn if trains else 0)


def _kept(shape: ModelShape, recompute: Recompute, *, trains: bool, trained_below: bool) -> int:
    """Return what :func:`layer_activations` leaves under ``recompute``.

    Full: the layer's input. Selective: without the feed-forward part (gate and up halves, input of
    fc2, normalised input of fc1).
    """
    kept = layer_activations(shape, trains=trains, trained_below=trained_below)
    if recompute is Recompute.FULL:
        return min(kept, shape.hidden)
    if recompute is Recompute.SELECTIVE and kept:
        return kept - 2 * shape.ffn - (shape.hidden + shape.ffn if trains else 0)
    return kept


def _activations(
    shape: ModelShape, phase: Phase, layout: Layout, stages: Sequence[range], number: int
) -> float:
    width = 2 if layout.bf16 else 4
    tokens = layout.sequence_length * layout.micro_batch
    in_flight = min(layout.micro_batches, len(stages) - number)
    elements = 0
    for layer in stages[number]:
        below = phase.embedding or any(phase.trains_layer(m) for m in range(layer))
        trains = phase.trains_layer(layer)
        elements += _kept(shape, layout.recompute, trains=trains, trained_below=below)
    # Without sequence parallelism every rank keeps whole inputs: counted as if nothing were split.
    split = layout.tensor if layout.sequence_parallel or layout.tensor == 1 else 1
    logits = 0.0
    if number == len(stages) - 1:
        logits = tokens * shape.vocab / layout.tensor * (width + 4)
    return elements * tokens * width * in_flight / split + logits
