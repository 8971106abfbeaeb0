"""Next-token log-probabilities of many texts: prefix once, head at the wanted positions only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from layertracer.evaluate.packing import Batch, Tokens

_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}


class _PrefixLayer(DynamicLayer):
    """Keys and values of a prefix, put before those of each batch and never changed."""

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.keys, self.values = layer.keys, layer.values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return prefix and batch together, ``[batch, heads, prefix + length, head_dim]``."""
        rows = key_states.shape[0]
        return (
            torch.cat([self.keys.expand(rows, -1, -1, -1), key_states], dim=-2),
            torch.cat([self.values.expand(rows, -1, -1, -1), value_states], dim=-2),
        )


class Forward:
    """Runs a causal model; ``tokens`` counts what went through it, padding aside."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.tokens = 0
        self.shares_prefixes = _can_share(model)
        self._prefix: Tokens = ()
        self._cache: Cache | None = None

    @torch.inference_mode()
    def log_probs(self, batch: Batch) -> torch.Tensor:
        """Return log-probabilities at the last ``heads`` positions of each row.

        Returns:
            float32 ``[rows, heads, vocabulary]``, ``heads`` the largest of the batch; rows that
            want fewer hold them at the end.
        """
        heads = max(row.heads for row in batch.rows)
        prefix = batch.prefix
        rest = [row.tokens[prefix:] for row in batch.rows]
        self.tokens += sum(map(len, rest))
        inputs = torch.zeros(len(rest), max(map(len, rest)), dtype=torch.long)
        for number, tokens in enumerate(rest):
            inputs[number, : len(tokens)] = torch.tensor(tokens)
        ends = torch.tensor([len(tokens) for tokens in rest])
        wanted = (ends[:, None] + torch.arange(-heads, 0)).clamp(min=0)
        before = {"cache": self._prefix_cache(batch.rows[0].tokens[:prefix])} if prefix else {}
        logits = self._logits(inputs, wanted, use_cache=bool(prefix), **before)
        return torch.log_softmax(logits.float(), dim=-1)

    def _logits(self, inputs: torch.Tensor, wanted: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        device = self.model.device
        wanted = wanted.to(device)
        with _head_at(self.model, wanted):
            # Padding stands on the right, where a causal model's earlier positions don't see it.
            logits = self.model(input_ids=inputs.to(device), **kwargs).logits
        if logits.shape[1] != wanted.shape[1]:
            logits = _gathered(logits, wanted)  # this model's head is not a module of its own
        return logits

    def _prefix_cache(self, prefix: Tokens) -> Cache:
        if prefix != self._prefix or self._cache is None:
            self._prefix, self._cache = prefix, None  # frees the last one first
            inputs = torch.tensor([prefix], device=self.model.device)
            with _head_at(self.model, torch.zeros_like(inputs[:, :1])):
                cache = self.model(input_ids=inputs, use_cache=True).cache
            self.tokens += len(prefix)
            self._cache = Cache(layers=[_PrefixLayer(layer) for layer in cache.layers])
        return self._cache


@contextmanager
def _head_at(model: PreTrainedModel, wanted: torch.Tensor) -> Iterator[None]:
    """Let the output head see only positions ``wanted`` (``[rows, heads]``) of each row."""
    head = model.get_output_embeddings()
    if head is None:
        yield
        return

    def before(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (_gathered(args[0], wanted), *args[1:])

    hook = head.register_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()


def _gathered(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    index = wanted.to(states.device)[..., None].expand(-1, -1, states.shape[-1])
    return states.gather(1, index)


@torch.inference_mode()
def _can_share(model: PreTrainedModel) -> bool:
    """Whether the model keeps plain keys and values, the same whatever follows them."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
        return False
    out = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True)
    layers = getattr(getattr(out, "cache", None), "layers", None)
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
