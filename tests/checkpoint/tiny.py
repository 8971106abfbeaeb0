"""Tiny models of every family that can be converted, made by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 126  # not a multiple of what Megatron pads to

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}

# name: (class of transformers, settings beyond the common ones)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama-wide-heads": ("Llama", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 100}),
    "qwen2": ("Qwen2", {"rms_norm_eps": 1e-6}),
    "qwen2-tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3-moe-softmax-first": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


def save_tiny(folder: Path, case: str, **options: Any) -> Path:
    """Write the model of ``case`` into ``folder``, with files beside it; return the folder.

    Every tensor is random, norms and biases too: transformers starts them at 1 and 0, which hides
    what is lost. ``dtype`` and ``max_shard_size`` go to transformers, the rest to the config.
    """
    import transformers

    name, settings = CASES[case]
    dtype = options.pop("dtype", torch.float32)
    shard = options.pop("max_shard_size", "5GB")
    config = getattr(transformers, f"{name}Config")(**{**COMMON, **settings, **options})
    torch.manual_seed(len(case))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "chat_template.jinja").write_text("{{ messages }}\n", "utf-8")
    (folder / "special_tokens_map.json").write_text('{"eos_token":   "</s>"}', "utf-8")
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of ``config.json``; None removes one."""
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8"))
    for key, value in changes.items():
        config.pop(key, None)
        if value is not None:
            config[key] = value
    file.write_text(json.dumps(config), "utf-8")
