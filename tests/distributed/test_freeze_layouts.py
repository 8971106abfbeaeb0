"""Plans with experts, sequence parallelism and loss scaling; and resuming under another plan."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.event_scenarios import SCHEDULE
from tests.distributed.layout_scenarios import RUNS, SAVED, STEPS, frozen_between
from tests.distributed.session import Run, Runs, torchrun

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder: Path = tmp_path_factory.mktemp("layouts")
    return torchrun("layout_scenarios:two_processes", folder, processes=2, timeout=590)


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


@pytest.mark.parametrize("step", [3, 5])
@pytest.mark.parametrize("name", RUNS)
def test_a_change_equals_a_resume_under_the_new_plan(runs: Runs, name: str, step: int) -> None:
    for run, resumed in zip(runs[name], runs[f"{name}-from-{step}"], strict=True):
        assert different(run.after, resumed.after) == []
        assert different(run.facts["state"], resumed.facts["state"]) == []


def test_routers_of_frozen_layers_keep_their_balancing_bias(runs: Runs) -> None:
    for run in runs["experts"]:
        for step in range(1, STEPS):
            before, after = run.facts["biases"][step], run.facts["biases"][step + 1]
            still = {layer for layer in after if torch.equal(before[layer], after[layer])}
            assert still == frozen_between(SCHEDULE, step)


def test_steps_skipped_for_overflow_are_not_counted(runs: Runs) -> None:
    run = runs["scaled"][0]
    steps = [value.item() for key, value in run.facts["state"].items() if key.endswith(".step")]
    assert 0 < max(steps) < STEPS


def loss_after_resuming(run: Run) -> list[float]:
    assert len(run.losses) == STEPS - SAVED
    return run.losses


@pytest.mark.parametrize("saved", ["full", "shallow"])
@pytest.mark.parametrize(
    ("plan", "layouts"), [("shallow", ["tp2", "pp2", "dp2"]), ("all", ["tp2", "dp2"])]
)
def test_a_checkpoint_goes_on_under_any_plan_in_any_layout(
    runs: Runs, saved: str, plan: str, layouts: list[str]
) -> None:
    losses = [runs[f"{saved}-then-{plan}-{layout}"][0].losses for layout in layouts]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-4)


def test_what_survives_keeps_its_moments_and_what_is_new_starts_afresh(runs: Runs) -> None:
    steps = {}
    for run in runs["shallow-then-all-dp2"]:
        for key, value in run.facts["state"].items():
            if key.endswith("mlp.linear_fc2.weight.step"):
                steps[int(key.split(".")[2])] = value.item()
    assert steps == {0: STEPS, 1: STEPS, 2: STEPS - SAVED, 3: STEPS - SAVED}


def test_a_checkpoint_of_megatron_itself_goes_on_under_a_plan(runs: Runs) -> None:
    for old, new in zip(runs["stacked-then-shallow"], runs["layers-then-shallow"], strict=True):
        assert different(old.after, new.after) == []
        assert different(old.facts["state"], new.facts["state"]) == []
