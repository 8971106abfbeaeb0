"""Sizes: right about the model, and small enough for the GPUs that they are made for."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from layertracer.errors import UserError
from layertracer.estimate.memory import layer_activations, stage_memory
from layertracer.estimate.presets import load, names, needed_bytes
from layertracer.estimate.settings import Layout, Recompute, config_shape, equal_split, full_phase
from layertracer.estimate.time import layer_costs
from layertracer.plan import Phase

SIZES = Path(__file__).parents[2] / "examples" / "sizes"
EVERY = [(family, size) for family in ("llama", "qwen3") for size in names(SIZES, family)]
H100_BYTES = 80 * 10**9


def test_the_sizes_go_from_1b_to_70b():
    assert names(SIZES, "llama") == ["1b", "8b", "70b"]
    assert names(SIZES, "qwen3") == ["1.7b", "8b", "32b"]


@pytest.mark.parametrize(("family", "size"), EVERY)
def test_training_all_of_it_fits_80_gb(family, size):
    preset = load(SIZES, family, size)
    needed = needed_bytes(preset.shape(), full_phase(preset.shape()), preset.layout())
    assert 0.4 * H100_BYTES < needed < H100_BYTES


@pytest.mark.parametrize(("family", "size"), EVERY)
def test_its_layout_divides_the_model_the_gpus_and_the_batch(family, size):
    preset = load(SIZES, family, size)
    shape, layout = preset.shape(), preset.layout()
    assert layout.tensor * layout.pipeline * layout.data == preset.gpus
    assert layout.tensor <= 8  # tensor parallelism stays inside a node
    groups = preset.model["num_key_value_heads"]
    for divided in (shape.heads, groups, shape.ffn):
        assert divided % layout.tensor == 0
    assert shape.num_layers % layout.pipeline == 0
    batch = layout.data * layout.micro_batch * layout.micro_batches
    assert batch == preset.settings.GLOBAL_BATCH
    assert layout.pipeline == 1 or layout.micro_batches >= 4 * layout.pipeline


@pytest.mark.parametrize(("family", "size"), EVERY)
def test_parameters_counted_from_the_config_are_those_of_the_model(family, size):
    config = load(SIZES, family, size).model
    shape = config_shape(config, "here")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    layer = sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert shape.counts.layers[0] == layer
    assert shape.counts.total == sum(parameter.numel() for parameter in model.parameters())


def test_selective_recompute_keeps_less_than_none_and_more_than_full():
    shape = load(SIZES, "llama", "8b").shape()

    def activations(recompute: Recompute) -> float:
        layout = Layout(recompute=recompute)
        phase = full_phase(shape)
        (stage,) = stage_memory(shape, phase, layout, equal_split(32, 1))
        return stage.activations

    none, selective, full = (activations(each) for each in Recompute)
    assert full < selective < none
    # Gone: gate and up halves, fc2's input, fc1's normalised input, at 2 bytes and 4096 tokens.
    assert none - selective == 32 * 4096 * 2 * (3 * shape.ffn + shape.hidden)
    assert layer_activations(shape, trains=False, trained_below=False) == 0


def test_selective_recompute_costs_the_feed_forward_part_once_more():
    shape = load(SIZES, "llama", "8b").shape()
    phase = Phase(layers=range(16, 32))
    plain = layer_costs(shape, phase, Layout())
    again = layer_costs(shape, phase, Layout(recompute=Recompute.SELECTIVE))
    share = 3 * shape.hidden * shape.ffn / shape.split_layer(0)[0]
    assert again[0] == plain[0]  # a frozen prefix has no backward pass
    assert again[31] - plain[31] == pytest.approx(share)


def test_an_unknown_size_lists_those_there_are():
    with pytest.raises(UserError, match=r"SIZE=9b: .*1b, 8b, 70b"):
        load(SIZES, "llama", "9b")


def test_a_config_without_a_size_says_which():
    with pytest.raises(UserError, match=r"x/config.json has no 'hidden_size'"):
        config_shape({"num_hidden_layers": 2}, "x/config.json")


def test_a_damaged_size_file_names_the_field(tmp_path):
    (tmp_path / "llama-1b.json").write_text('{"model": {}, "gpus": 8, "settings": {"TP": "x"}}')
    with pytest.raises(UserError, match=r"llama-1b.json: \('settings', 'TP'\)"):
        load(tmp_path, "llama", "1b")
