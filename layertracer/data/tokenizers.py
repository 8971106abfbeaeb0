"""Hugging Face and SentencePiece tokenizers behind one small face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import UserError


@dataclass(frozen=True)
class Tokenizer:
    """``encode`` gives token ids without special ones; ``eod`` ends a document."""

    encode: Callable[[list[str]], list[list[int]]]
    eod: int | None
    vocab_size: int


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a Hugging Face tokenizer folder, or a SentencePiece ``.model`` file.

    Raises:
        UserError: there is neither at ``path``.
    """
    if path.suffix == ".model" and path.is_file():
        return _sentencepiece(path)
    if path.is_dir() and any((path / name).is_file() for name in _FILES):
        return _hugging_face(path)
    raise UserError(
        f"--tokenizer {path}: neither a folder with {' or '.join(_FILES)}, nor a SentencePiece "
        ".model file"
    )


_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


def _hugging_face(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--tokenizer {path}: {str(error).splitlines()[0]}") from error
    loaded.model_max_length = int(1e30)  # documents are longer than the model, on purpose

    def encode(texts: list[str]) -> list[list[int]]:
        return loaded(texts, add_special_tokens=False)["input_ids"]

    return Tokenizer(encode, loaded.eos_token_id, len(loaded))


def _sentencepiece(path: Path) -> Tokenizer:
    import sentencepiece

    try:
        loaded = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise UserError(f"--tokenizer {path} is not a SentencePiece model: {error}") from error
    eod = loaded.eos_id()
    return Tokenizer(loaded.encode, eod if eod >= 0 else None, loaded.vocab_size())
