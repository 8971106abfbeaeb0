"""Text to Megatron's indexed dataset: tokenized in parallel, written in order.

``PREFIX.bin`` holds the tokens of all documents, ``PREFIX.idx`` where each begins. The index is
renamed into place last, so a pair is complete when its index is there.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from layertracer.data.documents import Corpus
from layertracer.data.tokenizers import Tokenizer, load_tokenizer
from layertracer.errors import UserError
from layertracer.files import provenance, refuse_existing, write_json

_BATCH_CHARACTERS = 500_000
_Encoded = list[np.ndarray]


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
    overwrite: bool = False,
) -> Prepared:
    """Write ``prefix.bin`` and ``prefix.idx``; the result does not depend on ``workers``.

    Raises:
        UserError: nothing to write, bad input, no end-of-document token, or the files exist.
    """
    for suffix in (".bin", ".idx"):
        refuse_existing(with_suffix(prefix, suffix), overwrite=overwrite)
    loaded = load_tokenizer(tokenizer)
    if append_eod and loaded.eod is None:
        raise UserError(
            f"--tokenizer {tokenizer} has no end-of-sequence token to end documents with; pass "
            "--no-append-eod if they need no end"
        )
    dtype = np.uint16 if loaded.vocab_size <= np.iinfo(np.uint16).max + 1 else np.int32
    batches = _in_order(_batches(corpus), tokenizer, workers)
    eod = loaded.eod if append_eod else None
    written = _write(_shown(batches, corpus.total_bytes), prefix, dtype, eod)
    inputs = {"files": ", ".join(map(str, corpus.files)), "tokenizer": tokenizer}
    facts = {"documents": written.documents, "tokens": written.tokens, "dtype": dtype.__name__}
    write_json(with_suffix(prefix, ".json"), provenance(inputs) | facts)
    return written


def with_suffix(prefix: Path, suffix: str) -> Path:
    """Return ``prefix`` with ``suffix`` appended, dots in its name kept."""
    return prefix.with_name(prefix.name + suffix)


def _batches(corpus: Corpus) -> Iterator[tuple[list[str], int]]:
    texts: list[str] = []
    characters = size = 0
    for text, stored in corpus.documents():
        texts.append(text)
        characters += len(text)
        size += stored
        if characters >= _BATCH_CHARACTERS:
            yield texts, size
            texts, characters, size = [], 0, 0
    if texts:
        yield texts, size


def _in_order(
    batches: Iterable[tuple[list[str], int]], tokenizer: Path, workers: int
) -> Iterator[tuple[_Encoded, int]]:
    """Tokenize in ``workers`` processes; yield in order, with few batches in flight."""
    if workers == 1:
        _start_worker(tokenizer)
        for texts, size in batches:
            yield _encode(texts), size
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (tokenizer,)) as pool:
        waiting: deque[tuple[Future[_Encoded], int]] = deque()
        for texts, size in batches:
            waiting.append((pool.submit(_encode, texts), size))
            if len(waiting) > 2 * workers:
                future, done = waiting.popleft()
                yield future.result(), done
        for future, done in waiting:
            yield future.result(), done


_tokenizer: Tokenizer | None = None


def _start_worker(tokenizer: Path) -> None:
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _tokenizer = load_tokenizer(tokenizer)


def _encode(texts: list[str]) -> _Encoded:
    return [np.array(ids, dtype=np.int64) for ids in _tokenizer.encode(texts)]


def _shown(batches: Iterable[tuple[_Encoded, int]], total: int) -> Iterator[np.ndarray]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("tokenizing", total=total)
        documents = 0
        for encoded, size in batches:
            yield from encoded
            documents += len(encoded)
            progress.update(task, advance=size, description=f"tokenizing {documents:,} documents")
        progress.update(task, completed=total)


def _write(
    documents: Iterable[np.ndarray], prefix: Path, dtype: type[np.number], eod: int | None
) -> Prepared:
    from layertracer.data.indexed import IndexedWriter

    count = tokens = 0
    with IndexedWriter(prefix, dtype) as writer:
        for ids in documents:
            if not len(ids):
                continue
            ended = ids if eod is None else np.append(ids, eod)
            writer.add(ended)
            count += 1
            tokens += len(ended)
        if not count:
            raise UserError("the corpus is empty: no document with any text in the given files")
    return Prepared(count, tokens)
