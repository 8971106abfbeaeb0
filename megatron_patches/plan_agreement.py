"""Every rank must train under the same plan: compared before training.

What it changes: nothing in Megatron; one small all-gather after its process groups exist.
Why: ranks that disagree on what trains wait for each other's gradients for ever.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from layertracer.errors import UserError
from layertracer.plan import FreezePlan


def hook(plan: FreezePlan | None) -> Callable[[list[Any]], list[Any]]:
    """Return a function for ``ModelConfig.pre_wrap_hooks`` that compares the plans of all ranks."""

    def compare(chunks: list[Any]) -> list[Any]:
        digests: list[str | None] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(digests, plan.digest() if plan else None)
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise UserError(
                f"--freeze-plan differs between rank 0 and rank {different[0]}: do all nodes read "
                "the same file?"
            )
        return chunks

    return compare
