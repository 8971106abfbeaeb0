"""A tiny project folder as the launch scripts expect it: converted model, data, plan."""

from __future__ import annotations

import os
from pathlib import Path

from layertracer.plan import FreezePlan, Strategy
from tests.checkpoint.tiny import edit_config, save_tiny
from tests.data.conftest import save_bpe

ROOT = Path(__file__).parents[2]
LAYERS = 4
STEPS = 8


def make_project(folder: Path, case: str = "llama") -> dict[str, str]:
    """Make the project of a tiny model of ``case``; return the environment to launch it with."""
    from layertracer.checkpoint.to_megatron import to_megatron
    from layertracer.data.documents import Corpus
    from layertracer.data.prepare import prepare

    weights = save_tiny(folder / "weights", case, num_hidden_layers=LAYERS, vocab_size=512)
    save_bpe(weights)
    edit_config(weights, eos_token_id=0, bos_token_id=0)
    to_megatron(weights, folder / "megatron")
    text = folder / "text.txt"
    lines = [f"{n} 世界，你好 {n * n} hello world" for n in range(400)]
    text.write_text("\n\n".join(lines), "utf-8")
    prepare(Corpus((text,)), folder / "data" / "news", weights)
    plan = FreezePlan.from_strategy(
        Strategy.TRAIN_SHALLOW, num_layers=LAYERS, tied_embeddings=False, boundary=2
    )
    plan.save(folder / "plan.json")
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DEMO": str(folder),
        "STEPS": str(STEPS),
        "SEQ_LENGTH": "32",
        "GLOBAL_BATCH": "4",
        "SAVE_INTERVAL": "2",
        "LR": "1e-3",
        "SPLIT": "1,0,0",
    }
