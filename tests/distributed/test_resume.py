"""Saving, being killed and resuming: the weights are those of a run that never stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.distributed.freeze_scenarios import CASES, SAVED, STEPS, killed_flags
from tests.distributed.session import TINY, Runs, checkpoint_tensors, start

pytestmark = pytest.mark.distributed
KILLS = 2


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_ends_with_the_very_same_weights(runs: Runs, name: str) -> None:
    for run, resumed in zip(runs[name], runs[f"{name}-resumed"], strict=True):
        assert len(resumed.losses) == STEPS - SAVED
        assert not [k for k in run.after if not torch.equal(run.after[k], resumed.after[k])]


def test_several_padded_buckets_are_saved_at_the_right_places(
    runs: Runs, runs_folder: Path
) -> None:
    one = checkpoint_tensors(runs_folder / "dp2-one-bucket" / f"iter_{SAVED:07}")
    several = checkpoint_tensors(runs_folder / "dp2-buckets" / f"iter_{SAVED:07}")
    moments = [key for key in one if "exp_avg" in key]
    assert moments
    assert one.keys() == several.keys()
    assert not [key for key in one if not torch.equal(one[key], several[key])]


def test_only_trained_parameters_have_optimizer_state_in_the_checkpoint(
    runs: Runs, runs_folder: Path
) -> None:
    tensors = checkpoint_tensors(runs_folder / "dp2-buckets" / f"iter_{SAVED:07}")
    layers = {key.split("decoder.layers.")[1].split(".")[0] for key in tensors if "exp_avg" in key}
    assert layers == {"1", "3"}
    weights = {key for key in tensors if not key.startswith(("optimizer", "rng", "rerun"))}
    assert {f"decoder.layers.{layer}.mlp.linear_fc1.weight" for layer in range(4)} <= weights


def test_killed_at_random_moments_it_ends_like_the_run_that_was_never_killed(
    runs: Runs, runs_folder: Path
) -> None:
    save = runs_folder / "often-killed"
    data = ["--data-path", str(runs_folder / "corpus")]
    run = start(
        "megatron_patches.pretrain",
        [*TINY, *data, *killed_flags(save)],
        2,
        log := runs_folder / "often-killed.log",
        *("--max-restarts", str(KILLS), "--monitor-interval", "0.2"),
    )
    try:
        kill_workers(run.pid, save, KILLS)
        run.wait(450)
    finally:
        run.terminate()
    assert run.returncode == 0, log.read_text("utf-8", errors="replace")[-8000:]
    never, often = (
        checkpoint_tensors(folder / "iter_0000060")
        for folder in (runs_folder / "never-killed", save)
    )
    assert never.keys() == often.keys()
    assert not [key for key in never if not torch.equal(never[key], often[key])]


def kill_workers(torchrun: int, save: Path, times: int) -> None:
    """Kill one rank, at a random moment after a checkpoint came, ``times`` times."""
    chance = random.Random(os.getpid())
    seen: set[int] = set()
    for _ in range(times):
        before = latest(save)
        deadline = time.monotonic() + 120
        while latest(save) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.6))
        workers = [
            child
            for child in psutil.Process(torchrun).children()
            if child.pid not in seen and child.status() != psutil.STATUS_ZOMBIE
        ]
        assert workers, "the run ended before it could be killed"
        seen |= {worker.pid for worker in workers}
        killed = chance.choice(workers)
        helpers = killed.children(recursive=True)
        killed.send_signal(signal.SIGKILL)
        for helper in helpers:  # of Megatron's checkpoints; they would outlive their rank
            with contextlib.suppress(psutil.NoSuchProcess):
                helper.kill()


def latest(save: Path) -> str:
    tracker = save / "latest_checkpointed_iteration.txt"
    return tracker.read_text() if tracker.is_file() else ""
