"""Text to Megatron's indexed dataset: tokenized in parallel, written in order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from layertracer.data.documents import Corpus
from layertracer.data.indexed import IndexedWriter, smallest_dtype, with_suffix
from layertracer.data.pieces import pieces
from layertracer.data.tokenizers import Tokenizer, load_tokenizer
from layertracer.data.workers import Encoded, Job, tokenized
from layertracer.errors import UserError
from layertracer.files import provenance, refuse_existing


@dataclass(frozen=True)
class Prepared:
    """What was written."""

    documents: int
    tokens: int


def prepare(
    corpus: Corpus,
    prefix: Path,
    tokenizer: Path,
    *,
    workers: int = 1,
    append_eod: bool = True,
    eod_token: str | None = None,
    trust_code: bool = False,
    overwrite: bool = False,
) -> Prepared:
    """Write ``prefix.bin``, ``prefix.idx`` and ``prefix.json``.

    The tokens do not depend on ``workers``.

    Args:
        eod_token: the token that ends a document; None takes the end-of-sequence token.
        trust_code: run tokenizer code that the tokenizer's folder brings.

    Raises:
        UserError: nothing to write, bad input, no end-of-document token, or the files exist.
    """
    for suffix in (".bin", ".idx"):
        refuse_existing(with_suffix(prefix, suffix), overwrite=overwrite)
    loaded = load_tokenizer(tokenizer, trust_code=trust_code)
    eod = _end_of_document(loaded, tokenizer, eod_token) if append_eod else None
    job = Job(corpus, loaded.encode, eod)
    tokens = 0
    with (
        IndexedWriter(prefix, smallest_dtype(loaded.vocab_size)) as writer,
        tokenized(job, pieces(corpus), workers) as encoded,
    ):
        for one in _shown(encoded, corpus.total_bytes):
            writer.add_many(one.tokens, one.lengths)
            tokens += len(one.tokens)
        if not writer.documents:
            raise UserError("the corpus is empty: no document with any text in the given files")
        writer.facts = _facts(corpus, tokenizer, eod) | {
            "documents": writer.documents,
            "tokens": tokens,
            "dtype": writer.dtype.name,
        }
    return Prepared(writer.documents, tokens)


def default_workers() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def _end_of_document(loaded: Tokenizer, path: Path, eod_token: str | None) -> int:
    if eod_token is not None:
        eod = loaded.id_of(eod_token)
        if eod is None:
            raise UserError(f"--eod-token {eod_token}: --tokenizer {path} has no such token")
        return eod
    if loaded.eod is None:
        raise UserError(
            f"--tokenizer {path} has no end-of-sequence token to end documents with; name one "
            "with --eod-token, or pass --no-append-eod if they need no end"
        )
    return loaded.eod


def _facts(corpus: Corpus, tokenizer: Path, eod: int | None) -> dict[str, Any]:
    inputs = {"files": ", ".join(map(str, corpus.files)), "tokenizer": tokenizer}
    return provenance(inputs) | {"input_bytes": corpus.total_bytes, "end_of_document": eod}


def _shown(encoded: Iterable[Encoded], total: int) -> Iterator[Encoded]:
    columns = (
        TextColumn("tokenizing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[documents]:,} documents, {task.fields[rate]:,.0f}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=total, documents=0, rate=0.0)
        documents = 0
        for one in encoded:
            yield one
            documents += len(one.lengths)
            rate = documents / max(progress.tasks[0].elapsed or 0.0, 1e-9)
            progress.update(task, advance=one.stored, documents=documents, rate=rate)
        progress.update(task, completed=total)
