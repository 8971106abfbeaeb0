"""Hugging Face to Megatron and back: the same bits, the same files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.checkpoint.to_hf import to_hf
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.checkpoint.verify import compare_weights
from layertracer.errors import UserError
from tests.checkpoint.tiny import CASES, edit_config, save_tiny

Tensors = dict[str, torch.Tensor]


def weights(folder: Path) -> Tensors:
    tensors: Tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def equal(a: Tensors, b: Tensors) -> bool:
    """Same names, types, sizes and bits."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype
        and torch.equal(a[name].contiguous().view(torch.uint8), b[name].view(torch.uint8))
        for name in a
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_weights_come_back_bit_by_bit(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    model = save_tiny(tmp_path / "hf", case, dtype=dtype)
    to_megatron(model, tmp_path / "megatron")
    exported = to_hf(tmp_path / "megatron", tmp_path / "back")
    assert equal(weights(model), weights(tmp_path / "back"))
    assert not exported.casts
    report = compare_weights(model, tmp_path / "megatron")
    assert report.tensors == len(weights(model)) and not report.different


def test_all_other_files_come_back_byte_by_byte(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "qwen2-tied")
    (model / "tokenizer.json").write_bytes(b'{"odd":   "spacing"}\r\n')
    to_megatron(model, tmp_path / "megatron")
    to_hf(tmp_path / "megatron", tmp_path / "back")
    kept = [file.name for file in model.iterdir() if file.suffix != ".safetensors"]
    assert {"config.json", "generation_config.json", "tokenizer.json"} < set(kept)
    for name in kept:
        assert (model / name).read_bytes() == (tmp_path / "back" / name).read_bytes(), name
    assert not list((tmp_path / "megatron" / SOURCE).glob("*.safetensors"))


@pytest.mark.parametrize("case", ["llama", "qwen3-moe"])
def test_several_files_in_and_out(tmp_path: Path, case: str) -> None:
    from transformers import AutoModelForCausalLM

    model = save_tiny(tmp_path / "hf", case, max_shard_size="60KB")
    assert len(list(model.glob("model-*.safetensors"))) > 2
    to_megatron(model, tmp_path / "megatron")
    to_hf(tmp_path / "megatron", tmp_path / "back", max_shard_bytes=50_000)
    files = sorted(file.name for file in (tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert equal(weights(model), weights(tmp_path / "back"))
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text("utf-8"))
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "back" / file)
    sizes = [t.numel() * t.element_size() for t in weights(model).values()]
    assert index["metadata"]["total_size"] == sum(sizes)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    first = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert equal(first, loaded)


def test_tied_model_gets_no_head(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama-tied")
    to_megatron(model, tmp_path / "megatron")
    to_hf(tmp_path / "megatron", tmp_path / "back")
    assert "lm_head.weight" not in weights(tmp_path / "back")


def test_stored_copy_of_a_tied_head_is_dropped_and_a_different_one_refused(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama-tied")
    tensors = weights(model)
    copy = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(copy, model / "model.safetensors")
    to_megatron(model, tmp_path / "megatron")
    to_hf(tmp_path / "megatron", tmp_path / "back")
    assert equal(tensors, weights(tmp_path / "back"))
    save_file({**copy, "lm_head.weight": copy["lm_head.weight"] + 1}, model / "model.safetensors")
    with pytest.raises(UserError, match=r"says tied.*lm_head\.weight"):
        to_megatron(model, tmp_path / "other")


def test_one_float32_tensor_among_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama", dtype=torch.bfloat16)
    tensors = weights(model)
    name = "model.layers.1.post_attention_layernorm.weight"
    tensors[name] = torch.full((64,), 1 / 3)
    save_file(tensors, model / "model.safetensors")
    shape = to_megatron(model, tmp_path / "megatron")
    assert (shape.dtype, shape.other_dtypes) == ("bfloat16", {name: "float32"})
    to_hf(tmp_path / "megatron", tmp_path / "back")
    assert equal(tensors, weights(tmp_path / "back"))


def test_casting_is_done_when_asked_and_said(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama")
    to_megatron(model, tmp_path / "megatron", dtype="bfloat16")
    size = sum(file.stat().st_size for file in (tmp_path / "megatron/release").glob("*.distcp"))
    stored = sum(tensor.numel() for tensor in weights(model).values()) * 2
    assert stored < size < 1.5 * stored + 100_000  # two bytes a weight, and not four
    back = to_hf(tmp_path / "megatron", tmp_path / "back")
    assert back.casts == {"bfloat16 to float32": len(weights(model))}
    rounded = {name: t.bfloat16() for name, t in weights(model).items()}
    assert equal(rounded, {name: t.bfloat16() for name, t in weights(tmp_path / "back").items()})
    to_hf(tmp_path / "megatron", tmp_path / "half", dtype="bfloat16")
    assert equal(rounded, weights(tmp_path / "half"))
    assert json.loads((tmp_path / "half/config.json").read_text("utf-8"))["dtype"] == "bfloat16"


def test_heads_that_tensor_parallelism_does_not_divide(tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16}
    model = save_tiny(tmp_path / "hf", "qwen3", **sizes)
    shape = to_megatron(model, tmp_path / "megatron", tensor_parallel=2)
    assert (shape.num_query_groups, shape.num_attention_heads) == (4, 12)
    to_hf(tmp_path / "megatron", tmp_path / "back")
    assert equal(weights(model), weights(tmp_path / "back"))


@pytest.mark.parametrize("case", ["qwen3-moe", "mixtral"])
def test_experts_in_one_tensor_a_layer(tmp_path: Path, case: str) -> None:
    """As transformers 5 holds them in memory; each expert filled with its number."""
    model = save_tiny(tmp_path / "hf", case)
    tensors, stacked = weights(model), {}
    first, up, down = (
        ("w1", "w3", "w2") if case == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )
    inside = "block_sparse_moe" if case == "mixtral" else "mlp"
    for name, tensor in tensors.items():
        if ".experts." not in name:
            stacked[name.replace(f".{inside}.gate.", ".mlp.gate.")] = tensor
    for layer in range(2):
        path = f"model.layers.{layer}.{inside}.experts"
        pairs = [
            torch.cat([tensors[f"{path}.{e}.{first}.weight"], tensors[f"{path}.{e}.{up}.weight"]])
            for e in range(4)
        ]
        downs = [tensors[f"{path}.{e}.{down}.weight"] for e in range(4)]
        stacked[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = torch.stack(pairs)
        stacked[f"model.layers.{layer}.mlp.experts.down_proj"] = torch.stack(downs)
    other = save_tiny(tmp_path / "stacked", case)
    save_file(stacked, other / "model.safetensors")
    to_megatron(other, tmp_path / "from-stacked")
    to_megatron(model, tmp_path / "from-single")
    to_hf(tmp_path / "from-stacked", tmp_path / "back")
    assert equal(stacked, weights(tmp_path / "back"))
    shape = MegatronShape.load(tmp_path / "from-single")
    shape.save(tmp_path / "from-stacked")  # the same checkpoint, read under the other names
    to_hf(tmp_path / "from-stacked", tmp_path / "unstacked")
    assert equal(tensors, weights(tmp_path / "unstacked"))


def test_number_of_experts_under_either_name(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "qwen3-moe")
    edit_config(model, num_local_experts=None, num_experts=4)
    shape = to_megatron(model, tmp_path / "megatron")
    assert shape.experts is not None and shape.experts.num_experts == 4
