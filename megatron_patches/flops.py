"""Floating-point operations of a partly frozen model, for the TFLOP/s that Megatron reports.

What it changes: wraps ``megatron.training.training.num_floating_point_operations``.
Why: Megatron counts three passes (forward, input gradient, weight gradient) over every layer. A
frozen layer has no weight gradient; a layer with nothing that trains up to it has no backward.
Megatron versions: 0.19.x (models of one kind of layer; patterns of a hybrid keep Megatron's count).
Tests: tests/megatron_patches/test_flops.py, tests/distributed/test_freeze_events.py
"""

from __future__ import annotations

from typing import Any

from layertracer.plan import Phase
from megatron_patches import freeze


def passes(phase: Phase, num_layers: int) -> tuple[int, int, int]:
    """Return passes over the linears of all layers, over their attention cores, and the head.

    A matrix product is one pass forward and one for each of its two gradients. The core of
    attention has two operands, both activations, so that its gradients count two or nothing.
    """
    linears = cores = 0
    reached = phase.embedding
    for layer in range(num_layers):
        trains = phase.trains_layer(layer)
        reached = reached or trains
        linears += 1 + reached + trains
        cores += 3 if reached else 1
    return linears, cores, 1 + (reached or phase.final_norm) + phase.output_layer


def operations(linears: float, cores: float, head: float, phase: Phase, num_layers: int) -> float:
    """Return the operations of a step under ``phase``, from those when everything trains."""
    whole = 3 * num_layers
    for_linears, for_cores, for_head = passes(phase, num_layers)
    return linears * for_linears / whole + cores * for_cores / whole + head * for_head / 3


def apply() -> None:
    """Wrap Megatron's count."""
    from megatron.training import training

    count = training.num_floating_point_operations

    def num_floating_point_operations(
        args: Any,
        batch_size: int,
        seqlen_squared_sum_in_batch: float | None = None,
        total_real_tokens_in_batch: float | None = None,
    ) -> float:
        whole = count(args, batch_size, seqlen_squared_sum_in_batch, total_real_tokens_in_batch)
        phase = freeze.in_force
        if phase is None or training.is_hybrid_model(args) or args.mtp_num_layers:
            return whole
        linears = count(args, batch_size, 0, total_real_tokens_in_batch)
        tokens = total_real_tokens_in_batch
        if tokens is None:
            tokens = batch_size * args.seq_length
        head = 6 * tokens * args.hidden_size * args.padded_vocab_size
        return operations(linears - head, whole - linears, head, phase, args.num_layers)

    training.num_floating_point_operations = num_floating_point_operations
