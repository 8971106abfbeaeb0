"""What both sides run to be compared, and the files in which Megatron's side leaves its numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

EMBEDDING, LOGITS = "embedding.pt", "logits.pt"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_CHINESE = (
    "语言模型的每一层都把上一层的输出再加工一遍。浅层负责把字和词拼成意义，深层负责给出答案。"
    "继续预训练的时候，如果把所有层都打开，模型容易忘掉原来会的东西；只训练其中一部分，"
    "往往更省显存，也更稳定。哪一部分值得训练，要先测量，再决定。\n\n"
)


def layer_file(layer: int) -> str:
    """Return the name of the file with the output of decoder layer ``layer`` (0-based)."""
    return f"layer-{layer:04d}.pt"


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a tokenizer."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def probe_tokens(folder: ModelFolder, length: int, text: Path | None = None) -> Tensor:
    """Return ``length`` token ids of real text, ``[length]``.

    Without ``text`` it is a Chinese paragraph, then the English of Python's own manual. A folder
    without a tokenizer gets random tokens, the same ones each time.

    Raises:
        UserError: ``text`` is missing or too short.
    """
    if not has_tokenizer(folder.path):
        generator = torch.Generator().manual_seed(0)
        return torch.randint(folder.text_config["vocab_size"], (length,), generator=generator)
    from layertracer.data.tokenizers import load_tokenizer

    if text is not None and not text.is_file():
        raise UserError(f"--text {text}: no such file")
    content = text.read_text("utf-8") if text else _default_text()
    # No tokenizer makes a token of more than some dozen characters on average.
    ids = load_tokenizer(folder.path).encode([content[: 40 * length]])[0]
    if len(ids) < length:
        raise UserError(f"--text {text}: {len(ids)} tokens, too short for {length}")
    return torch.tensor(ids[:length])


def _default_text() -> str:
    from pydoc_data.topics import topics

    return _CHINESE + "\n\n".join(topics[name] for name in sorted(topics))
