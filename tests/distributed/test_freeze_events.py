"""What trains changes in mid-run: exactly as if the run had been resumed under the new plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.distributed.event_scenarios import ORACLES, RUNS, SCHEDULE, STEPS
from tests.distributed.freeze_scenarios import ARMS
from tests.distributed.session import Run, Runs, torchrun

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    torchrun("event_scenarios:one_process", folder, processes=1)
    return torchrun("event_scenarios:two_processes", folder, processes=2, timeout=590)


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


@pytest.mark.parametrize("step", [3, 5, 6])
@pytest.mark.parametrize("name", RUNS)
def test_a_change_equals_a_resume_under_the_new_plan(runs: Runs, name: str, step: int) -> None:
    for run, resumed in zip(runs[name], runs[f"{name}-from-{step}"], strict=True):
        assert len(resumed.losses) == STEPS - step
        assert different(run.after, resumed.after) == []
        assert different(run.facts["state"], resumed.facts["state"]) == []


@pytest.mark.parametrize("name", ORACLES)
def test_a_freeze_equals_the_run_whose_updates_are_masked(runs: Runs, name: str) -> None:
    for masked, rebuilt in zip(runs[name], runs[f"{name}-rebuilt"], strict=True):
        assert different(masked.after, rebuilt.after) == []
        assert rebuilt.losses == masked.losses


@pytest.mark.parametrize("name", RUNS)
def test_every_part_counts_its_own_steps(runs: Runs, name: str) -> None:
    counted = {}
    for run in runs[name]:
        for key, value in run.facts["state"].items():
            if key.endswith("mlp.linear_fc2.weight.step"):
                counted[int(key.split(".")[2])] = value.item()
    # Layer 1 trains from the start, layer 2 until step 3 and again from step 5, layer 3 from 5.
    assert counted == {1: STEPS, 2: STEPS - 5, 3: STEPS - 5}


@pytest.mark.parametrize("name", RUNS)
def test_after_a_change_only_the_new_phase_is_allocated(runs: Runs, name: str) -> None:
    for run in runs[name]:
        assert run.facts["in_buffers"] == run.trained
        assert {int(key.split(".")[2]) for key in run.trained} <= set(SCHEDULE[-1].layers)
        assert run.facts["gradient_elements"] == run.facts["trained_elements"]


def layer_bytes(run: Run, layer: int, per_parameter: float) -> float:
    weights = [w for key, w in run.after.items() if key.startswith(f"decoder.layers.{layer}.")]
    return sum(weight.numel() for weight in weights) * per_parameter


@pytest.mark.parametrize(
    ("name", "per_parameter"),
    [("events-dp2", 4 + 12 / 2), ("events-tp2", 4 + 8)],  # gradient; main copy and moments
)
def test_freezing_returns_the_memory(runs: Runs, name: str, per_parameter: float) -> None:
    for run in runs[name]:
        freed = run.facts["live_bytes"][3] - run.facts["live_bytes"][4]
        # Two shards need not be cut between layers; the padding and steps of the buffers change.
        assert freed == pytest.approx(layer_bytes(run, 2, per_parameter), abs=2048)


def test_every_change_is_recorded(runs: Runs, folder: Path) -> None:
    file = folder / "events-tp2" / "layertracer" / "freeze_events.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["step"], line["trains"]["layers"]) for line in lines] == [
        (phase.at_step, list(phase.layers)) for phase in SCHEDULE[1:]
    ]
    for line in lines:
        # float32: four bytes of gradient a parameter, padded to 128 elements on each of two ranks.
        padding = line["after"]["gradient_bytes"] - 4 * line["after"]["trained_parameters"]
        assert 0 <= padding < 2 * 4 * 1024


@pytest.mark.parametrize("arm", ARMS)
def test_twenty_steps_equal_a_plain_loop_of_torch(runs: Runs, arm: str) -> None:
    (run,) = runs[f"arm-{arm}"]
    assert run.after.keys() >= run.facts["plain"].keys()
    for key, weight in run.facts["plain"].items():
        torch.testing.assert_close(run.after[key], weight, rtol=0, atol=1e-5)
        assert torch.equal(run.before[key], run.after[key]) == (key not in run.trained)


@pytest.mark.parametrize("arm", ARMS)
def test_reported_operations_are_those_that_run(runs: Runs, arm: str) -> None:
    counted, claimed = (runs[f"arm-{arm}"][0].facts[key] for key in ("counted", "claimed"))
    linears = sum(number for op, number in counted.items() if op in ("aten.mm", "aten.addmm"))
    cores = sum(number for op, number in counted.items() if "bmm" in op)
    # Below the first layer that trains not even its first linear's input gradient is computed.
    assert linears == pytest.approx(claimed["linears"], rel=0.05)
    # Megatron counts the causal half of the attention scores; without a GPU all are computed.
    assert cores == pytest.approx(2 * claimed["cores"], rel=0.01)
