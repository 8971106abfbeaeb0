"""Choosing the arm and the boundary from a trace."""

import json

import pytest

from layertracer.allocation import (
    Limits,
    Switches,
    choose_boundary,
    choose_strategy,
    decide,
    parse_boundary,
    step_time_ratio,
)
from layertracer.errors import UserError
from layertracer.estimate.settings import model_shape
from layertracer.model_folder import ModelFolder
from layertracer.plan import Phase, Strategy
from layertracer.trace.files import BoundaryResult, Estimate, TraceFile
from tests.test_model_folder import make_folder

SIZES = {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 4,
    "vocab_size": 10,
}


def trace_with(*scores: tuple[float, float, float]) -> TraceFile:
    """A trace of which only the boundary scores matter here: (low, mean, high) for b = 1, 2, ..."""
    boundaries = [
        BoundaryResult(
            boundary=number + 1,
            score=Estimate(low=low, mean=mean, high=high),
            score_null=None,
            best_share=0.0,
        )
        for number, (low, mean, high) in enumerate(scores)
    ]
    return TraceFile.model_construct(boundaries=boundaries)


def test_a_sensitive_shallow_part_is_trained():
    choice = choose_strategy(trace_with((-1, 0.5, 2), (0.1, 1.0, 2)))
    assert (choice.strategy, choice.boundary) == (Strategy.TRAIN_SHALLOW, 2)
    assert "S(2) = 1.0000" in choice.reason


def test_a_sensitive_deep_part_is_trained():
    choice = choose_strategy(trace_with((-2, -0.5, 0.2), (-3, -1.0, -0.1)))
    assert (choice.strategy, choice.boundary) == (Strategy.TRAIN_DEEP, 2)


def test_without_a_difference_everything_trains():
    assert choose_strategy(trace_with((-1, 0.1, 1), (-1, -0.1, 1))).strategy is Strategy.FULL


@pytest.fixture
def folder(tmp_path):
    weights_of = make_folder(tmp_path / "model", **SIZES)
    return ModelFolder(weights_of)


def test_auto_takes_the_boundary_with_the_highest_score(folder):
    trace = trace_with((0, 0.3, 1), (0, 0.9, 1), (0, 0.5, 1))
    arm = Strategy.TRAIN_SHALLOW
    assert choose_boundary(trace, folder, arm, Switches(), Limits()).boundary == 2
    deep = choose_boundary(trace, folder, Strategy.TRAIN_DEEP, Switches(), Limits())
    assert deep.boundary == 1


def test_limits_rule_boundaries_out_and_say_so_when_none_is_left(folder):
    trace = trace_with((0, 0.3, 1))
    arm = Strategy.TRAIN_SHALLOW
    one_layer = 12 * 16 / 2**30
    frozen_embedding = Switches(embedding=False)
    fits = Limits(max_optimizer_gib=one_layer)
    assert choose_boundary(trace, folder, arm, frozen_embedding, fits).boundary == 1
    with pytest.raises(UserError, match=r"--max-optimizer-gib .* a single layer takes"):
        choose_boundary(trace, folder, arm, Switches(), fits)
    with pytest.raises(UserError, match="--max-step-time-ratio"):
        choose_boundary(trace, folder, arm, Switches(), Limits(max_step_time_ratio=0.1))


def test_step_time_is_that_of_full_training_when_everything_trains(folder):
    everything = Phase(layers=(0, 1), embedding=True, final_norm=True, output_layer=True)
    shape = model_shape(folder)
    assert step_time_ratio(everything, shape) == 1
    assert step_time_ratio(Phase(layers=(0,)), shape) < 1


def test_a_model_folder_is_enough_for_a_plan_by_hand(folder):
    made = decide(
        folder.path,
        strategy="train-deep",
        boundary="1",
        model=None,
        switches=Switches(),
        limits=Limits(),
    )
    assert made.plan.phases[0].layers == (1,)
    assert json.loads(made.plan.model_dump_json())["strategy"] == "train-deep"


@pytest.mark.parametrize(("text", "layers"), [("14", 14), ("0.5", 15), ("0.33", 10)])
def test_a_boundary_is_a_number_of_layers_or_a_share(text, layers):
    assert parse_boundary(text, 30) == layers


@pytest.mark.parametrize("text", ["half", "1.5", "0.0", ""])
def test_any_other_boundary_is_refused(text):
    with pytest.raises(UserError, match="--boundary"):
        parse_boundary(text, 30)
