"""Ranks that torchrun starts again must not meet the addresses of those that died.

What it changes: nothing in Megatron; ``pretrain`` is handed the store by which ranks find each
other, with names of its own for each restart.
Why: torchrun with a fixed master port keeps one store over restarts. A rank that is started again
reads the address that a dead one left there, can't connect, and every restart fails.
Megatron versions: 0.19.x (torch 2.6 to 2.14).
Test: tests/distributed/test_resume.py
"""

from __future__ import annotations

import os

import torch


def store() -> torch.distributed.Store | None:
    """Return the store for this start of the ranks; None where none outlives a start.

    A torchrun that keeps no store (``TORCH_DISABLE_SHARE_RDZV_TCP_STORE``) may have nodes that came
    in later, with fewer restarts to their name than the others: they must not be told apart.
    """
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if start is None or not kept or torch.distributed.is_initialized():
        return None
    shared, _, _ = next(torch.distributed.rendezvous("env://"))
    return torch.distributed.PrefixStore(f"start_{start}", shared)
