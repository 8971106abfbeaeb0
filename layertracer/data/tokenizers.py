"""Hugging Face and SentencePiece tokenizers behind one small face.

A tokenizer is loaded once and sent to the worker processes by pickle. A fast Hugging Face tokenizer
travels without transformers, which takes seconds to import in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertracer.errors import UserError

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


@dataclass(frozen=True)
class Tokenizer:
    """``encode`` gives token ids without special ones; ``eod`` ends a document.

    Attributes:
        encode: a list of texts to their ids.
        eod: id of the end-of-sequence token, None where the tokenizer has none.
        id_of: the id of a token given by its text, None for an unknown one.
        vocab_size: one more than the largest id.
    """

    encode: Callable[[list[str]], list[list[int]]]
    eod: int | None
    id_of: Callable[[str], int | None]
    vocab_size: int


def load_tokenizer(path: Path, *, trust_code: bool = False) -> Tokenizer:
    """Load a Hugging Face tokenizer folder, or a SentencePiece ``.model`` file.

    Args:
        trust_code: run tokenizer code that the folder brings.

    Raises:
        UserError: there is neither at ``path``, or it can't be loaded.
    """
    if path.suffix == ".model" and path.is_file():
        return _sentencepiece(path)
    if path.is_dir() and any((path / name).is_file() for name in _FILES):
        return _hugging_face(path, trust_code)
    raise UserError(
        f"--tokenizer {path}: neither a folder with {' or '.join(_FILES)}, nor a SentencePiece "
        ".model file"
    )


@dataclass(frozen=True)
class _Fast:
    """``tokenizers.Tokenizer``."""

    backend: Any

    def __call__(self, texts: list[str]) -> list[list[int]]:
        encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [one.ids for one in encoded]


@dataclass(frozen=True)
class _Slow:
    """A tokenizer of transformers that is written in Python."""

    loaded: Any

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return self.loaded(texts, add_special_tokens=False)["input_ids"]


@dataclass(frozen=True)
class _Pieces:
    """``sentencepiece.SentencePieceProcessor``."""

    loaded: Any

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return self.loaded.encode(texts, num_threads=1)


def _hugging_face(path: Path, trust_code: bool) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_code)
    except Exception as error:  # damaged files raise errors of every kind
        if "trust_remote_code" in str(error):
            raise UserError(
                f"--tokenizer {path} brings its own code: read it, then pass --trust-remote-code"
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"--tokenizer {path} can't be loaded: {reason}") from error
    loaded.model_max_length = int(1e30)  # documents are longer than the model, on purpose
    vocabulary = loaded.get_vocab()
    if loaded.is_fast:
        loaded.backend_tokenizer.no_truncation()
        loaded.backend_tokenizer.no_padding()
        encode = _Fast(loaded.backend_tokenizer)
    else:
        encode = _Slow(loaded)
    size = max(vocabulary.values(), default=-1) + 1
    return Tokenizer(encode, loaded.eos_token_id, vocabulary.get, size)


def _sentencepiece(path: Path) -> Tokenizer:
    import sentencepiece

    try:
        loaded = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--tokenizer {path} is not a SentencePiece model: {reason}") from error

    def id_of(piece: str) -> int | None:
        found = loaded.piece_to_id(piece)
        return found if loaded.id_to_piece(found) == piece else None

    eod = loaded.eos_id()
    return Tokenizer(_Pieces(loaded), eod if eod >= 0 else None, id_of, loaded.vocab_size())
