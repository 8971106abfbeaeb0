"""From a Hugging Face config to the shape that Megatron builds, or a clear refusal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from layertracer.checkpoint.families import FEED_FORWARD
from layertracer.checkpoint.fusion import padding_for
from layertracer.checkpoint.rope import rope_settings
from layertracer.checkpoint.sidecar import Experts, MegatronShape
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_STACKED = "model.layers.0.mlp.experts.gate_up_proj"


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
    heads = _required(folder, "num_attention_heads")
    groups = config.get("num_key_value_heads") or heads
    padded = padding_for(groups, heads, tensor_parallel)
    main, others = _dtypes(folder)
    return MegatronShape(
        family=folder.model_type,
        architecture=folder.config["architectures"][0],
        num_layers=folder.num_layers,
        hidden_size=_required(folder, "hidden_size"),
        ffn_hidden_size=_required(folder, "intermediate_size"),
        num_attention_heads=heads + padded * (heads // groups),
        num_query_groups=groups + padded,
        padded_query_groups=padded,
        kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=_required(folder, "vocab_size"),
        max_position_embeddings=_required(folder, "max_position_embeddings"),
        norm_epsilon=_required(folder, "rms_norm_eps"),
        **rope_settings(folder),
        tied_embeddings=folder.tied_embeddings,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in folder.tensors,
        qk_layernorm="model.layers.0.self_attn.q_norm.weight" in folder.tensors,
        window=_window(folder),
        experts=_experts(folder),
        dtype=main,
        other_dtypes=others,
        source_fingerprint=folder.fingerprint,
    )


def _required(folder: ModelFolder, key: str) -> Any:
    if folder.text_config.get(key) is None:
        raise UserError(f"{folder.path}/config.json gives no {key}")
    return folder.text_config[key]


def _refuse_unsupported(folder: ModelFolder) -> None:
    config = folder.text_config
    if folder.model_type not in FEED_FORWARD:
        raise UserError(
            f"{folder.path}: family '{folder.model_type}' can't be converted; these can: "
            f"{', '.join(FEED_FORWARD)}"
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


def _window(folder: ModelFolder) -> int | None:
    """Return the sliding window of every layer, or None.

    Qwen's configs name a window that counts only where ``use_sliding_window`` is set; without
    ``layer_types`` it is then that of the layers from ``max_window_layers`` on.
    """
    config = folder.text_config
    window = config.get("sliding_window")
    qwen = folder.model_type.startswith("qwen")
    if window is None or not config.get("use_sliding_window", not qwen):
        return None
    kinds = set(config.get("layer_types") or [])
    if not kinds and qwen:
        first = config.get("max_window_layers", 0)
        kinds = {"sliding_attention" if n >= first else "full" for n in range(folder.num_layers)}
    if len(kinds) > 1:
        raise UserError(
            f"{folder.path}: some layers have a sliding window and some don't; only one window for "
            "all layers can be converted"
        )
    return int(window) if not kinds or kinds == {"sliding_attention"} else None


def _experts(folder: ModelFolder) -> Experts | None:
    config = folder.text_config
    if folder.model_type not in ("qwen3_moe", "mixtral"):
        return None
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise UserError(
            f"{folder.path}: some layers have experts and some don't; only models with experts in "
            "all layers can be converted"
        )
    width = "intermediate_size" if folder.model_type == "mixtral" else "moe_intermediate_size"
    number = config.get("num_experts") or _required(folder, "num_local_experts")
    return Experts(
        num_experts=number,
        top_k=_required(folder, "num_experts_per_tok"),
        ffn_hidden_size=_required(folder, width),
        stacked=_STACKED in folder.tensors,
        softmax_first=folder.model_type != "mixtral" and not config.get("norm_topk_prob", False),
    )


def _dtypes(folder: ModelFolder) -> tuple[str, dict[str, str]]:
    """Return the type that holds most of the weights, and the tensors that have another."""
    elements: Counter[str] = Counter()
    for tensor in folder.tensors.values():
        if tensor.dtype not in DTYPE_NAMES:
            raise UserError(
                f"{tensor.file}: tensor {tensor.name} is stored as {tensor.dtype}; only float32, "
                "bfloat16 and float16 can be converted: de-quantise the model first"
            )
        elements[tensor.dtype] += tensor.numel
    main = elements.most_common(1)[0][0]
    others = {
        name: DTYPE_NAMES[tensor.dtype]
        for name, tensor in folder.tensors.items()
        if tensor.dtype != main
    }
    return DTYPE_NAMES[main], others
