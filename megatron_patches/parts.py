"""Which part of the model a parameter belongs to, by global layer number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from layertracer.errors import UserError
from layertracer.plan import Phase

Group = Literal["embedding", "layer", "final_norm", "output_layer"]
_MARK = "layertracer_part"
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Part:
    """A group of parameters; ``layer`` is the 0-based block index through all pipeline stages."""

    group: Group
    layer: int | None = None

    @property
    def name(self) -> str:
        """The part as one word: ``embedding``, ``layer.3``, ``final_norm``, ``output_layer``."""
        return self.group if self.layer is None else f"{self.group}.{self.layer}"

    def trains(self, phase: Phase) -> bool:
        """Whether ``phase`` trains this part."""
        if self.group == "layer":
            return phase.trains_layer(self.layer)
        return getattr(phase, self.group)


def parameters_by_part(chunk: Any) -> Iterator[tuple[str, torch.nn.Parameter, Part]]:
    """Yield name, parameter and part of every parameter of a ``GPTModel`` chunk.

    Layers are numbered by Megatron's ``layer_number``, which is right under pipeline and virtual
    pipeline parallelism.

    Raises:
        UserError: the model has a part that plans don't know.
    """
    for name, parameter in chunk.named_parameters():
        part = find_part(chunk, name)
        if part is None:
            raise UserError(
                f"--freeze-plan: the model's parameter {name} belongs to no part of a plan"
            )
        yield name, parameter, part


def parts_of(phase: Phase) -> set[str]:
    """Return the names of the parts that ``phase`` trains."""
    groups = {
        group for group in ("embedding", "final_norm", "output_layer") if getattr(phase, group)
    }
    return groups | {Part("layer", layer).name for layer in phase.layers}


def part_name(parameter: torch.nn.Parameter) -> str:
    """Return the part that ``parameter`` was marked with; empty where plans know none."""
    return getattr(parameter, _MARK, "")


def mark_parts(chunks: list[Any]) -> None:
    """Let every parameter know its part, which outlasts all wrapping."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            part = find_part(chunk, name)
            if part is not None:
                setattr(parameter, _MARK, part.name)


def find_part(chunk: Any, name: str) -> Part | None:
    """Return the part of parameter ``name`` of a ``GPTModel`` chunk, or None."""
    layer = _LAYER.match(name)
    if layer:
        return Part("layer", chunk.decoder.layers[int(layer.group(1))].layer_number - 1)
    if name.startswith("embedding."):
        return Part("embedding")
    if name.startswith("decoder.final_layernorm."):
        return Part("final_norm")
    if name.startswith("output_layer."):
        # With tied embeddings the last stage's head is a second copy of the embedding, and a plan
        # says the same of both.
        return Part("output_layer")
    return None
