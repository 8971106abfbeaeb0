"""How much faster an evaluation is than lm-eval's stock run, on the same questions.

    python benchmarks/eval.py MODEL_DIR [--data-dir DIR --tasks cmmlu] [--questions 6]

Both see the same lm-eval tasks, subject by subject in turns, so that other work on the machine
slows both alike: stock is ``lm_eval``'s ``HFLM`` with its defaults and ``--batch-size``, ours is
``OptionLM``. Printed for 5 and 0 shots: tokens through the model, seconds on the clock and of the
processor, their ratios, and how many answers differ. Loading the model is not counted.
"""

from __future__ import annotations

import os

os.environ.setdefault("TQDM_DISABLE", "1")

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from lm_eval.models.huggingface import HFLM

from layertracer.evaluate.files import EvalSettings
from layertracer.evaluate.harness import run_lm_eval
from layertracer.evaluate.lm import OptionLM
from layertracer.evaluate.loading import load_model, load_tokenizer
from layertracer.evaluate.questions import Suite
from layertracer.evaluate.sources import load_suites
from layertracer.model_folder import ModelFolder
from layertracer.trace.model import pick_device


@dataclass
class Timed:
    """Clock and processor seconds so far."""

    wall: float = 0.0
    processor: float = 0.0

    def run(self, lm: Any, suite: Suite, settings: EvalSettings) -> np.ndarray:
        """Return the options' log-probabilities, ``[questions, 4]``."""
        wall, processor = time.perf_counter(), time.process_time()
        samples = run_lm_eval(lm, [suite], settings)["samples"]
        self.wall += time.perf_counter() - wall
        self.processor += time.process_time() - processor
        (rows,) = samples.values()
        return np.array([[option[0] for option in row["filtered_resps"]] for row in rows])


def main(
    model: Path,
    tasks: str = "builtin",
    data_dir: Path | None = None,
    questions: Annotated[int, typer.Option(help="Of each subject.")] = 6,
    subjects: Annotated[int, typer.Option(help="How many.")] = 8,
    batch_size: Annotated[int, typer.Option(help="Of the stock run.")] = 8,
    prompt: str = "lm-eval",
    dtype: str = "float32",
    device: str = "auto",
) -> None:
    """Print times, tokens and their ratios."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    loaded = load_model(ModelFolder(model), dtype, pick_device(device))
    tokenizer = load_tokenizer(model)
    ours = OptionLM(loaded, tokenizer)
    stock = HFLM(pretrained=loaded, tokenizer=tokenizer, backend="causal", batch_size=batch_size)
    (suite,) = load_suites([tasks], data_dir, 5)
    parts = [Suite(suite.name, (one,)) for one in suite.limited(questions).subjects[:subjects]]
    print(f"{model}, {dtype}, {loaded.device}, {torch.get_num_threads()} threads")
    compare(ours, stock, parts[:1], EvalSettings(prompt=prompt))  # warms both up
    for shots in (5, 0):
        found = compare(ours, stock, parts, EvalSettings(shots=shots, prompt=prompt))
        print(f"{shots} shots: {found}", flush=True)


def compare(ours: OptionLM, stock: HFLM, parts: list[Suite], settings: EvalSettings) -> str:
    """Run both over every part and say what it took."""
    fast, slow = Timed(), Timed()
    tokens, unshared = ours.forward.tokens, ours.tokens_unshared
    difference, changed, count = 0.0, 0, 0
    for part in parts:
        a, b = fast.run(ours, part, settings), slow.run(stock, part, settings)
        difference = max(difference, float(np.abs(a - b).max()))
        changed += int((a.argmax(1) != b.argmax(1)).sum())
        count += len(a)
    tokens, unshared = ours.forward.tokens - tokens, ours.tokens_unshared - unshared
    return (
        f"{count} questions, {changed} answers differ (log-probabilities by {difference:.1e}); "
        f"stock {slow.wall:.1f} s, ours {fast.wall:.1f} s: {slow.wall / fast.wall:.1f}x "
        f"(processor {slow.processor / fast.processor:.1f}x); "
        f"tokens {unshared // 4:,} -> {tokens:,}: {unshared / 4 / tokens:.1f}x"
    )


if __name__ == "__main__":
    typer.run(main)
