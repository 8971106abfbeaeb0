"""Real Megatron on a machine without a GPU, with gloo. Does nothing at all where a GPU is.

What it changes: the ``torch.cuda`` entry points that Megatron calls unconditionally
(``cuda_calls``), tensors and factories that name the device ``cuda`` (``devices``), and a few
places of Megatron itself (``megatron_places``).
Why: development, CI, laptops and the demo run the same engine as the cluster.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_cpu.py and every test under tests/distributed.
"""

from __future__ import annotations

import os

import torch


def needed() -> bool:
    """Whether this machine has no GPU that torch can use."""
    return not torch.cuda.is_available()


def apply() -> None:
    """Patch torch and Megatron when there is no GPU."""
    if not needed():
        return
    # Read when torch.compile is called; Megatron's fused functions then run as they are written.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Makes its table of torch's functions when imported, which must see each under one name.
    import torch._dynamo  # noqa: F401

    from megatron_patches.cpu import cuda_calls, devices

    cuda_calls.apply()
    devices.apply()
    from megatron_patches.cpu import megatron_places

    megatron_places.apply()
