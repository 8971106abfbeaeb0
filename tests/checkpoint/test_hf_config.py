"""What a config means for Megatron, in every spelling, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from layertracer.checkpoint.hf_config import megatron_shape
from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder
from tests.checkpoint.tiny import LLAMA3_ROPE, edit_config, save_tiny


def shape_of(folder: Path, **changes: Any) -> MegatronShape:
    edit_config(folder, **changes)
    return megatron_shape(ModelFolder(folder))


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "hf", "llama")


OLD = {"rope_parameters": None}
LLAMA3_SCALING = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}


@pytest.mark.parametrize(
    ("changes", "base", "llama3", "linear"),
    [
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 500000, None, None),
        ({**OLD, "rope_theta": 5e5}, 500000, None, None),
        ({**OLD, "rope_theta": 10000, "rope_scaling": None}, 10000, None, None),
        ({"rope_parameters": LLAMA3_ROPE}, 500000, 32.0, None),
        ({**OLD, "rope_theta": 5e5, "rope_scaling": LLAMA3_SCALING}, 500000, 32.0, None),
        (
            {**OLD, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
            10000,
            None,
            2,
        ),
    ],
)
def test_rope_in_both_spellings(
    llama: Path, changes: dict[str, Any], base: int, llama3: float | None, linear: int | None
) -> None:
    shape = shape_of(llama, **changes)
    found = (shape.rotary_base, shape.rope_scaling_factor, shape.rope_interpolation_factor)
    assert found == (base, llama3, linear)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (OLD, "gives no rope_theta"),
        ({**OLD, "rope_theta": 10000.5}, "whole numbers"),
        ({"rope_parameters": {**LLAMA3_ROPE, "rope_type": "yarn"}}, "'yarn' can't be converted"),
        ({"rope_parameters": {**LLAMA3_ROPE, "rope_type": "dynamic"}}, "'dynamic'"),
        ({"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 2.0}}, "low_freq_factor 2.0"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary"),
        ({"model_type": "gemma"}, "family 'gemma' can't be converted; these can: llama, mistral"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rms_norm_eps": None}, "gives no rms_norm_eps"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a causal language model"),
    ],
)
def test_what_megatron_cannot_compute_is_refused(
    llama: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        shape_of(llama, **changes)


def test_bias_of_the_output_projection_is_refused(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama", attention_bias=True)
    with pytest.raises(UserError, match="output projection has a bias"):
        megatron_shape(ModelFolder(model))


def test_integers_among_the_weights_are_refused_by_name(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int32)
    save_file(tensors, llama / "model.safetensors")
    with pytest.raises(UserError, match=r"tensor model\.norm\.weight is stored as I32"):
        megatron_shape(ModelFolder(llama))


def test_head_width_is_the_configs_not_hidden_by_heads(tmp_path: Path) -> None:
    shape = megatron_shape(ModelFolder(save_tiny(tmp_path / "hf", "qwen3")))
    assert (shape.hidden_size // shape.num_attention_heads, shape.kv_channels) == (16, 32)


@pytest.mark.parametrize(
    ("case", "changes", "window"),
    [
        ("mistral", {}, None),
        ("mistral", {"sliding_window": 100}, 100),
        ("mistral", {"sliding_window": 100, "layer_types": ["full_attention"] * 2}, None),
        ("qwen2", {"sliding_window": 100, "layer_types": None}, None),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False, "layer_types": None}, None),
        (
            "qwen2",
            {
                "sliding_window": 100,
                "use_sliding_window": True,
                "max_window_layers": 0,
                "layer_types": None,
            },
            100,
        ),
    ],
)
def test_sliding_window(
    tmp_path: Path, case: str, changes: dict[str, Any], window: int | None
) -> None:
    model = save_tiny(tmp_path / "hf", case)
    edit_config(model, use_sliding_window=None)
    assert shape_of(model, **changes).window == window


@pytest.mark.parametrize(
    "changes",
    [
        {"max_window_layers": 1, "layer_types": None},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_a_window_for_some_layers_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = save_tiny(tmp_path / "hf", "qwen2")
    with pytest.raises(UserError, match="some layers have a sliding window"):
        shape_of(model, sliding_window=100, use_sliding_window=True, **changes)


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
def test_experts_in_some_layers_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = save_tiny(tmp_path / "hf", "qwen3-moe")
    with pytest.raises(UserError, match="some layers have experts"):
        shape_of(model, **changes)
