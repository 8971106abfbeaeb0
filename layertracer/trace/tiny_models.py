"""Tiny random-weight models of any causal-LM class that transformers knows, for checks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LAYERS, HIDDEN, HEADS, VOCAB = 4, 64, 4, 320
MOST_PARAMETERS = 20_000_000

# Sizes by the names that configs use for them; a config takes those it has.
_NAMES: list[tuple[Any, str]] = [
    (LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers"),
    (LAYERS, "num_blocks"),
    (HIDDEN, "hidden_size n_embd d_model dim embedding_size embed_dim emb_dim hidden_dim"),
    (HIDDEN, "word_embed_proj_dim lru_width"),
    (HEADS, "num_attention_heads n_head n_heads num_heads linear_num_value_heads"),
    (HEADS, "decoder_attention_heads encoder_attention_heads"),
    (2, "num_key_value_heads num_kv_heads n_head_kv linear_num_key_heads"),
    (2, "num_global_key_value_heads swa_num_key_value_heads index_n_heads n_mamba_heads"),
    (96, "intermediate_size ffn_dim n_inner ffn_hidden_size decoder_ffn_dim encoder_ffn_dim"),
    (96, "d_inner feed_forward_proj_dim shared_intermediate_size block_ff_dim ffn_size"),
    (32, "moe_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size"),
    (32, "shared_expert_intermediate_size moe_ffn_hidden_size intermediate_size_mlp"),
    (32, "dense_intermediate_size n_shared_experts_intermediate_size qk_head_dim"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts"),
    (4, "n_expert index_topk"),
    (2, "num_experts_per_tok num_selected_experts moe_top_k moe_topk top_k top_k_experts"),
    (2, "num_experts_per_token mamba_expand"),
    (1, "n_group topk_group n_shared_experts num_shared_experts first_k_dense_replace"),
    (1, "mamba_n_groups n_groups bos_token_id decoder_start_token_id"),
    (16, "head_dim linear_key_head_dim linear_value_head_dim global_head_dim v_head_dim"),
    (16, "qk_nope_head_dim qk_rope_head_dim rotary_dim q_lora_rank kv_lora_rank kv_channels"),
    (16, "index_head_dim mamba_d_head mamba_head_dim mamba_d_state ssm_state_size state_size"),
    (16, "hidden_size_per_layer_input"),
    (8, "mamba_n_heads mamba_num_heads chunk_size mamba_chunk_size time_step_rank"),
    (128, "mamba_d_ssm max_position_embeddings n_positions n_ctx"),
    (32, "sliding_window attention_window_size"),
    (VOCAB, "vocab_size vocab_size_per_layer_input"),
    (0, "num_kv_shared_layers pad_token_id"),
    (0.0, "layerdrop decoder_layerdrop"),
    (2, "eos_token_id"),
    (True, "is_decoder"),
]
_SIZES = {name: value for value, names in _NAMES for name in names.split()}
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
