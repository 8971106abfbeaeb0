"""From a Hugging Face config to the shape that Megatron builds, or a clear refusal."""

from __future__ import annotations

from typing import Any

from layertracer.checkpoint.families import FAMILIES
from layertracer.checkpoint.fusion import padding_for
from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

_SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# The only rope scaling Megatron 0.19 knows, with all but the factor fixed in its source.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def megatron_shape(folder: ModelFolder, *, tensor_parallel: int = 1) -> MegatronShape:
    """Return the shape of the model in ``folder``.

    Args:
        tensor_parallel: largest tensor-parallel size to train under; where it does not divide the
            heads, empty query groups are added.

    Raises:
        UserError: the family, or something in its config, can't be expressed in Megatron.
    """
    config = folder.text_config
    _refuse_unsupported(folder)
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    padded = padding_for(groups, heads, tensor_parallel)
    return MegatronShape(
        family=folder.model_type,
        architecture=folder.config["architectures"][0],
        num_layers=folder.num_layers,
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=heads + padded * (heads // groups),
        num_query_groups=groups + padded,
        padded_query_groups=padded,
        kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        rotary_base=_rotary_base(folder),
        rope_scaling_factor=_rope_scaling_factor(folder),
        tied_embeddings=folder.tied_embeddings,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in folder.tensors,
        qk_layernorm="model.layers.0.self_attn.q_norm.weight" in folder.tensors,
        window=_window(folder),
        dtype=_dtype(folder),
        source_fingerprint=folder.fingerprint,
    )


def _refuse_unsupported(folder: ModelFolder) -> None:
    config = folder.text_config
    if folder.model_type not in FAMILIES:
        raise UserError(
            f"{folder.path}: family '{folder.model_type}' can't be converted; these can: "
            f"{', '.join(FAMILIES)}"
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"{folder.path}: hidden_act '{config['hidden_act']}' is not SwiGLU's silu")
    if config.get("mlp_bias"):
        raise UserError(
            f"{folder.path}: mlp_bias is set, which Megatron's SwiGLU part doesn't have"
        )
    if config.get("quantization_config") or folder.config.get("quantization_config"):
        raise UserError(f"{folder.path}: the weights are quantised; de-quantise them first")
    if "model.layers.0.self_attn.o_proj.bias" in folder.tensors:
        raise UserError(f"{folder.path}: the output projection has a bias, which can't be kept")


def _rope(folder: ModelFolder) -> dict[str, Any]:
    """Return the rope settings: ``rope_parameters`` (transformers 5) or the older spelling."""
    config = folder.text_config
    if config.get("rope_parameters"):
        return config["rope_parameters"]
    rope = dict(config.get("rope_scaling") or {})
    if "rope_theta" in config:
        rope["rope_theta"] = config["rope_theta"]
    return rope


def _rotary_base(folder: ModelFolder) -> float:
    base = _rope(folder).get("rope_theta")
    if base is None:
        raise UserError(
            f"{folder.path}/config.json gives no rope_theta (neither there nor in "
            "rope_parameters): add the value the model was trained with"
        )
    return float(base)


def _rope_scaling_factor(folder: ModelFolder) -> float | None:
    rope = _rope(folder)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"{folder.path}: rope scaling '{kind}' is not one Megatron can compute")
    for name, value in _LLAMA3.items():
        if float(rope.get(name, value)) != float(value):
            raise UserError(
                f"{folder.path}: rope scaling with {name} {rope[name]}: Megatron has {value} fixed"
            )
    return float(rope["factor"])


def _window(folder: ModelFolder) -> int | None:
    config = folder.text_config
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return None
    kinds = set(config.get("layer_types") or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if len(kinds) > 1:
        raise UserError(f"{folder.path}: some layers have a sliding window and some don't")
    return int(window)


def _dtype(folder: ModelFolder) -> str:
    stored = {tensor.dtype for tensor in folder.tensors.values()}
    if len(stored) > 1 or not stored <= set(_SAFETENSORS_DTYPES):
        raise UserError(
            f"{folder.path}: weights are stored as {', '.join(sorted(stored))}; one of float32, "
            "bfloat16, float16 for all of them is what can be kept exactly"
        )
    return _SAFETENSORS_DTYPES[stored.pop()]
