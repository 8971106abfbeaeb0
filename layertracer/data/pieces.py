"""Cutting corpus files into pieces of whole documents, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

from layertracer.data.documents import Corpus, Piece, TextUnit, kind_of
from layertracer.errors import UserError

PIECE_BYTES = 512 * 1024


def pieces(corpus: Corpus, size: int = PIECE_BYTES) -> Iterator[Piece]:
    """Yield the corpus in pieces of about ``size`` bytes, in order.

    A piece ends where a document does, so a single longer document makes a larger piece.

    Raises:
        UserError: a file can't be read, or a parquet file lacks the column.
    """
    for file in corpus.files:
        try:
            if kind_of(file) == ".parquet":
                yield from _of_parquet(file, corpus.key, size)
            else:
                yield from _of_lines(file, corpus.text_unit, size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f"{file}: damaged or cut off gzip file ({error})") from error
        except OSError as error:
            raise UserError(f"{file} can't be read: {error.strerror or error}") from error


def _of_lines(file: Path, unit: TextUnit, size: int) -> Iterator[Piece]:
    is_text = kind_of(file) == ".txt"
    with (
        file.open("rb") as stored,
        gzip.open(stored) if file.suffix == ".gz" else nullcontext(stored) as stream,
    ):
        place, first = 0, 1
        while lines := _next_lines(stream, unit if is_text else TextUnit.LINE, size):
            end = stored.tell()
            yield Piece(file, b"".join(lines), first, end - place)
            place, first = end, first + len(lines)


def _next_lines(stream: IO[bytes], unit: TextUnit, size: int) -> list[bytes]:
    lines = stream.readlines(-1 if unit is TextUnit.FILE else size)
    if unit is TextUnit.BLANK_LINE:
        while lines and lines[-1].strip() and (line := stream.readline()):
            lines.append(line)
    return lines


def _of_parquet(file: Path, key: str, size: int) -> Iterator[Piece]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            _check_column(file, table.schema_arrow, key)
            rows = max(table.metadata.num_rows, 1)
            share = file.stat().st_size / rows
            groups = (table.metadata.row_group(i) for i in range(table.num_row_groups))
            a_row = sum(group.total_byte_size for group in groups) // rows + 1
            first = 1
            for batch in table.iter_batches(columns=[key], batch_size=max(1, size // a_row)):
                content = pyarrow.BufferOutputStream()
                with pyarrow.ipc.new_stream(content, batch.schema) as stream:
                    stream.write_batch(batch)
                stored = round(share * batch.num_rows)
                yield Piece(file, content.getvalue().to_pybytes(), first, stored)
                first += batch.num_rows
    except pyarrow.ArrowException as error:
        reason = (str(error).splitlines() or ["damaged"])[0]
        raise UserError(f"{file} can't be read as a parquet file: {reason}") from error


def _check_column(file: Path, schema: Any, key: str) -> None:
    import pyarrow

    if key not in schema.names:
        raise UserError(
            f"{file} has no column '{key}' (it has {', '.join(schema.names)}); name it with "
            "--json-key"
        )
    kind = schema.field(key).type
    stored = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(stored) or pyarrow.types.is_large_string(stored)):
        raise UserError(f"{file}: column '{key}' holds {kind}, not text; name another (--json-key)")
