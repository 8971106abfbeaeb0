"""Measuring one batch of prompts: read states once, decode every depth in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layertracer.errors import UserError
from layertracer.trace.comparison import compare_logits
from layertracer.trace.encoding import EncodedPrompt
from layertracer.trace.model import TracedModel
from layertracer.trace.perturbation import Disturbance, batch_inputs, clean_row, perturbed_row

# Logits alive at once: memory depends on neither the number of prompts nor the vocabulary.
LOGITS_PER_CHUNK = {"cpu": 2**23, "cuda": 2**27}


@dataclass(frozen=True)
class Measured:
    """Numbers of a batch of prompts; arrays as in ``PromptTable``."""

    index: NDArray[np.int64]
    p: NDArray[np.float64]
    js: NDArray[np.float64]
    js_null: NDArray[np.float64] | None
    target: NDArray[np.int64]
    predicted: NDArray[np.int64]


def measure(
    traced: TracedModel,
    prompts: list[EncodedPrompt],
    disturbance: Disturbance,
    *,
    null_control: bool,
    given_target: bool,
) -> Measured:
    """Return the probabilities and divergences of ``prompts`` at every depth.

    Raises:
        UserError: the model's states are not finite.
    """
    states = _read_states(traced, prompts, disturbance, draws=2 if null_control else 1)
    given = torch.tensor([prompt.target for prompt in prompts]) if given_target else None
    numbers, predicted = _decode_all(traced, states, given)
    finite = torch.from_numpy(np.isfinite(numbers).all(axis=(0, 2)))
    _refuse_not_finite(finite, prompts, disturbance)
    return Measured(
        index=np.array([prompt.index for prompt in prompts]),
        p=numbers[0],
        js=numbers[1],
        js_null=numbers[2] if null_control else None,
        target=(predicted if given is None else given).cpu().numpy(),
        predicted=predicted.cpu().numpy(),
    )


def _decode_all(
    traced: TracedModel, states: list[Tensor], given: Tensor | None
) -> tuple[NDArray[np.float64], Tensor]:
    """Return P(target), JS and null JS ``[2 or 3, prompts, layers + 1]``, and the answers.

    The last depth is decoded first: its most probable token is the target of the others.
    """
    depths, count = states[0].shape[:2]
    flat = [variant.flip(0).flatten(0, 1) for variant in states]
    results = torch.zeros(len(states), depths * count, dtype=torch.float64)
    predicted = torch.zeros(count, dtype=torch.long, device=traced.device)
    target = predicted if given is None else given.to(traced.device)
    for rows in row_chunks(depths * count, traced.vocab_size * len(states), traced.device):
        decoded = traced.lens.decode(torch.cat([variant[rows] for variant in flat]))
        logits = decoded.chunk(len(states))
        last = slice(rows.start, min(rows.stop, count))
        if last.start < count:
            predicted[last] = logits[0][: last.stop - last.start].argmax(-1)
        wanted = torch.arange(rows.start, rows.stop, device=traced.device) % count
        results[:, rows] = compare_logits(logits, target[wanted]).cpu()
    return results.view(-1, depths, count).flip(1).transpose(1, 2).numpy(), predicted


def _read_states(
    traced: TracedModel, prompts: list[EncodedPrompt], disturbance: Disturbance, draws: int
) -> list[Tensor]:
    """Return ``[layers + 1, prompts, hidden]`` of the clean prompts and of each draw."""
    rows = [clean_row(prompt) for prompt in prompts]
    for draw in range(draws):
        rows += [perturbed_row(prompt, disturbance, draw) for prompt in prompts]
    width = traced.model.get_input_embeddings().embedding_dim
    states = traced.lens.read(*batch_inputs(rows, width, traced.device))
    _refuse_not_finite(states.isfinite().all(dim=-1).all(dim=0), prompts, disturbance)
    return list(states.chunk(1 + draws, dim=1))


def _refuse_not_finite(
    finite: Tensor, prompts: list[EncodedPrompt], disturbance: Disturbance
) -> None:
    """Raise UserError for the first row (of prompts, then of their draws) that isn't finite."""
    if not finite.all():
        bad = prompts[int(finite.logical_not().nonzero()[0]) % len(prompts)]
        raise UserError(
            f"{bad.prompt.source}: the model's states or logits are not finite (NaN or infinity) "
            f"for this prompt with perturbation {disturbance.kind.value}: try --dtype float32, or "
            "another --perturbation"
        )


def row_chunks(rows: int, logits_per_row: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of ``rows`` whose logits may be alive together on ``device``."""
    budget = LOGITS_PER_CHUNK.get(device.type, LOGITS_PER_CHUNK["cuda"])
    step = max(1, budget // logits_per_row)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
