"""Recovery: what a run does when a checkpoint is damaged or storage fails."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from megatron_patches.recovery_check import damage, iterations
from tests.distributed.recovery_scenarios import iteration
from tests.distributed.session import Run, Runs, torchrun

pytestmark = pytest.mark.distributed
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> tuple[Path, Runs]:
    folder = tmp_path_factory.mktemp("damaged")
    return folder, torchrun("recovery_scenarios:damaged", folder, 2)


def same_weights(runs: list[Run], others: list[Run]) -> bool:
    return all(
        run.after.keys() == other.after.keys()
        and all(torch.equal(run.after[name], other.after[name]) for name in run.after)
        for run, other in zip(runs, others, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "resumed_from", "said"),
    [
        ("flipped", 4, "is damaged in the record at byte"),
        ("short-and-lost", 2, ".metadata can't be read"),
        ("unfinished", 4, "metadata.json, which is written last"),
    ],
)
def test_a_damaged_latest_checkpoint_falls_back_to_the_one_before(
    damaged, name, resumed_from, said
):
    folder, runs = damaged
    assert len(runs[name][0].losses) == 6 - resumed_from
    printed = runs[name][0].facts["printed"]
    assert said in printed and f"going on from checkpoint {resumed_from} instead" in printed
    # It arrives where the run that was never disturbed did; the damaged ones are kept aside.
    assert same_weights(runs[name], runs["whole"])
    assert (folder / name / "iter_0000006.damaged-1").is_dir()
    assert damage(iteration(folder / name, 6)) is None
    assert (folder / name / "latest_checkpointed_iteration.txt").read_text("utf-8") == "6"


def test_a_damaged_source_that_is_not_the_runs_own_is_passed_over_and_left_alone(damaged):
    folder, runs = damaged
    assert same_weights(runs["from-source"], runs["whole"])
    assert damage(iteration(folder / "source", 6)) is not None
    assert not list((folder / "source").glob("*.damaged-*"))


def test_when_nothing_is_whole_one_line_says_so(damaged):
    folder, runs = damaged
    for message in runs["hopeless-error"]:
        assert message == (
            f"--load {folder / 'hopeless'}: none of its checkpoints is whole; remove the folder, "
            "or load another one"
        )


@pytest.fixture(scope="module")
def failing(tmp_path_factory) -> Iterator[tuple[Path, Runs]]:
    folder = tmp_path_factory.mktemp("failing")
    small = folder / "full"
    small.mkdir()
    # Room for one checkpoint and a half.
    options = f"size={4 * MEBIBYTE}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True, check=False
    )
    try:
        yield folder, torchrun("recovery_scenarios:failing", folder, 2)
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("name", ["rank-fails", "index-fails"])
def test_a_save_that_fails_on_one_rank_leaves_the_others_whole_and_training_goes_on(
    failing, damaged, name
):
    folder, runs = failing
    assert len(runs[name][0].losses) == 6
    printed = runs[name][0].facts["printed"]
    assert printed.count("was not saved") == 1 and "checkpoint 4 was not saved" in printed
    assert iterations(folder / name) == [6, 2]
    assert all(damage(iteration(folder / name, step)) is None for step in (2, 6))
    assert same_weights(runs[name], damaged[1]["whole"])


def test_a_full_disk_keeps_the_last_checkpoint_and_training_goes_on(failing, damaged):
    folder, runs = failing
    if "full" not in runs:
        pytest.skip("mounting a small file system needs root")
    assert len(runs["full"][0].losses) == 6
    printed = runs["full"][0].facts["printed"]
    assert "checkpoint 4 was not saved" in printed and "checkpoint 6 was not saved" in printed
    assert "the disk is full" in printed
    assert iterations(folder / "full") == [2] and damage(iteration(folder / "full", 2)) is None
    assert same_weights(runs["full"], damaged[1]["whole"])
