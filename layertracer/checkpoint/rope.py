"""Rotary position settings of a Hugging Face config, in both of its spellings."""

from __future__ import annotations

from typing import Any

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

# Llama 3's scaling as Megatron 0.19 computes it: all but the factor is fixed in its source.
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope_settings(folder: ModelFolder) -> dict[str, Any]:
    """Return the rope fields of a ``MegatronShape``.

    Raises:
        UserError: the config gives no base, or a scaling that Megatron can't compute.
    """
    rope = _spelled_either_way(folder)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if float(rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UserError(f"{folder.path}: partial_rotary_factor is not 1: can't be converted")
    settings = {"rotary_base": _base(folder, rope)}
    if kind == "llama3":
        settings["rope_scaling_factor"] = _llama3_factor(folder, rope)
    elif kind == "linear":
        settings["rope_interpolation_factor"] = _whole(folder, "linear factor", rope["factor"])
    elif kind != "default":
        raise UserError(
            f"{folder.path}: rope scaling '{kind}' can't be converted (llama3 and linear can)"
        )
    return settings


def _spelled_either_way(folder: ModelFolder) -> dict[str, Any]:
    """Return ``rope_parameters`` (transformers 5), or ``rope_theta`` with ``rope_scaling``."""
    config = folder.text_config
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is None and config.get(key) is not None:
            rope[key] = config[key]
    return rope


def _base(folder: ModelFolder, rope: dict[str, Any]) -> int:
    if rope.get("rope_theta") is None:
        raise UserError(
            f"{folder.path}/config.json gives no rope_theta (neither there nor in "
            "rope_parameters): add the value the model was trained with (Llama 1 and 2: 10000.0)"
        )
    return _whole(folder, "rope_theta", rope["rope_theta"])


def _whole(folder: ModelFolder, name: str, value: float) -> int:
    if float(value) % 1:
        raise UserError(f"{folder.path}: {name} {value}: Megatron takes whole numbers only")
    return int(value)


def _llama3_factor(folder: ModelFolder, rope: dict[str, Any]) -> float:
    for name, value in _LLAMA3.items():
        if float(rope.get(name, value)) != float(value):
            raise UserError(
                f"{folder.path}: rope scaling with {name} {rope[name]}: Megatron has {value} fixed"
            )
    return float(rope["factor"])
