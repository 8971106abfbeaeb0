"""Megatron's indexed dataset: ``PREFIX.bin`` and ``PREFIX.idx``, written in bounded memory.

The format is that of ``megatron.core.datasets.indexed_dataset`` (0.19), whose reader the tests read
it back with. Its own builder keeps some hundred bytes of Python objects a document; here 4 bytes.

``.bin``: the tokens of all documents, one after the other. ``.idx``, little-endian: magic, version
(u64), dtype code (u8), number of sequences and of document bounds (u64 each), lengths in tokens
(i32), places in bytes (i64), and the bounds (i64); here every document is one sequence.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from layertracer.errors import UserError
from layertracer.files import write_json

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_DTYPE_CODES = {"int32": 4, "uint16": 8}
_INDEX_BLOCK = 2**20
Dtype = type[np.uint16] | type[np.int32]


def smallest_dtype(vocab_size: int) -> Dtype:
    """Return the type that holds token ids below ``vocab_size``."""
    return np.uint16 if vocab_size <= np.iinfo(np.uint16).max + 1 else np.int32


def with_suffix(prefix: Path, suffix: str) -> Path:
    """Return ``prefix`` with ``suffix`` appended, dots in its name kept."""
    return prefix.with_name(prefix.name + suffix)


class IndexedWriter:
    """A context that renames both files into place when its block succeeds, the index last.

    So a pair is complete when its index is there: an old index is removed before new tokens take
    their place, and a block that fails leaves nothing new behind.

    Attributes:
        facts: written as ``PREFIX.json`` beside the pair, when set.
    """

    def __init__(self, prefix: Path, dtype: Dtype) -> None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        self.facts: dict[str, Any] | None = None
        self._lengths = array("i")
        self._tokens = self._temporary(".bin")
        self._index = self._temporary(".idx")
        self._stream = self._tokens.open("wb")

    def _temporary(self, suffix: str) -> Path:
        return with_suffix(self.prefix, suffix).with_name(
            f".{self.prefix.name}{suffix}.tmp-{os.getpid()}"
        )

    def add(self, tokens: np.ndarray) -> None:
        """Append one document of token ids, at least one.

        Raises:
            ValueError: it is empty, or an id does not fit the dataset's type.
        """
        self.add_many(tokens, [len(tokens)])

    def add_many(self, tokens: np.ndarray, lengths: Sequence[int]) -> None:
        """Append documents of ``lengths`` tokens that lie one after the other in ``tokens``.

        Raises:
            ValueError: lengths and tokens disagree, or an id does not fit the dataset's type.
        """
        if sum(lengths) != len(tokens) or min(lengths, default=1) < 1:
            raise ValueError("lengths of documents are not those of their tokens")
        kept = tokens.astype(self.dtype, copy=False)
        if not np.array_equal(kept, tokens):
            raise ValueError(f"a token id does not fit {self.dtype.name}")
        self._stream.write(kept.tobytes())
        self._lengths.extend(lengths)

    @property
    def documents(self) -> int:
        """How many were added."""
        return len(self._lengths)

    def __enter__(self) -> IndexedWriter:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the pair, or leave nothing behind."""
        try:
            if kind is None:
                self._finish()
        finally:
            self._stream.close()
            self._tokens.unlink(missing_ok=True)
            self._index.unlink(missing_ok=True)

    def _finish(self) -> None:
        _to_disk(self._stream)
        with self._index.open("wb") as stream:
            _write_index(stream, np.frombuffer(self._lengths, np.int32), self.dtype)
            _to_disk(stream)
        final = with_suffix(self.prefix, ".idx")
        final.unlink(missing_ok=True)
        self._tokens.replace(with_suffix(self.prefix, ".bin"))
        if self.facts is not None:
            write_json(with_suffix(self.prefix, ".json"), self.facts)
        self._index.replace(final)


def _to_disk(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _write_index(stream: BinaryIO, lengths: np.ndarray, dtype: np.dtype) -> None:
    count = len(lengths)
    stream.write(_MAGIC)
    stream.write(struct.pack("<QBQQ", _VERSION, _DTYPE_CODES[dtype.name], count, count + 1))
    stream.write(lengths.astype("<i4", copy=False).tobytes())
    place = 0
    for begin in range(0, count, _INDEX_BLOCK):
        sizes = lengths[begin : begin + _INDEX_BLOCK].astype("<i8") * dtype.itemsize
        ends = place + np.cumsum(sizes)
        stream.write((ends - sizes).tobytes())
        place = int(ends[-1])
    for begin in range(0, count + 1, _INDEX_BLOCK):
        stream.write(np.arange(begin, min(begin + _INDEX_BLOCK, count + 1), dtype="<i8").tobytes())


def check_pair(prefix: Path) -> int:
    """Return the number of documents of a dataset whose two files fit each other.

    Raises:
        UserError: a file is missing, damaged, or of another size than the index says.
    """
    index, tokens = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
    for file in (index, tokens):
        if not file.is_file():
            raise UserError(f"{file} is missing: make it with `layertracer prepare-data`")
    header = struct.Struct("<9sQBQQ")
    with index.open("rb") as stream:
        head = stream.read(header.size)
        if len(head) < header.size or not head.startswith(_MAGIC):
            raise UserError(f"{index} is not an index of a Megatron dataset")
        _, _, code, sequences, bounds = header.unpack(head)
        sizes = {code: np.dtype(name).itemsize for name, code in _DTYPE_CODES.items()}
        lengths = np.fromfile(stream, "<i4", sequences)
    whole = index.stat().st_size == header.size + 12 * sequences + 8 * bounds
    if not whole or int(lengths.sum(dtype=np.int64)) * sizes.get(code, 0) != tokens.stat().st_size:
        raise UserError(f"{prefix}: .bin and .idx do not fit each other; prepare the data again")
    return bounds - 1
