"""A model folder is checked before anything expensive starts."""

import json

import pytest
import torch
from safetensors.torch import save_file

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

WEIGHTS = {
    "model.embed_tokens.weight": torch.zeros(10, 4),
    "model.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4),
    "model.layers.1.self_attn.q_proj.weight": torch.ones(4, 4),
    "model.norm.weight": torch.ones(4),
    "lm_head.weight": torch.ones(10, 4),
}


def make_folder(path, weights=WEIGHTS, **config):
    path.mkdir(exist_ok=True)
    content = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "tie_word_embeddings": False,
    }
    (path / "config.json").write_text(json.dumps(content | config))
    save_file(weights, path / "model.safetensors")
    return path


def test_parameters_are_counted_per_part_without_loading(tmp_path):
    counts = ModelFolder(make_folder(tmp_path / "m")).parameter_counts
    assert counts.layers == (16, 16)
    assert (counts.embedding, counts.final_norm, counts.output_layer) == (40, 4, 40)
    assert counts.total == sum(weight.numel() for weight in WEIGHTS.values())


def test_a_tied_head_is_not_counted_twice(tmp_path):
    counts = ModelFolder(make_folder(tmp_path / "m", tie_word_embeddings=True)).parameter_counts
    assert counts.output_layer == 0


def test_the_fingerprint_changes_with_any_tensor(tmp_path):
    first = ModelFolder(make_folder(tmp_path / "a")).fingerprint
    assert first == ModelFolder(make_folder(tmp_path / "b")).fingerprint
    for name, weight in WEIGHTS.items():
        changed = make_folder(tmp_path / "c", WEIGHTS | {name: weight + 1})
        assert ModelFolder(changed).fingerprint != first, name


def test_what_is_no_causal_lm_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such model folder"):
        ModelFolder(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no config\.json"):
        ModelFolder(tmp_path)
    with pytest.raises(UserError, match=r"not a causal language model.*BertForMaskedLM"):
        ModelFolder(make_folder(tmp_path / "m", architectures=["BertForMaskedLM"]))


def test_a_truncated_file_names_the_tensor(tmp_path):
    folder = make_folder(tmp_path / "m")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"truncated: tensor [\w.]+ ends at byte"):
        _ = ModelFolder(folder).tensors
    file.write_bytes(b"\0\0")
    with pytest.raises(UserError, match="not a safetensors file, or is truncated"):
        _ = ModelFolder(folder).tensors


def test_a_tensor_of_the_index_that_no_file_holds_is_named(tmp_path):
    folder = make_folder(tmp_path / "m")
    index = {"weight_map": {"model.layers.9.gone": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"model\.layers\.9\.gone"):
        _ = ModelFolder(folder).tensors
