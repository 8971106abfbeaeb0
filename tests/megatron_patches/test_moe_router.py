from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

from layertracer.plan import Phase
from megatron_patches import moe_router


class Router(torch.nn.Module):
    """Has the fields that Megatron's router has for quantile balancing."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_expert_bias = False
        self.register_buffer("qb_beta", torch.tensor([0.5, -0.5]))
        self.register_buffer("qb_beta_accum", torch.tensor([5.0, 1.0]))
        self.register_buffer("qb_beta_count", torch.tensor(2.0))


class Chunk(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.routers = torch.nn.ModuleList([Router(), Router()])
        layers = [
            SimpleNamespace(layer_number=number, mlp=SimpleNamespace(router=router))
            for number, router in enumerate(self.routers, start=1)
        ]
        self.decoder = SimpleNamespace(layers=layers)


def test_biases_of_frozen_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    finalize = importlib.import_module("megatron.core.distributed.finalize_model_grads")
    unpatched = finalize._update_router_qb_beta
    monkeypatch.setattr(finalize, "_update_router_qb_beta", unpatched)  # restores it afterwards
    moe_router.apply()
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)  # one rank
    chunk = Chunk()
    moe_router.mark_routers([chunk], Phase(layers=(1,)))
    config = SimpleNamespace(moe_router_quantile_balancing_ema=0.9)
    finalize._update_router_qb_beta([chunk], config)
    frozen, trained = chunk.routers
    assert frozen.frozen_expert_bias
    assert frozen.qb_beta.tolist() == [0.5, -0.5]
    assert not trained.frozen_expert_bias
    assert trained.qb_beta.tolist() != [0.5, -0.5]
