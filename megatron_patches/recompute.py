"""Activation recompute above a frozen prefix.

What it changes: wraps ``megatron.core.tensor_parallel.checkpoint``.
Why: a recomputed block whose inputs need no gradient (the embedding or the first layers are frozen)
silently gives its own weights no gradient, while weight decay goes on eroding them. Such a block is
run as it is: its inputs carry no graph, so nothing below is kept.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def apply() -> None:
    """Wrap Megatron's function wherever it is imported by name."""
    from megatron.core import recompute, tensor_parallel
    from megatron.core.tensor_parallel import random

    original = random.checkpoint

    def checkpoint(function: Callable[..., Any], distribute: bool, *args: Any) -> Any:
        inputs = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if torch.is_grad_enabled() and not any(tensor.requires_grad for tensor in inputs):
            return function(*args)
        return original(function, distribute, *args)

    random.checkpoint = checkpoint
    for module in (tensor_parallel, recompute):
        for name, value in list(vars(module).items()):
            if value is original:
                setattr(module, name, checkpoint)
