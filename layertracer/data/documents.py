"""Documents from text, JSON lines and parquet files, one at a time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from layertracer.errors import UserError


class TextUnit(StrEnum):
    """What one document is in a plain text file."""

    BLANK_LINE = "blank-line"
    LINE = "line"
    FILE = "file"


@dataclass(frozen=True)
class Corpus:
    """Which files are read, and how.

    Attributes:
        files: ``.txt``, ``.jsonl``, ``.jsonl.gz`` and ``.parquet`` files, in this order.
        key: field or column that holds the text of JSON lines and parquet files.
        text_unit: what separates documents in plain text.
    """

    files: tuple[Path, ...]
    key: str = "text"
    text_unit: TextUnit = TextUnit.BLANK_LINE

    @property
    def total_bytes(self) -> int:
        """Size of all files, as stored."""
        return sum(file.stat().st_size for file in self.files)

    def documents(self) -> Iterator[tuple[str, int]]:
        """Yield each document that isn't blank, and the share of stored bytes it stands for.

        Raises:
            UserError: a file can't be read as what its name says; the message gives the line.
        """
        for file in self.files:
            yield from _READERS[_kind(file)](file, self)


def find_files(inputs: list[Path]) -> tuple[Path, ...]:
    """Return ``inputs`` with folders replaced by the corpus files in them, sorted.

    Raises:
        UserError: a path doesn't exist, a file's kind isn't known, or a folder holds none.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = sorted(f for f in path.rglob("*") if f.is_file() and _kind(f) in _READERS)
            if not inside:
                raise UserError(f"{path}: no .txt, .jsonl, .jsonl.gz or .parquet file in there")
            found += inside
        elif not path.is_file():
            raise UserError(f"{path}: no such file or folder")
        elif _kind(path) not in _READERS:
            raise UserError(f"{path}: give .txt, .jsonl, .jsonl.gz or .parquet files")
        else:
            found.append(path)
    return tuple(found)


def _kind(file: Path) -> str:
    return ".jsonl.gz" if file.name.endswith(".jsonl.gz") else file.suffix


def _decode(line: bytes, file: Path, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{file}, line {number}: not UTF-8 (byte {error.start}); convert the file with iconv"
        ) from error


def _text(file: Path, corpus: Corpus) -> Iterator[tuple[str, int]]:
    pending: list[str] = []
    pending_bytes = 0
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, 1):
            line = _decode(raw, file, number)
            pending_bytes += len(raw)
            if line.strip() or corpus.text_unit is TextUnit.FILE:
                pending.append(line)
            ends = corpus.text_unit is TextUnit.LINE or (
                corpus.text_unit is TextUnit.BLANK_LINE and not line.strip()
            )
            if ends and pending:
                yield "".join(pending).strip("\n"), pending_bytes
                pending, pending_bytes = [], 0
    document = "".join(pending).strip("\n")
    if document.strip():
        yield document, pending_bytes


def _json_lines(file: Path, corpus: Corpus) -> Iterator[tuple[str, int]]:
    with (
        file.open("rb") as stored,
        gzip.open(stored) if file.suffix == ".gz" else nullcontext(stored) as stream,
    ):
        place = 0
        for number, raw in enumerate(stream, 1):
            line = _decode(raw, file, number)
            if not line.strip():
                continue
            try:
                document = json.loads(line)[corpus.key]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{file}, line {number}: not a JSON object with the field '{corpus.key}'; "
                    "name the field with --json-key"
                ) from error
            if not isinstance(document, str):
                raise UserError(f"{file}, line {number}: field '{corpus.key}' is not a text")
            advanced, place = stored.tell() - place, stored.tell()
            if document.strip():
                yield document, advanced


def _parquet(file: Path, corpus: Corpus) -> Iterator[tuple[str, int]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{file} is not a parquet file: {error}") from error
    if corpus.key not in table.schema_arrow.names:
        raise UserError(
            f"{file} has no column '{corpus.key}' (it has {', '.join(table.schema_arrow.names)}); "
            "name it with --json-key"
        )
    share = file.stat().st_size / max(table.metadata.num_rows, 1)
    for batch in table.iter_batches(columns=[corpus.key], batch_size=1024):
        for document in batch.column(0).to_pylist():
            if document and document.strip():
                yield document, int(share)


_READERS = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".parquet": _parquet,
}
