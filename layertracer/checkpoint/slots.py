"""Every tensor of a model: where it lies in Megatron's checkpoint and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from layertracer.checkpoint.families import Rule, layer_rules, model_rules, sizes
from layertracer.checkpoint.sidecar import MegatronShape


@dataclass(frozen=True)
class Slot:
    """A rule at one place of the model.

    ``place`` is the layer, or layer and expert, that the tensor belongs to: the first indices of
    the stacked tensor ``decoder.layers.<name>`` on disk, whose first sizes are ``grid``.
    """

    rule: Rule
    shape: MegatronShape
    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """Megatron's names: the tensor's, and that of the other layer specification."""
        names = (self.rule.megatron, self.rule.also) if self.rule.also else (self.rule.megatron,)
        return tuple(f"decoder.layers.{name}" for name in names) if self.place else names

    @property
    def sources(self) -> dict[str, tuple[int, ...]]:
        """Names of the Hugging Face tensors with their sizes."""
        prefix = f"model.layers.{self.place[0]}." if self.place else ""
        expert = f".{self.place[1]}." if len(self.place) > 1 else ".E."
        return {
            prefix + name.replace(".E.", expert): sizes(self.shape, dims)
            for name, dims in self.rule.sources.items()
        }

    @property
    def size(self) -> tuple[int, ...]:
        """Size of the Megatron tensor at this place, computed on tensors without storage."""
        parts = [torch.empty(size, device="meta") for size in self.sources.values()]
        return tuple(self.rule.fusion.join(parts, self.shape).shape)


def slots(shape: MegatronShape) -> Iterator[Slot]:
    """Yield every slot of the model, layer by layer."""
    for rule in model_rules(shape):
        yield Slot(rule, shape)
    for layer in range(shape.num_layers):
        for rule in layer_rules(shape):
            if not rule.per_expert:
                yield Slot(rule, shape, (layer,), (shape.num_layers,))
                continue
            experts = shape.experts.num_experts if shape.experts else 0
            for expert in range(experts):
                yield Slot(rule, shape, (layer, expert), (shape.num_layers, experts))
