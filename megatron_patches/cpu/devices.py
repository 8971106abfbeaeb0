"""Tensors and factories that name the device ``cuda`` make CPU tensors instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = [
    "arange",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "as_tensor",
    "zeros",
    "zeros_like",
]
_NEW = ["new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"]
_CPU = torch.device("cpu")


def names_cuda(device: Any) -> bool:
    """Whether ``device`` means a GPU: ``"cuda"``, ``"cuda:1"`` or such a ``torch.device``."""
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, torch.device) and device.type == "cuda"


def _keyword_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and names_cuda(kwargs["device"]):
            kwargs["device"] = _CPU
        return function(*args, **kwargs)

    return on_cpu


def _any_argument_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    with_keyword = _keyword_on_cpu(function)

    @functools.wraps(function)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        return with_keyword(*(_CPU if names_cuda(arg) else arg for arg in args), **kwargs)

    return on_cpu


def _type_as_on_gpu(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def printed(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = function(tensor, *args, **kwargs)
        # The distributed optimizer tells data types apart by comparing these strings.
        return answer.replace("torch.", "torch.cuda.") if isinstance(answer, str) else answer

    return printed


def apply() -> None:
    """Wrap the factories, conversions and ``Tensor.type`` of torch."""
    for name in _FACTORIES:
        setattr(torch, name, _keyword_on_cpu(getattr(torch, name)))
    for name in _NEW:
        setattr(torch.Tensor, name, _keyword_on_cpu(getattr(torch.Tensor, name)))
    torch.Tensor.to = _any_argument_on_cpu(torch.Tensor.to)
    torch.nn.Module.to = _any_argument_on_cpu(torch.nn.Module.to)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.nn.Module.cuda = lambda module, *_, **__: module
    torch.Tensor.type = _type_as_on_gpu(torch.Tensor.type)
    # Pinned memory needs a driver; on a CPU it would gain nothing.
    torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    torch.accelerator.is_available = lambda: False
