"""The launch scripts: what they would run, and what they refuse. Nothing is trained here."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cluster.project import ROOT, make_project


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> dict[str, str]:
    environment = make_project(tmp_path_factory.mktemp("project"), "llama")
    for name in ("STEPS", "SEQ_LENGTH", "GLOBAL_BATCH", "SAVE_INTERVAL", "LR"):
        del environment[name]
    return environment


def dry_run(script: str, environment: dict[str, str], *more: str) -> subprocess.CompletedProcess:
    command = ["bash", f"examples/{script}", "--dry-run", *more]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def flags_of(done: subprocess.CompletedProcess) -> dict[str, str]:
    """Return the flags of the printed command with their values, the last one if doubled."""
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words[:3] == ["python", "-m", "megatron_patches.pretrain"]
    found = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value or ("" if following.startswith("--") else following)
    return found


def test_a_size_sets_the_whole_h100_layout(project):
    settings = {**project, "SIZE": "70b", "NPROC": "8", "DEVICE": "gpu", "PLAN": "none"}
    done = dry_run("cpt_llama.sh", settings | {"TORCHRUN_ARGS": "--nnodes=4"})
    flags = flags_of(done)
    assert "--nnodes=4" in done.stdout.splitlines()[0]
    assert "32 ranks: TP 8, PP 4, DP 1; 128 micro-batches" in done.stdout
    wanted = {
        "--tensor-model-parallel-size": "8",
        "--pipeline-model-parallel-size": "4",
        "--seq-length": "8192",
        "--recompute-granularity": "selective",
        "--recompute-modules": "mlp",
        "--lr": "1e-05",
    }
    assert wanted.items() <= flags.items()
    for switch in ("--bf16", "--sequence-parallel", "--overlap-grad-reduce"):
        assert switch in flags
    assert "--use-distributed-optimizer" in flags and "--use-cpu-initialization" not in flags


def test_a_variable_overrides_the_size_and_an_argument_everything(project):
    settings = {**project, "SIZE": "8b", "NPROC": "8", "DEVICE": "gpu", "TP": "4", "LR": "2e-5"}
    flags = flags_of(dry_run("cpt_llama.sh", settings, "--lr", "7e-6", "--wandb-project", "x"))
    assert flags["--tensor-model-parallel-size"] == "4"
    assert (flags["--lr"], flags["--wandb-project"]) == ("7e-6", "x")
    assert flags["--freeze-plan"].endswith("plan.json")


def test_qwen3_has_its_own_sizes(project):
    settings = {**project, "SIZE": "32b", "NPROC": "8", "DEVICE": "gpu", "PLAN": "none"}
    done = dry_run("cpt_qwen3.sh", settings | {"TORCHRUN_ARGS": "--nnodes 2"})
    assert flags_of(done)["--lr"] == "2e-05"
    assert "16 ranks: TP 8, PP 1, DP 2" in done.stdout


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SIZE": "9b"}, "error: SIZE=9b: no such size of llama; there are: 1b, 8b, 70b\n"),
        ({"NPROC": "3", "TP": "2"}, "do not divide the 3 that there are"),
        ({"NPROC": "2", "TP": "1", "GLOBAL_BATCH": "3"}, "GLOBAL_BATCH=3 is no multiple"),
        ({"LOAD": "nowhere"}, "error: --load nowhere: no Megatron checkpoint there"),
    ],
)
def test_what_can_not_work_is_one_line_and_exit_code_2(project, settings, said):
    done = dry_run("cpt_llama.sh", project | settings)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not (Path(project["DEMO"]) / "cpt").exists()
