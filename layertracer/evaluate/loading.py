"""Loading a Hugging Face folder for evaluation."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

_ERRORS = (OSError, ValueError, KeyError, RuntimeError)


def load_model(
    folder: ModelFolder, dtype: str, device: torch.device, *, trust_code: bool = False
) -> PreTrainedModel:
    """Load the weights from safetensors files, in ``dtype``, onto ``device``.

    Raises:
        UserError: transformers can't load it, or a weight is missing (transformers would go on
            with a random one).
    """
    folder.fingerprint  # noqa: B018  missing or damaged weights are reported before loading
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder.path,
            dtype=getattr(torch, dtype),
            trust_remote_code=trust_code,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except _ERRORS as error:
        raise UserError(f"{folder.path}: transformers can't load it: {_short(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{folder.path}: {len(missing)} weights are missing from its files, for example "
            f"{missing[0]}"
        )
    return model.to(device).eval()


def load_tokenizer(path: Path, *, trust_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder.

    Raises:
        UserError: there is none, or it can't be loaded.
    """
    try:
        return AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=trust_code
        )
    except _ERRORS as error:
        raise UserError(f"{path}: no tokenizer can be loaded: {_short(error)}") from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
