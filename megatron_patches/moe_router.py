"""Routers of frozen layers keep their balancing biases.

What it changes: frozen routers get ``frozen_expert_bias``; ``finalize_model_grads.
_update_router_qb_beta`` leaves the quantile bias of such routers alone.
Why: both biases are moved after each step by the load of the experts, without any gradient, so
that a layer frozen by ``requires_grad`` alone still changes.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_moe_router.py, tests/distributed/test_freeze.py
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from layertracer.plan import Phase


def mark_routers(chunks: list[Any], phase: Phase) -> None:
    """Freeze the balancing biases of the layers that ``phase`` does not train, and no others."""
    for chunk in chunks:
        for layer in chunk.decoder.layers:
            router = getattr(getattr(layer, "mlp", None), "router", None)
            if router is not None:
                router.frozen_expert_bias = not phase.trains_layer(layer.layer_number - 1)


def _frozen_routers(chunks: list[Any]) -> Iterator[Any]:
    for chunk in chunks:
        for module in chunk.modules():
            if getattr(module, "frozen_expert_bias", False):
                yield module


def apply() -> None:
    """Wrap the update of the quantile bias."""
    # Its package has a function of the same name, which `from ... import` would find.
    finalize_model_grads = import_module("megatron.core.distributed.finalize_model_grads")

    update = finalize_model_grads._update_router_qb_beta

    def update_router_qb_beta(model: list[Any], *args: Any, **kwargs: Any) -> None:
        routers = [r for r in _frozen_routers(model) if getattr(r, "qb_beta", None) is not None]
        kept = [router.qb_beta.clone() for router in routers]
        update(model, *args, **kwargs)
        for router, bias in zip(routers, kept, strict=True):
            router.qb_beta.copy_(bias)

    finalize_model_grads._update_router_qb_beta = update_router_qb_beta
