"""Disturbing the context of a prompt: ``mask``, ``drop`` or ``noise``, reproducibly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layertracer.trace.encoding import EncodedPrompt


class Perturbation(StrEnum):
    """What happens to the chosen context tokens."""

    MASK = "mask"  # replaced by the mask, unk, pad or eos token
    DROP = "drop"  # hidden from attention
    NOISE = "noise"  # Gaussian added to their embeddings


@dataclass(frozen=True)
class Disturbance:
    """How prompts are disturbed.

    Attributes:
        fraction: share of the context tokens that is hit; at least one token.
        noise_scale: standard deviation of the noise, in units of the root mean square of the
            token's own embedding.
        replacement: token id that ``mask`` writes.
    """

    kind: Perturbation
    fraction: float
    seed: int
    noise_scale: float = 1.0
    replacement: int = 0


@dataclass(frozen=True)
class Row:
    """One row of a batch: token ids, which of them attention sees, and noise (or None)."""

    ids: NDArray[np.int64]
    visible: NDArray[np.int64]
    hit: NDArray[np.int64]
    noise_rng: np.random.Generator | None = None
    noise_scale: float = 0.0


def clean_row(prompt: EncodedPrompt) -> Row:
    """Return the prompt as it is."""
    return Row(prompt.ids, np.ones_like(prompt.ids), np.empty(0, np.int64))


def perturbed_row(prompt: EncodedPrompt, disturbance: Disturbance, draw: int) -> Row:
    """Return the prompt with a part of its context disturbed.

    What is drawn depends on the seed, ``draw``, the prompt's text and how often that text came
    before, and on nothing else: not on the batch, nor on which prompts stand beside it.
    """
    rng = _generator(prompt, disturbance.seed, draw)
    hit = _chosen(prompt.context, disturbance.fraction, rng)
    ids, visible = prompt.ids.copy(), np.ones_like(prompt.ids)
    if disturbance.kind is Perturbation.NOISE:
        return Row(ids, visible, hit, rng, disturbance.noise_scale)
    if disturbance.kind is Perturbation.MASK:
        ids[hit] = disturbance.replacement
    else:
        visible[hit] = 0
    return Row(ids, visible, hit)


def _generator(prompt: EncodedPrompt, seed: int, draw: int) -> np.random.Generator:
    digest = hashlib.sha256(prompt.prompt.text.encode()).digest()
    text = int.from_bytes(digest[:8], "little")
    return np.random.default_rng([seed, draw, prompt.occurrence, text])


def _chosen(
    context: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    if not len(context):
        return context
    count = min(len(context), max(1, round(fraction * len(context))))
    return np.sort(rng.choice(context, count, replace=False))


def batch_inputs(
    rows: list[Row], width: int, device: torch.device
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Return model inputs, answer positions and embedding noise of right-padded ``rows``.

    Right padding keeps every real token at its natural position and out of reach of the padding,
    for attention and recurrent layers alike; padding is token 0, hidden from attention.

    Args:
        width: hidden size of the embedding, for noise.
    """
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    visible = torch.zeros_like(ids)
    noise = None
    if any(row.noise_rng is not None for row in rows):
        noise = torch.zeros(len(rows), length, width)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.from_numpy(row.ids)
        visible[index, : len(row.ids)] = torch.from_numpy(row.visible)
        if noise is not None and row.noise_rng is not None:
            drawn = row.noise_rng.standard_normal((len(row.hit), width), np.float32)
            noise[index, torch.from_numpy(row.hit)] = torch.from_numpy(drawn) * row.noise_scale
    positions = torch.tensor([len(row.ids) - 1 for row in rows])
    inputs = {"input_ids": ids.to(device), "attention_mask": visible.to(device)}
    return inputs, positions.to(device), noise.to(device) if noise is not None else None
