"""The name tables: one for each way a family names its tensors, used in both directions.

Left the Megatron name on disk (below ``decoder.layers.`` for a layer), right the Hugging Face names
(below ``model.layers.N.``) with their sizes. ``E`` in a name is the number of an expert. Read them
against a checkpoint: that is what they are for.

Sizes: ``h`` hidden, ``q`` all query heads, ``k`` all key heads, ``d`` one head, ``f`` feed-forward,
``m`` one expert's feed-forward, ``e`` experts, ``v`` vocabulary; ``2f`` is twice ``f``.
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
    """One Megatron tensor and the Hugging Face tensors it is made of.

    ``also`` is a second Megatron name for the same tensor: the other layer specification's.
    """

    megatron: str
    sources: dict[str, str]
    fusion: Fusion
    also: str | None = None

    @property
    def per_expert(self) -> bool:
        """Whether there is one such tensor for each expert."""
        return any(".E." in name for name in self.sources)


COPY, QKV, GATE_UP, COLUMNS, ROWS = Copy(), GroupedQkv(), GateUp(), HeadColumns(), Rows()

EMBEDDING = Rule("embedding.word_embeddings.weight", {"model.embed_tokens.weight": "v h"}, ROWS)
FINAL_NORM = Rule("decoder.final_layernorm.weight", {"model.norm.weight": "h"}, COPY)
OUTPUT = Rule("output_layer.weight", {"lm_head.weight": "v h"}, ROWS)

ATTENTION = (
    Rule("self_attention.linear_qkv.layer_norm_weight", {"input_layernorm.weight": "h"}, COPY),
    Rule(
        "self_attention.linear_qkv.weight",
        {
            "self_attn.q_proj.weight": "q h",
            "self_attn.k_proj.weight": "k h",
            "self_attn.v_proj.weight": "k h",
        },
        QKV,
    ),
    Rule("self_attention.linear_proj.weight", {"self_attn.o_proj.weight": "h q"}, COLUMNS),
)
QKV_BIAS = (
    Rule(
        "self_attention.linear_qkv.bias",
        {
            "self_attn.q_proj.bias": "q",
            "self_attn.k_proj.bias": "k",
            "self_attn.v_proj.bias": "k",
        },
        QKV,
    ),
)
QK_NORM = (
    Rule("self_attention.q_layernorm.weight", {"self_attn.q_norm.weight": "d"}, COPY),
    Rule("self_attention.k_layernorm.weight", {"self_attn.k_norm.weight": "d"}, COPY),
)
DENSE = (
    Rule("mlp.linear_fc1.layer_norm_weight", {"post_attention_layernorm.weight": "h"}, COPY),
    Rule(
        "mlp.linear_fc1.weight",
        {"mlp.gate_proj.weight": "f h", "mlp.up_proj.weight": "f h"},
        GATE_UP,
    ),
    Rule("mlp.linear_fc2.weight", {"mlp.down_proj.weight": "h f"}, COPY),
)
# With experts, Transformer Engine's layers name this norm one way and the local ones another.
EXPERT_NORM = Rule(
    "pre_mlp_layernorm.weight",
    {"post_attention_layernorm.weight": "h"},
    COPY,
    also="mlp.linear_fc1.layer_norm_weight",
)
QWEN_EXPERTS = (
    EXPERT_NORM,
    Rule("mlp.router.weight", {"mlp.gate.weight": "e h"}, COPY),
    Rule(
        "mlp.experts.experts.linear_fc1.weight",
        {"mlp.experts.E.gate_proj.weight": "m h", "mlp.experts.E.up_proj.weight": "m h"},
        GATE_UP,
    ),
    Rule("mlp.experts.experts.linear_fc2.weight", {"mlp.experts.E.down_proj.weight": "h m"}, COPY),
)
MIXTRAL_EXPERTS = (
    EXPERT_NORM,
    Rule("mlp.router.weight", {"block_sparse_moe.gate.weight": "e h"}, COPY),
    Rule(
        "mlp.experts.experts.linear_fc1.weight",
        {
            "block_sparse_moe.experts.E.w1.weight": "m h",
            "block_sparse_moe.experts.E.w3.weight": "m h",
        },
        GATE_UP,
    ),
    Rule(
        "mlp.experts.experts.linear_fc2.weight",
        {"block_sparse_moe.experts.E.w2.weight": "h m"},
        COPY,
    ),
)
# All experts of a layer in one tensor, as transformers 5 holds either family in memory.
STACKED_EXPERTS = (
    EXPERT_NORM,
    Rule("mlp.router.weight", {"mlp.gate.weight": "e h"}, COPY),
    Rule("mlp.experts.experts.linear_fc1.weight", {"mlp.experts.gate_up_proj": "e 2m h"}, COPY),
    Rule("mlp.experts.experts.linear_fc2.weight", {"mlp.experts.down_proj": "e h m"}, COPY),
)

# What the layers of each family consist of, by its model_type; biases and q/k norms are as found.
FEED_FORWARD = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen2": DENSE,
    "qwen3": DENSE,
    "qwen3_moe": QWEN_EXPERTS,
    "mixtral": MIXTRAL_EXPERTS,
}


def layer_rules(shape: MegatronShape) -> Sequence[Rule]:
    """Return the rules of one decoder layer."""
    rules = list(ATTENTION)
    if shape.qkv_bias:
        rules += QKV_BIAS
    if shape.qk_layernorm:
        rules += QK_NORM
    if shape.experts and shape.experts.stacked:
        return [*rules, *STACKED_EXPERTS]
    return [*rules, *FEED_FORWARD[shape.family]]


def model_rules(shape: MegatronShape) -> Sequence[Rule]:
    """Return the rules of what stands outside the layers."""
    rules = [EMBEDDING, FINAL_NORM]
    return rules if shape.tied_embeddings else [*rules, OUTPUT]


def sizes(shape: MegatronShape, dims: str) -> tuple[int, ...]:
    """Return the Hugging Face size that ``dims``, such as ``"2f h"``, stands for."""
    per_group = shape.num_attention_heads // shape.num_query_groups
    groups = shape.num_query_groups - shape.padded_query_groups
    letters = {
        "h": shape.hidden_size,
        "q": groups * per_group * shape.kv_channels,
        "k": groups * shape.kv_channels,
        "d": shape.kv_channels,
        "f": shape.ffn_hidden_size,
        "v": shape.vocab_size,
        "m": shape.experts.ffn_hidden_size if shape.experts else 0,
        "e": shape.experts.num_experts if shape.experts else 0,
    }
    return tuple(letters[word[-1]] * int(word[:-1] or 1) for word in dims.split())


def extra_state_keys(shape: MegatronShape) -> list[str]:
    """Return the keys of the (empty) states that Megatron wants beside the weights.

    The local specification asks for those of the linear modules, Transformer Engine's for those of
    the norms too. All of them are written: the larger set loads under both.
    """
    layers = shape.num_layers
    modules = ["self_attention.linear_qkv", "self_attention.linear_proj"]
    modules += ["mlp.router", "pre_mlp_layernorm"] if shape.experts else []
    modules += [] if shape.experts else ["mlp.linear_fc1", "mlp.linear_fc2"]
    if shape.qk_layernorm:
        modules += ["self_attention.q_layernorm", "self_attention.k_layernorm"]
    keys = [
        f"decoder.layers.{module}._extra_state/shard_{layer}_{layers}"
        for module in modules
        for layer in range(layers)
    ]
    if shape.experts:
        count = shape.experts.num_experts
        keys += [
            f"decoder.layers.mlp.experts.experts.{module}._extra_state"
            f"/shard_{layer}.{expert}_{layers}.{count}"
            for module in ("linear_fc1", "linear_fc2")
            for layer in range(layers)
            for expert in range(count)
        ]
    return ["decoder.final_layernorm._extra_state/shard_0_1", *keys]
