"""Plans in real Megatron: what trains, what is allocated, the same numbers in every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.freeze_scenarios import ARMS, CASES, LAYOUTS, STEPS
from tests.distributed.session import Run, Runs

pytestmark = pytest.mark.distributed


def expected_trained(name: str, ranks: list[Run]) -> list[set[str]]:
    """Return the names of what the plan of case ``name`` trains, for each rank."""
    phase = CASES[name].plan.phases[0]

    def trains(parameter: str) -> bool:
        pieces = parameter.split(".")
        if pieces[:2] == ["decoder", "layers"]:
            return int(pieces[2]) in phase.layers
        group = {"embedding": phase.embedding, "decoder": phase.final_norm}
        return group.get(pieces[0], phase.output_layer)

    return [{parameter for parameter in run.after if trains(parameter)} for run in ranks]


@pytest.mark.parametrize("name", CASES)
def test_only_what_the_plan_names_trains(runs: Runs, name: str) -> None:
    for run, trained in zip(runs[name], expected_trained(name, runs[name]), strict=True):
        assert run.trained == trained
        changed = {key for key in run.after if not torch.equal(run.before[key], run.after[key])}
        assert changed == trained


@pytest.mark.parametrize("name", CASES)
def test_frozen_parameters_have_no_gradient_buffer_and_no_moments(runs: Runs, name: str) -> None:
    for run in runs[name]:
        assert run.facts["in_buffers"] == run.trained
    moments = set().union(*(run.facts["with_moments"] for run in runs[name]))
    assert moments == set().union(*(run.trained for run in runs[name]))


@pytest.mark.parametrize("name", CASES)
def test_gradient_and_optimizer_state_are_exactly_of_what_trains(runs: Runs, name: str) -> None:
    ranks = runs[name]
    for run in ranks:
        assert run.facts["gradient_elements"] == run.facts["trained_elements"]
    shards = 2 if name.startswith("dp2") else 1
    trained = sum(run.facts["trained_elements"] for run in ranks) // shards
    assert sum(run.facts["moment_elements"] for run in ranks) == trained


@pytest.mark.parametrize("arm", ARMS)
def test_reported_bytes_follow_the_trained_parameters(runs: Runs, arm: str) -> None:
    counted: dict[str, Any] = runs[f"one-{arm}"][0].facts["report"]
    whole = runs["one-full"][0].facts["report"]["trained_parameters"]
    trained = counted["trained_parameters"]
    assert counted["frozen_parameters"] == whole - trained
    # float32: a gradient, two moments (the weight is its own main copy), a step for each tensor;
    # gradients are padded to a multiple of 128 elements.
    assert 0 <= counted["gradient_bytes"] - 4 * trained < 4 * 128
    tensors = len(runs[f"one-{arm}"][0].trained)
    assert counted["optimizer_bytes"] == 8 * trained + 4 * tensors


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_the_same_in_every_layout(runs: Runs, layout: str, arm: str) -> None:
    one, several = runs[f"one-{arm}"][0], runs[f"{layout}-{arm}"][0]
    assert len(one.losses) == STEPS
    assert several.losses == pytest.approx(one.losses, rel=1e-4)
    # The norm for clipping is over what trains, wherever that lies.
    assert several.grad_norms == pytest.approx(one.grad_norms, rel=1e-3)


def test_recompute_above_frozen_layers_trains_the_same(runs: Runs) -> None:
    for run, plain in zip(runs["dp2-recompute"], runs["dp2-train-deep"], strict=True):
        assert all(torch.equal(run.after[key], plain.after[key]) for key in plain.after)


@pytest.mark.parametrize("name", CASES)
def test_layers_before_everything_that_trains_run_forward_only(runs: Runs, name: str) -> None:
    phase = CASES[name].plan.phases[0]
    graphs: dict[int, bool] = {}
    for run in runs[name]:
        graphs |= run.facts["backward"]
    first = min(phase.layers, default=4)
    assert graphs == {layer: phase.embedding or layer >= first for layer in range(4)}


def test_stages_that_run_forward_only_change_no_number(runs: Runs) -> None:
    pipeline, data = runs["pp2-last-layer"][0], runs["dp2-last-layer"][0]
    assert pipeline.losses == pytest.approx(data.losses, rel=1e-6)
