"""Estimates against closed forms and worked examples."""

import itertools

import pytest

from layertracer.estimate.memory import layer_activations, stage_memory
from layertracer.estimate.settings import Layout, ModelShape, Recompute, equal_split
from layertracer.estimate.time import (
    balanced_split,
    head_cost,
    layer_costs,
    layout_flag,
    stage_costs,
    step_time,
)
from layertracer.model_folder import ParameterCounts
from layertracer.plan import Phase

LAYER = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
LLAMA_8B = ModelShape(
    counts=ParameterCounts((LAYER + 2 * 4096,) * 32, 128256 * 4096, 4096, 128256 * 4096),
    hidden=4096,
    ffn=14336,
    heads=32,
    kv=1024,
    query=4096,
    vocab=128256,
    tied=False,
)
# No attention work and no head: what the plain formulas of the limits assume.
BARE = ModelShape(ParameterCounts((1000,) * 12, 0, 0, 0), 1, 1, 1, 1, 0, 0, tied=False)
ALL = tuple(range(32))
FULL = Phase(layers=ALL, embedding=True, final_norm=True, output_layer=True)


def ratio(shape: ModelShape, phase: Phase, layout: Layout) -> float:
    def total(of: Phase) -> float:
        return sum(layer_costs(shape, of, layout)) + head_cost(shape, of)

    layers = tuple(range(shape.num_layers))
    full = Phase(layers=layers, embedding=True, final_norm=True, output_layer=True)
    return total(phase) / total(full)


@pytest.mark.parametrize("frozen", [1, 6, 11])
def test_without_attention_and_head_the_limits_of_the_plain_formulas_hold(frozen):
    total = BARE.num_layers
    shallow = Phase(layers=tuple(range(total - frozen)))
    deep = Phase(layers=tuple(range(frozen, total)))
    expected = (2 * total + (total - frozen)) / (3 * total)
    assert ratio(BARE, shallow, Layout()) == pytest.approx(expected)
    assert ratio(BARE, deep, Layout()) == pytest.approx(
        (total + 2 * (total - frozen)) / (3 * total)
    )


def test_full_recompute_keeps_the_forward_pass_of_the_frozen_prefix_single():
    layout = Layout(recompute=Recompute.FULL)
    total, frozen = BARE.num_layers, 6
    shallow, deep = Phase(layers=range(6)), Phase(layers=range(6, 12))
    assert ratio(BARE, shallow, layout) == pytest.approx(1 - frozen / (4 * total))
    assert ratio(BARE, deep, layout) == pytest.approx(1 - 3 * frozen / (4 * total))


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase(layers=range(16), embedding=True), 0.847),
        (Phase(layers=range(16), embedding=True, output_layer=True), 0.867),
        (Phase(layers=range(16, 32), final_norm=True, output_layer=True), 0.683),
    ],
)
def test_llama_8b_at_8192_tokens_gives_the_worked_example(phase, expected):
    assert ratio(LLAMA_8B, phase, Layout(sequence_length=8192)) == pytest.approx(expected, abs=1e-3)


def test_an_equal_pipeline_split_gains_nothing_for_train_shallow():
    layout = Layout(pipeline=2, micro_batches=8)
    shallow = Phase(layers=range(6), embedding=True)
    full = Phase(layers=range(12), embedding=True, final_norm=True, output_layer=True)
    equal = equal_split(12, 2)
    assert step_time(stage_costs(BARE, shallow, layout, equal), 8) == pytest.approx(
        step_time(stage_costs(BARE, full, layout, equal), 8)
    )
    balanced = balanced_split(BARE, shallow, layout, 2)
    assert step_time(stage_costs(BARE, shallow, layout, balanced), 8) < step_time(
        stage_costs(BARE, full, layout, equal), 8
    )


@pytest.mark.parametrize("stages", [2, 3])
def test_the_balanced_split_is_the_best_of_all(stages):
    layout = Layout(sequence_length=512)
    phase = Phase(layers=range(3, 20))

    def slowest(split: list[range]) -> float:
        return max(stage_costs(LLAMA_8B, phase, layout, split))

    every = []
    for cuts in itertools.combinations(range(1, 32), stages - 1):
        ends = [0, *cuts, 32]
        every.append([range(a, b) for a, b in itertools.pairwise(ends)])
    best = min(slowest(split) for split in every)
    assert slowest(balanced_split(LLAMA_8B, phase, layout, stages)) == pytest.approx(best)


def test_the_layout_flag_is_read_by_megatron_as_meant():
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    flag = layout_flag([range(0, 13), range(13, 32)])
    stages = PipelineParallelLayerLayout.parse_str_to_list(flag)
    assert [sum(kind.name == "decoder" for kind in stage) for stage in stages] == [13, 19]
    assert stages[0][0].name == "embedding" and stages[-1][-1].name == "loss"


def test_an_untied_model_on_one_rank_takes_18_bytes_a_trained_parameter_and_2_a_frozen_one():
    (all_trained,) = stage_memory(LLAMA_8B, FULL, Layout(), [range(32)])
    state = all_trained.weights + all_trained.gradients + all_trained.optimizer
    assert state == 18 * LLAMA_8B.counts.total
    phase = Phase(layers=range(16))
    (half,) = stage_memory(LLAMA_8B, phase, Layout(), [range(32)])
    trained = sum(LLAMA_8B.counts.layers[:16])
    assert (half.trained_parameters, half.weights) == (trained, 2 * LLAMA_8B.counts.total)
    assert half.gradients + half.optimizer == 16 * trained


def test_the_distributed_optimizer_shards_the_state_only():
    one = stage_memory(LLAMA_8B, FULL, Layout(), [range(32)])[0]
    eight = stage_memory(LLAMA_8B, FULL, Layout(data=8), [range(32)])[0]
    assert eight.optimizer == one.optimizer / 8
    assert (eight.weights, eight.gradients) == (one.weights, one.gradients)


def test_a_tied_head_on_the_last_stage_is_a_second_copy():
    tied = ModelShape(ParameterCounts((1000,) * 4, 500, 10, 0), 5, 5, 1, 1, 1, 100, tied=True)
    phase = Phase(layers=(0, 1), embedding=True, output_layer=True)
    first, last = stage_memory(tied, phase, Layout(pipeline=2), equal_split(4, 2))
    assert first.trained_parameters == 2500
    assert (last.trained_parameters, last.frozen_parameters) == (500, 2010)


def test_llama_8b_frozen_layers_keep_a_third_less():
    trained = layer_activations(LLAMA_8B, trains=True, trained_below=True) * 2
    suffix = layer_activations(LLAMA_8B, trains=False, trained_below=True) * 2
    assert (trained, trained - suffix) == (139_264, 45_056)
    assert layer_activations(LLAMA_8B, trains=False, trained_below=False) == 0
