"""The few places of Megatron itself that a machine without a GPU needs changed."""

from __future__ import annotations

import functools
from typing import Any

import torch


def apply() -> None:
    """Patch random states, the dataset helper, the norm, and the check for CUDA."""
    _random_states()
    _compiled_helper()
    _sequence_parallel_norm()
    _start_without_cuda()
    _expert_splits()


def _random_states() -> None:
    from megatron.core.tensor_parallel import random

    def get_state(_device: Any = None, clone: bool = False, graph_safe: bool = False) -> Any:
        return torch.get_rng_state()

    def set_state(state: torch.Tensor, _device: Any = -1, graph_safe: bool = False) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state = get_state
    random._set_cuda_rng_state = set_state


def _compiled_helper() -> None:
    """The wheel ships the compiled helper, but no Makefile to build it with."""
    from megatron.core.datasets import utils

    build = utils.compile_helpers

    def compile_helpers() -> None:
        try:
            import megatron.core.datasets.helpers_cpp  # noqa: F401
        except ImportError:
            build()

    utils.compile_helpers = compile_helpers


def _sequence_parallel_norm() -> None:
    """Let torch's norm be used under sequence parallelism.

    Its weight is whole on every rank while each sees a part of the sequence; the mark makes
    Megatron sum the weight's gradient over the tensor-parallel ranks, as for fused norms.
    """
    from megatron.core.transformer import torch_norm

    build = torch_norm.WrappedTorchNorm.__new__

    def new(cls: type, config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        split = config.sequence_parallel
        config.sequence_parallel = False
        try:
            norm = build(cls, config, *args, **kwargs)
        finally:
            config.sequence_parallel = split
        for parameter in norm.parameters():
            parameter.sequence_parallel = split
        return norm

    torch_norm.WrappedTorchNorm.__new__ = new


def _start_without_cuda() -> None:
    from megatron.training import training

    training.initialize_megatron = functools.partial(
        training.initialize_megatron, allow_no_cuda=True
    )


def _expert_splits() -> None:
    """Hand the sizes of the all-to-all between experts over as numbers.

    Megatron makes numbers of them when it copies them from the GPU; tensors that are on the CPU
    already stay tensors, which the collective does not take.
    """
    from megatron.core.transformer.moe import token_dispatcher

    move = token_dispatcher.maybe_move_tensor_to_cpu

    def moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        answer = move(tensor, as_numpy, record_stream)
        return answer.numpy() if as_numpy and isinstance(answer, torch.Tensor) else answer

    token_dispatcher.maybe_move_tensor_to_cpu = moved
