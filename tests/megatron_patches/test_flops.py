from __future__ import annotations

import pytest

from layertracer.plan import FreezePlan, Phase, Strategy
from megatron_patches.flops import operations, passes


def phase_of(arm: Strategy, boundary: int | None) -> Phase:
    plan = FreezePlan.from_strategy(
        arm, num_layers=8, tied_embeddings=False, boundary=boundary, embedding=False
    )
    return plan.phases[0]


def test_everything_trains_three_passes() -> None:
    phase = Phase(layers=tuple(range(8)), embedding=True, final_norm=True, output_layer=True)
    assert passes(phase, 8) == (24, 24, 3)
    assert operations(70.0, 20.0, 10.0, phase, 8) == pytest.approx(100.0)


@pytest.mark.parametrize("boundary", [2, 4, 7])
def test_shallow_layers_train_by_the_limit_of_the_design(boundary: int) -> None:
    frozen = 8 - boundary
    share = operations(1.0, 0.0, 0.0, phase_of(Strategy.TRAIN_SHALLOW, boundary), 8)
    assert share == pytest.approx((2 * 8 + (8 - frozen)) / (3 * 8))


@pytest.mark.parametrize("boundary", [2, 4, 7])
def test_deep_layers_train_by_the_limit_of_the_design(boundary: int) -> None:
    trained = 8 - boundary
    share = operations(1.0, 0.0, 0.0, phase_of(Strategy.TRAIN_DEEP, boundary), 8)
    assert share == pytest.approx((8 + 2 * trained) / (3 * 8))


def test_attention_cores_save_nothing_above_what_trains() -> None:
    assert passes(Phase(layers=(0,)), 8)[1] == 24
    assert passes(Phase(layers=(6,)), 8)[1] == 6 * 1 + 2 * 3


def test_head_alone_has_a_weight_gradient_and_no_input_gradient() -> None:
    assert passes(Phase(output_layer=True), 8) == (8, 8, 2)
    assert passes(Phase(final_norm=True), 8) == (8, 8, 2)
