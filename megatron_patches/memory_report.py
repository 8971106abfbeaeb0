"""Parameters and bytes of a run, counted from its live objects.

What it changes: nothing in Megatron; it is called after the first step, when all state exists.
Why: that frozen layers cost no gradient and no optimizer state is a claim to be shown in every run.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.utils import unwrap_model

from megatron_patches.parts import parameters_by_part


def single_optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizers that hold state, without the chain around them."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    return [one for one in chained if getattr(one, "optimizer", None) is not None]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def gradient_bytes(chunks: list[Any]) -> int:
    """Return the bytes of this rank's gradient buffers."""
    buffers = [
        buffer
        for chunk in chunks
        for buffer in [*chunk.buffers, *getattr(chunk, "expert_parallel_buffers", [])]
    ]
    return _bytes(buffer.grad_data for buffer in buffers)


def optimizer_bytes(optimizer: Any) -> int:
    """Return the bytes of this rank's moments and main copies."""
    tensors = []
    for one in single_optimizers(optimizer):
        for state in one.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        for group in getattr(one, "shard_fp32_from_float16_groups", None) or []:
            tensors += [main for main in group if main is not None]
    return _bytes(tensors)


def parameter_counts(chunks: list[Any]) -> tuple[int, int]:
    """Return this rank's trained and frozen parameters, each parameter of the model once."""
    first_replica = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    trained = frozen = 0
    for chunk in unwrap_model(chunks):
        for _, parameter, _ in parameters_by_part(chunk):
            counted = param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(
                parameter, tp_group=parallel_state.get_tensor_model_parallel_group()
            )
            if not (counted and first_replica):
                continue
            if parameter.requires_grad:
                trained += parameter.numel()
            else:
                frozen += parameter.numel()
    return trained, frozen


def report(chunks: list[Any], optimizer: Any) -> dict[str, int]:
    """Return the counts of all ranks together (a collective call)."""
    trained, frozen = parameter_counts(chunks)
    counts = torch.tensor(
        [trained, frozen, gradient_bytes(chunks), optimizer_bytes(optimizer)],
        dtype=torch.int64,
        device="cuda",
    )
    torch.distributed.all_reduce(counts)
    names = ("trained_parameters", "frozen_parameters", "gradient_bytes", "optimizer_bytes")
    return dict(zip(names, counts.tolist(), strict=True))
