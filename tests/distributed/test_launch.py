"""examples/cpt_llama.sh, started in each of its three ways, and what it does with bad input."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from layertracer.plan import FreezePlan, Strategy
from tests.cluster.project import LAYERS, ROOT, STEPS, make_project

pytestmark = pytest.mark.distributed
SCRIPT = "examples/cpt_llama.sh"
TORCHRUN = str(ROOT / ".venv" / "bin" / "torchrun")
if not Path(TORCHRUN).is_file():
    TORCHRUN = shutil.which("torchrun") or "torchrun"
WAYS = {
    "bash": ["bash", SCRIPT],
    "one": [TORCHRUN, SCRIPT],
    "two": [TORCHRUN, "--nproc-per-node", "2", SCRIPT],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A tiny project, and the environment to launch it with."""
    folder = tmp_path_factory.mktemp("project")
    return folder, {**make_project(folder), "NPROC": "1"}


def run(way: str, environment: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """Start the script; whatever it started ends with it."""
    process = subprocess.Popen(
        [*WAYS[way], *more],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "layertracer" / "train.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(project) -> dict[str, Path]:
    """The save folder of a run in each way."""
    folder, environment = project
    saved = {}
    for way in WAYS:
        saved[way] = folder / f"run-{way}"
        done = run(way, {**environment, "SAVE": str(saved[way])})
        assert done.returncode == 0, done.stderr[-4000:]
        shown = [line for line in done.stdout.splitlines() if line.startswith("step ")]
        assert len(shown) == STEPS, "one line a step"
        assert "error" not in done.stderr.lower()
    return saved


def test_every_step_is_recorded_once(trained):
    for saved in trained.values():
        assert [line["step"] for line in records(saved)] == list(range(1, STEPS + 1))
        assert all(line["tokens_per_second"] > 0 for line in records(saved))


def test_one_process_and_tensor_parallel_give_the_same_losses(trained):
    losses = {way: [line["loss"] for line in records(saved)] for way, saved in trained.items()}
    assert losses["bash"] == pytest.approx(losses["one"], rel=1e-6)
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-4)
    assert losses["one"][-1] < losses["one"][0]


def test_what_megatron_says_is_kept_in_a_file(trained):
    log = (trained["one"] / "layertracer" / "megatron.log").read_text("utf-8")
    assert "end of arguments" in log


def test_the_trained_model_goes_back_to_hugging_face(trained, tmp_path):
    from safetensors.torch import load_file

    from layertracer.checkpoint.to_hf import to_hf

    to_hf(trained["two"], tmp_path / "hf")
    after = load_file(tmp_path / "hf" / "model.safetensors")
    before = load_file(trained["two"].parent / "weights" / "model.safetensors")
    assert after.keys() == before.keys()
    plan = FreezePlan.load(trained["two"] / "layertracer" / "plan.json")
    for name, weight in after.items():
        layer = int(name.split(".")[2]) if name.startswith("model.layers.") else None
        frozen = name in ("model.norm.weight", "lm_head.weight") or (
            layer is not None and layer not in plan.phases[0].layers
        )
        assert weight.equal(before[name]) == frozen, name


def test_a_finished_run_is_not_trained_again(trained, project):
    _, environment = project
    before = records(trained["one"])
    done = run("one", {**environment, "SAVE": str(trained["one"])})
    assert done.returncode == 0 and "step " not in done.stdout
    assert records(trained["one"]) == before


def test_bad_input_is_one_line_and_leaves_nothing(project, tmp_path):
    _, environment = project
    plan = FreezePlan.from_strategy(
        Strategy.TRAIN_SHALLOW, num_layers=LAYERS + 1, tied_embeddings=False, boundary=2
    )
    plan.save(tmp_path / "other.json")
    faults = {
        "LOAD": (str(tmp_path / "nowhere"), "nowhere"),
        "PLAN": (str(tmp_path / "other.json"), f"for {LAYERS + 1} layers, the model has {LAYERS}"),
        "DATA": (str(tmp_path / "corpus"), "layertracer prepare-data"),
    }
    for name, (value, message) in faults.items():
        changed = {**environment, "SAVE": str(tmp_path / "run"), name: value}
        done = run("one", changed)
        assert done.returncode != 0
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(said) == 1 and message in said[0], done.stderr[-3000:]
        assert "exitcode  : 2" in done.stderr
        assert "megatron_patches/" not in done.stderr, "no traceback of ours"
        assert not list((tmp_path / "run").glob("iter_*"))
