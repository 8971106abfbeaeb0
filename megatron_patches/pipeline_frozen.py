"""A wholly frozen beginning of the model runs forward only, on every pipeline stage.

What it changes: ``TransformerBlock.set_input_tensor`` cuts the graph when nothing before the block
trains; ``schedules.backward_step`` then hands zeros to the stage before, which waits for a
gradient.
Why: Megatron lets every received tensor require a gradient, so that a frozen stage that is not the
first one computes input gradients for nobody, layer by layer.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze.py
"""

from __future__ import annotations

from typing import Any

import torch

from layertracer.plan import Phase

_MARK = "layertracer_nothing_trains_before"


def mark_blocks(chunks: list[Any], phase: Phase) -> None:
    """Note in every chunk whether any parameter before its first layer trains."""
    for chunk in chunks:
        layers = chunk.decoder.layers
        first = layers[0].layer_number - 1 if len(layers) else chunk.config.num_layers
        trains = phase.embedding or any(layer < first for layer in phase.layers)
        setattr(chunk.decoder, _MARK, not trains)


def apply() -> None:
    """Wrap both functions."""
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.transformer_block import TransformerBlock

    set_input, backward = TransformerBlock.set_input_tensor, schedules.backward_step

    def set_input_tensor(self: TransformerBlock, input_tensor: torch.Tensor | None) -> None:
        if input_tensor is not None and getattr(self, _MARK, False):
            input_tensor = input_tensor.detach()
        set_input(self, input_tensor)

    def backward_step(input_tensor: Any, *args: Any) -> Any:
        return _zeros_for_none(input_tensor, backward(input_tensor, *args))

    TransformerBlock.set_input_tensor = set_input_tensor
    schedules.backward_step = backward_step


def _zeros_for_none(inputs: Any, gradients: Any) -> Any:
    """Return ``gradients`` with zeros for each None that belongs to a received tensor."""
    if isinstance(inputs, list):
        return [_zeros_for_none(*pair) for pair in zip(inputs, gradients, strict=True)]
    if inputs is not None and gradients is None:
        return torch.zeros_like(inputs)
    return gradients
