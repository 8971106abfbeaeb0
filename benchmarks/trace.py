"""How long a trace takes beside two stock forward passes, the naive way, and the arithmetic floor.

    python benchmarks/trace.py MODEL_DIR [--prompts antsynnet:FILE] [--num-prompts 500]

All see the same prompts, clean and disturbed:

- stock: ``model(**batch)`` twice, logits at every position, nothing else; batches of as many
  prompts as the trace's, in the order of the prompts. Sorted: in the trace's own batches.
- naive: two passes with ``output_hidden_states=True``; then for each layer its states at every
  position through norm and head, softmax, and the JSD at the answer. On ``--naive-prompts`` of the
  prompts only, scaled up.
- trace: everything that ``layertracer trace --no-null-control`` measures.
- floor: the multiply-adds of two passes through the blocks and of decoding every layer once a
  prompt and pass, at the speed of a large matrix product on this machine.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from layertracer.trace.encoding import EncodedPrompt, encode_prompts, replacement_token
from layertracer.trace.measure import measure
from layertracer.trace.model import TracedModel, load_model
from layertracer.trace.perturbation import (
    Disturbance,
    Perturbation,
    batch_inputs,
    clean_row,
    perturbed_row,
)
from layertracer.trace.prepare import batches, load_tokenizer
from layertracer.trace.prompts import PromptChoice, load_prompts
from layertracer.trace.runner import BATCH_TOKENS

Batch = list[EncodedPrompt]


def main(
    model: Path,
    prompts: str = "builtin",
    num_prompts: int = 500,
    batch_tokens: int = BATCH_TOKENS["cpu"],
    naive_prompts: Annotated[int, typer.Option(help="0 leaves the naive way out.")] = 20,
    shots: Annotated[int, typer.Option(help="Solved examples before a word pair.")] = 5,
) -> None:
    """Print the times and their ratios."""
    traced = load_model(model)
    tokenizer = load_tokenizer(model)
    chosen = load_prompts(PromptChoice(source=prompts, count=num_prompts, shots=shots))
    encoded = encode_prompts(
        chosen,
        tokenizer,
        limit=traced.context_length,
        vocab_size=traced.vocab_size,
        truncate=True,
    )
    disturbance = Disturbance(
        Perturbation.MASK, 0.3, 0, replacement=replacement_token(tokenizer)[0]
    )
    tokens = sum(map(len, encoded))
    print(
        f"{len(encoded)} prompts, {tokens} tokens, {traced.num_layers} layers, "
        f"vocabulary {traced.vocab_size}, {torch.get_num_threads()} threads"
    )
    timed = {"floor": floor_seconds(traced, tokens, len(encoded))}
    timed |= in_turns(traced, encoded, list(batches(encoded, 2, batch_tokens)), disturbance)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    if naive_prompts:
        few = encoded[:: max(1, len(encoded) // naive_prompts)]
        sums = [
            seconds(naive_passes, traced, batch, disturbance)
            for batch in batches(few, 2, batch_tokens)
        ]
        timed["naive"] = np.sum(sums, axis=0) * len(encoded) / len(few)
    for name, value in timed.items():
        against = value / timed["stock"]
        print(
            f"{name:13} {value[0]:8.1f} s {value[1]:8.1f} processor s,"
            f" {against[0]:6.2f} and {against[1]:6.2f} x stock"
        )
    print(f"peak memory of stock and trace: {peak:.2f} GiB")


def in_turns(
    traced: TracedModel, encoded: Batch, whole: list[Batch], disturbance: Disturbance
) -> dict[str, np.ndarray]:
    """Time stock passes and trace batch by batch, so that other work slows all alike."""
    trace_batch(traced, whole[-1], disturbance)  # warms up
    stock, stock_sorted, ours = np.zeros((3, 2))
    position = 0
    for batch in whole:
        in_order = encoded[position : position + len(batch)]
        position += len(batch)
        stock_sorted += seconds(stock_passes, traced, batch, disturbance)
        ours += seconds(trace_batch, traced, batch, disturbance)
        stock += seconds(stock_passes, traced, in_order, disturbance)
    return {"stock": stock, "stock, sorted": stock_sorted, "trace": ours}


def seconds(run: Callable[..., object], *args: object) -> np.ndarray:
    """Return how long ``run`` takes, ``[wall, processor]``; the second counts all threads."""
    wall, processor = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        run(*args)
    return np.array([time.perf_counter() - wall, time.process_time() - processor])


def floor_seconds(traced: TracedModel, tokens: int, prompts: int) -> np.ndarray:
    """Return the multiply-adds of the trace over the speed of a large float32 product."""
    blocks = sum(p.numel() for layer in traced.lens.layers for p in layer.parameters())
    width = traced.model.get_output_embeddings().weight.numel()
    multiply_adds = 2 * (tokens * blocks + prompts * (traced.num_layers + 1) * width)
    a, b = torch.randn(1024, 4096), torch.randn(4096, 4096)
    best = np.min([seconds(torch.mm, a, b) for _ in range(5)], axis=0)
    return multiply_adds * best / (1024 * 4096 * 4096)


def rows_of(batch: Batch, disturbance: Disturbance) -> list[dict[str, torch.Tensor]]:
    """Return the model inputs of the clean and of the disturbed prompts."""
    pairs = [[clean_row(p) for p in batch], [perturbed_row(p, disturbance, 0) for p in batch]]
    return [batch_inputs(rows, 1, torch.device("cpu"))[0] for rows in pairs]


def stock_passes(traced: TracedModel, batch: Batch, disturbance: Disturbance) -> None:
    """Two forward passes, logits everywhere."""
    for inputs in rows_of(batch, disturbance):
        traced.model(**inputs)


def trace_batch(traced: TracedModel, batch: Batch, disturbance: Disturbance) -> None:
    """Everything that the trace measures."""
    measure(traced, batch, disturbance, null_control=False, given_target=False)


def naive_passes(traced: TracedModel, batch: Batch, disturbance: Disturbance) -> None:
    """The way it is first written: every layer, every position, whole softmax."""
    base, head = traced.model.model, traced.model.get_output_embeddings()
    answers = torch.tensor([len(prompt) - 1 for prompt in batch])
    everything = [
        traced.model(**inputs, output_hidden_states=True).hidden_states
        for inputs in rows_of(batch, disturbance)
    ]
    for clean, disturbed in zip(*everything, strict=True):
        p, q = (
            head(base.norm(states)).softmax(-1)[torch.arange(len(batch)), answers]
            for states in (clean, disturbed)
        )
        naive_jsd(p, q).numpy()


def naive_jsd(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """JSD from probabilities, by its definition."""
    m = (p + q) / 2
    tiny = float(np.finfo(np.float32).tiny)

    def kl(a: torch.Tensor) -> torch.Tensor:
        return (a * ((a + tiny) / (m + tiny)).log()).sum(-1)

    return (kl(p) + kl(q)) / 2


if __name__ == "__main__":
    typer.run(main)
