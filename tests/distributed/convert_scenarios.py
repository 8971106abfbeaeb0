"""Converted checkpoints loaded and run by Megatron; started by test_convert_logits.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from layertracer.plan import FreezePlan, Strategy
from megatron_patches import logits, pretrain
from tests.distributed.session import Session, forget_run

LAYOUTS = {
    "tp2": ["--tensor-model-parallel-size", "2"],
    "pp2": ["--pipeline-model-parallel-size", "2"],
    "ep2": ["--expert-model-parallel-size", "2"],
}


def run(session: Session, checkpoint: Path, tokens: str, out: str, flags: list[str]) -> None:
    """Write what the checkpoint's layers make of the tokens to ``checkpoint.parent / out``."""
    logits.forward(
        [
            *("--load", str(checkpoint), *flags),
            *("--probe-tokens", str(session.folder / tokens)),
            *("--probe-out", str(checkpoint.parent / out)),
        ]
    )
    forget_run()


def checkpoints(session: Session) -> list[Path]:
    """Return the converted checkpoints in the session's folder."""
    return sorted(session.folder.glob("*/megatron"))


def one_process(session: Session) -> None:
    """Every family, short; those that only differ far from the start also at 4,096 tokens."""
    for checkpoint in checkpoints(session):
        run(session, checkpoint, "short.pt", "one", [])
        if checkpoint.parent.name in ("llama-tied", "llama3", "llama-linear", "mistral-window"):
            run(session, checkpoint, "long.pt", "long", [])


def two_processes(session: Session) -> None:
    """Families split over two ranks; then trained checkpoints, whole and partly frozen."""
    from tests.distributed.test_convert_logits import SPLIT

    for case, layout in SPLIT:
        run(session, session.folder / case / "megatron", "short.pt", layout, LAYOUTS[layout])
    train(session, "trained-tp2", LAYOUTS["tp2"])
    train(session, "trained-pp2", LAYOUTS["pp2"])
    train(session, "frozen-dp2", ["--use-distributed-optimizer"], Strategy.TRAIN_SHALLOW)
    still = ["--bf16", "--use-distributed-optimizer", "--lr", "0", "--min-lr", "0"]
    train(session, "still", still, start="half/start")


def train(
    session: Session,
    name: str,
    flags: list[str],
    arm: Strategy | None = None,
    start: str = "llama-tied/megatron",
) -> None:
    """Train for two steps, save, and run what was saved."""
    saved = session.folder / name / "saved"
    plan: list[str] = []
    if arm is not None:
        file = session.folder / f"{name}.json"
        if session.rank == 0:
            made = FreezePlan.from_strategy(arm, num_layers=2, tied_embeddings=True, boundary=1)
            made.save(file)
        torch.distributed.barrier()
        plan = ["--freeze-plan", str(file)]
    command = list(sys.argv)
    pretrain.train(
        [
            *("--load", str(session.folder / start), "--save", str(saved), "--save-interval", "2"),
            *("--train-iters", "2", "--seq-length", "32", "--micro-batch-size", "1"),
            *("--global-batch-size", "2", "--lr", "1e-2", "--lr-decay-style", "constant"),
            *("--tokenizer-type", "NullTokenizer", "--split", "1,0,0", "--num-workers", "0"),
            *(*session.data, *flags, *plan),
        ]
    )
    sys.argv = command
    forget_run()
    run(session, saved, "short.pt", "one", [])
