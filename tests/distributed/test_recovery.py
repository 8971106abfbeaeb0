"""Recovery: what a run does when it is told to stop, when a rank hangs, when storage fails."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from megatron_patches.recovery_check import damage, iterations
from tests.distributed.recovery_scenarios import FLAGS, iteration
from tests.distributed.session import TINY, Run, Runs, checkpoint_tensors, start, torchrun

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


def workers(launcher: subprocess.Popen) -> list[psutil.Process]:
    """Return the processes that torchrun started, by rank."""
    children = psutil.Process(launcher.pid).children()
    return sorted(children, key=lambda child: int(child.environ()["RANK"]))


def wait_for(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def steps_done(folder: Path) -> int:
    file = folder / "layertracer" / "train.jsonl"
    return len(file.read_text("utf-8").splitlines()) if file.is_file() else 0


def resumed(log: Path) -> bool:
    """Whether the second start of the ranks has made a step."""
    text = log.read_text("utf-8")
    return "step " in text.rpartition("successfully loaded checkpoint")[2]


def test_a_hung_rank_is_found_and_a_stopped_run_saves_and_goes_on_to_the_same_end(damaged):
    folder, _ = damaged
    save = folder / "stopped"
    arguments = [*TINY, "--data-path", str(folder / "corpus"), *FLAGS, "--save", str(save)]
    hang_found_after = ["--distributed-timeout-seconds-after-init", "10"]
    log = folder / "stopped.log"
    module = "megatron_patches.pretrain"
    run = start(module, [*arguments, *hang_found_after], 2, log, "--max-restarts=1")
    try:
        wait_for(lambda: steps_done(save) >= 2 and damage(iteration(save, 2)) is None, 120)
        hung = workers(run)[1]
        hung.send_signal(signal.SIGSTOP)
        wait_for(lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, 90)
        wait_for(lambda: len(workers(run)) == 2 and resumed(log), 120)
        for worker in workers(run):
            worker.send_signal(signal.SIGTERM)
        run.wait(60)
    finally:
        run.terminate()
    assert run.returncode == 0, log.read_text("utf-8")[-3000:]
    saved = iterations(save)[0]
    assert saved < 6 and damage(iteration(save, saved)) is None
    rest = start(module, arguments, 2, log)
    assert rest.wait(120) == 0, log.read_text("utf-8")[-3000:]
    assert steps_done(save) == 6
    ours = checkpoint_tensors(iteration(save, 6))
    expected = checkpoint_tensors(iteration(folder / "whole", 6))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
