"""The name tables: one for each way a family names its tensors, used in both directions.

Left the Megatron name on disk (below ``decoder.layers.`` for a layer), right the Hugging Face names
(below ``model.layers.N.``). Read them against a checkpoint: that is what they are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layertracer.checkpoint.fusion import (
    Copy,
    Fusion,
    GateUp,
    GroupedQkv,
    HeadColumns,
    Rows,
)
from layertracer.checkpoint.sidecar import MegatronShape


@dataclass(frozen=True)
class Rule:
    """One Megatron tensor and the Hugging Face tensors it is made of."""

    megatron: str
    sources: tuple[str, ...]
    fusion: Fusion


COPY, QKV, GATE_UP, COLUMNS, ROWS = Copy(), GroupedQkv(), GateUp(), HeadColumns(), Rows()

ATTENTION = (
    Rule("self_attention.linear_qkv.layer_norm_weight", ("input_layernorm.weight",), COPY),
    Rule(
        "self_attention.linear_qkv.weight",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        QKV,
    ),
    Rule("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), COLUMNS),
)
QKV_BIAS = (
    Rule(
        "self_attention.linear_qkv.bias",
        ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        QKV,
    ),
)
QK_NORM = (
    Rule("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), COPY),
    Rule("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), COPY),
)
DENSE = (
    Rule("mlp.linear_fc1.layer_norm_weight", ("post_attention_layernorm.weight",), COPY),
    Rule("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), GATE_UP),
    Rule("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), COPY),
)
EMBEDDING = Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), ROWS)
FINAL_NORM = Rule("decoder.final_layernorm.weight", ("model.norm.weight",), COPY)
OUTPUT = Rule("output_layer.weight", ("lm_head.weight",), ROWS)

# Families that are made of these parts alone, and what to call them in Hugging Face's config.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def layer_rules(shape: MegatronShape) -> Sequence[Rule]:
    """Return the rules of one decoder layer."""
    rules = list(ATTENTION)
    if shape.qkv_bias:
        rules += QKV_BIAS
    if shape.qk_layernorm:
        rules += QK_NORM
    return [*rules, *DENSE]


def model_rules(shape: MegatronShape) -> Sequence[Rule]:
    """Return the rules of what stands outside the layers."""
    rules = [EMBEDDING, FINAL_NORM]
    return rules if shape.tied_embeddings else [*rules, OUTPUT]


def extra_state_modules(shape: MegatronShape) -> list[str]:
    """Return the modules of a layer that Megatron wants an (empty) ``_extra_state`` for.

    The local specification asks for the linear modules, Transformer Engine's also for q/k norms;
    the larger set loads under both.
    """
    modules = [
        "self_attention.linear_qkv",
        "self_attention.linear_proj",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
    ]
    if shape.qk_layernorm:
        modules += ["self_attention.q_layernorm", "self_attention.k_layernorm"]
    return modules
