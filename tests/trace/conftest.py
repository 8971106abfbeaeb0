"""Tiny models and tokenizers as folders on disk, as `layertracer trace` gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from layertracer.trace.tiny_models import tiny_model

SPECIALS = ["<unk>", "<s>", "</s>", "<mask>"]


def byte_tokenizer(*, bos: bool, padding_side: str = "right") -> PreTrainedTokenizerFast:
    """One token a byte; with ``bos`` each text begins with ``<s>``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        mask_token="<mask>",
        padding_side=padding_side,
    )


def save_model(folder: Path, model_type: str = "llama", *, bos: bool = True, **config: Any) -> Path:
    """Write a tiny model with its tokenizer; return the folder."""
    tiny_model(model_type, **config).save_pretrained(folder)
    byte_tokenizer(bos=bos).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama") / "model")
