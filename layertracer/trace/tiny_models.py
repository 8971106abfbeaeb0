"""Tiny random-weight models of any causal-LM class that transformers knows, for checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LAYERS, HIDDEN, HEADS, VOCAB = 4, 64, 4, 320
MOST_PARAMETERS = 20_000_000

# Sizes by the names that configs use for them; a config takes those it has.
_SIZES: dict[str, Any] = {
    **dict.fromkeys(
        "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_blocks".split(),
        LAYERS,
    ),
    **dict.fromkeys(
        "hidden_size n_embd d_model dim embedding_size embed_dim emb_dim word_embed_proj_dim "
        "hidden_dim lru_width".split(),
        HIDDEN,
    ),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
        "encoder_attention_heads".split(),
        HEADS,
    ),
    **dict.fromkeys(
        "num_key_value_heads num_kv_heads n_head_kv linear_num_key_heads num_global_key_value_heads "
        "swa_num_key_value_heads".split(),
        2,
    ),
    **dict.fromkeys(
        "intermediate_size ffn_dim n_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim d_inner "
        "feed_forward_proj_dim shared_intermediate_size block_ff_dim ffn_size".split(),
        96,
    ),
    **dict.fromkeys(
        "moe_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size "
        "shared_expert_intermediate_size moe_ffn_hidden_size intermediate_size_mlp "
        "dense_intermediate_size n_shared_experts_intermediate_size".split(),
        32,
    ),
    **dict.fromkeys(
        "num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts "
        "n_expert".split(),
        4,
    ),
    **dict.fromkeys(
        "num_experts_per_tok num_selected_experts moe_top_k moe_topk top_k top_k_experts "
        "num_experts_per_token".split(),
        2,
    ),
    **dict.fromkeys("n_group topk_group n_shared_experts num_shared_experts".split(), 1),
    **dict.fromkeys(
        "head_dim linear_key_head_dim linear_value_head_dim global_head_dim".split(), 16
    ),
    "linear_num_value_heads": 4,
    **dict.fromkeys("qk_nope_head_dim v_head_dim qk_rope_head_dim rotary_dim".split(), 16),
    **dict.fromkeys("q_lora_rank kv_lora_rank kv_channels index_head_dim".split(), 16),
    "qk_head_dim": 32,
    "index_n_heads": 2,
    "index_topk": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "mamba_d_ssm": 128,
    "mamba_expand": 2,
    "ssm_state_size": 16,
    "state_size": 16,
    "n_groups": 1,
    "chunk_size": 8,
    "mamba_chunk_size": 8,
    "n_mamba_heads": 2,
    "time_step_rank": 8,
    "vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 16,
    "num_kv_shared_layers": 0,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "n_ctx": 128,
    "sliding_window": 32,
    "attention_window_size": 32,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "is_decoder": True,
    "layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
_MAMBA2 = {"num_heads": 8, "head_dim": 16, "expand": 2}
# Fields whose values depend on each other, so that the general sizes don't fit.
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "dots3_note_text": {"num_key_value_heads": HEADS},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "mamba2": _MAMBA2,
    "nemotron_h": {"hybrid_override_pattern": "M*-M"},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16]},
    "zaya": {"num_experts_per_tok": 1},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"] * 2},
}


class CannotBuild(Exception):
    """The class needs a config that the general sizes don't make; says why."""


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """Return a small config of ``model_type`` (``llama``, ``gpt2``, ...).

    Raises:
        CannotBuild: the config class refuses the sizes.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        kind = CONFIG_MAPPING[model_type]
        default = kind()
        known = set(default.to_dict()) | set(getattr(kind, "attribute_map", {}))
        sizes = {name: value for name, value in _SIZES.items() if name in known}
        if "kv_lora_rank" in known:  # multi-head latent attention has no grouped heads
            sizes["num_key_value_heads"] = HEADS
        sizes |= {**_SPECIAL.get(model_type, {}), **overrides}
        for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
            kinds = getattr(default, name, None)
            if isinstance(kinds, list) and name not in sizes and not _computed(kind, name):
                sizes[name] = _cut(kinds)
        return kind(**sizes)
    except Exception as error:
        raise CannotBuild(f"{type(error).__name__}: {error}") from error


def _computed(kind: type, name: str) -> bool:
    name = getattr(kind, "attribute_map", {}).get(name, name)
    return isinstance(getattr(kind, name, None), property)


def _cut(kinds: list[str]) -> list[str]:
    """Return as many kinds as there are layers, every kind that fits among them."""
    names = list(dict.fromkeys(kinds))
    return [names[index % len(names)] for index in range(LAYERS)]


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> nn.Module:
    """Return a tiny causal LM of ``model_type`` with random float32 weights, in eval mode.

    Raises:
        CannotBuild: its class can't be built from a small config.
    """
    from transformers import AutoModelForCausalLM

    config = tiny_config(model_type, **overrides)
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        if size > MOST_PARAMETERS:
            raise CannotBuild(f"{size:,} parameters even with small sizes")
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    except CannotBuild:
        raise
    except Exception as error:
        raise CannotBuild(f"{type(error).__name__}: {error}") from error
