"""Which files a corpus is, and how a piece of one becomes documents.

The reading process only cuts files into pieces at line ends; decoding, parsing and tokenizing
happen in the workers (``documents_of``), so that one reader keeps many of them busy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import Any

from layertracer.errors import UserError

KINDS = (".txt", ".jsonl", ".jsonl.gz", ".parquet")
_READABLE = ", ".join(KINDS[:-1]) + f" or {KINDS[-1]}"
_BOM = b"\xef\xbb\xbf"


class TextUnit(StrEnum):
    """What one document is in a plain text file."""

    BLANK_LINE = "blank-line"
    LINE = "line"
    FILE = "file"


@dataclass(frozen=True)
class Corpus:
    """Which files are read, in this order, and how.

    Attributes:
        files: ``.txt``, ``.jsonl``, ``.jsonl.gz`` and ``.parquet`` files.
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


@dataclass(frozen=True)
class Piece:
    """Some whole documents of one file, as stored.

    Attributes:
        content: lines of text or JSON; of a parquet file, a column as an Arrow stream.
        first: number of the first line or row, from 1.
        stored: how many bytes of the file it stands for.
    """

    file: Path
    content: bytes
    first: int
    stored: int


def kind_of(file: Path) -> str:
    """Return the suffix that says how ``file`` is read."""
    return ".jsonl.gz" if file.name.endswith(".jsonl.gz") else file.suffix


def find_files(inputs: list[Path]) -> tuple[Path, ...]:
    """Return ``inputs`` with folders replaced by the corpus files in them, sorted by path.

    Raises:
        UserError: a path doesn't exist, a file's kind isn't known, or a folder holds none.
    """
    found: list[Path] = []
    for path in inputs:
        if path.is_dir():
            inside = sorted(f for f in path.rglob("*") if f.is_file() and kind_of(f) in KINDS)
            if not inside:
                raise UserError(f"{path}: no {_READABLE} file in there")
            found += inside
        elif not path.is_file():
            raise UserError(f"{path}: no such file or folder")
        elif kind_of(path) not in KINDS:
            raise UserError(f"{path}: what is it? Give {_READABLE} files")
        else:
            found.append(path)
    return tuple(found)


def documents_of(piece: Piece, corpus: Corpus) -> Iterator[str]:
    """Yield the documents of ``piece`` that hold anything but blanks.

    Line ends of plain text become ``\\n``; blank lines around a document go.

    Raises:
        UserError: it can't be read as what its name says; the message gives the file and line.
    """
    kind = kind_of(piece.file)
    if kind == ".parquet":
        yield from _column(piece)
    elif kind == ".txt":
        yield from _paragraphs(_decoded(piece), corpus.text_unit)
    else:
        yield from _fields(piece, corpus.key)


def _decoded(piece: Piece) -> str:
    content = piece.content
    if piece.first == 1:
        content = content.removeprefix(_BOM)
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = piece.first + content[: error.start].count(b"\n")
        raise UserError(
            f"{piece.file}, line {line}: not UTF-8 ({error.reason}); convert the file with iconv"
        ) from error


def _paragraphs(text: str, unit: TextUnit) -> Iterator[str]:
    # Not str.splitlines(), which also cuts at characters inside a line, such as U+2028.
    lines = text.split("\n")
    if unit is TextUnit.LINE:
        yield from (line for line in lines if line.strip())
    elif unit is TextUnit.FILE:
        if text.strip():
            yield text.strip("\n")
    else:
        for has_text, some in groupby(lines, key=lambda line: bool(line.strip())):
            if has_text:
                yield "\n".join(some)


def _fields(piece: Piece, key: str) -> Iterator[str]:
    for number, line in enumerate(_decoded(piece).split("\n"), piece.first):
        if not line.strip():
            continue
        try:
            document = json.loads(line)[key]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{piece.file}, line {number}: not a JSON object with the field '{key}'; name the "
                "field with --json-key"
            ) from error
        yield from _checked(document, f"{piece.file}, line {number}: field '{key}'")


def _column(piece: Piece) -> Iterator[str]:
    import pyarrow

    with pyarrow.ipc.open_stream(piece.content) as stream:
        column = stream.read_all().column(0)
    for number, document in enumerate(column.to_pylist(), piece.first):
        yield from _checked(document, f"{piece.file}, row {number}")


def _checked(document: Any, place: str) -> Iterator[str]:
    """Yield ``document`` unless it is null or blank."""
    if document is None:
        return
    if not isinstance(document, str):
        raise UserError(f"{place} holds {type(document).__name__}, not text")
    try:
        document.encode("utf-8")
    except UnicodeEncodeError as error:  # "\ud800" in JSON: half a character
        raise UserError(f"{place} holds half a surrogate pair, which is no text") from error
    if document.strip():
        yield document
