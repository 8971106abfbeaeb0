"""Tokenizing pieces of a corpus in several processes, in order and in bounded memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from layertracer.data.documents import Corpus, Piece, documents_of
from layertracer.errors import UserError

IN_FLIGHT = 4  # pieces a worker, read or tokenized but not yet written


@dataclass(frozen=True)
class Encoded:
    """The documents of a piece: their tokens one after the other, and their lengths.

    Attributes:
        tokens: integers of shape ``[sum(lengths)]``.
        stored: how many bytes of the corpus they stand for.
    """

    tokens: np.ndarray
    lengths: list[int]
    stored: int


@dataclass(frozen=True)
class Job:
    """What a worker does with a piece; ``eod`` is appended to each document unless None."""

    corpus: Corpus
    encode: Callable[[list[str]], list[list[int]]]
    eod: int | None

    def __call__(self, piece: Piece) -> Encoded:
        """Decode and tokenize ``piece``; documents without any token are left out."""
        end = [] if self.eod is None else [self.eod]
        texts = list(documents_of(piece, self.corpus))
        encoded = [ids + end for ids in self.encode(texts) if ids] if texts else []
        tokens = np.concatenate([np.array(ids, np.int32) for ids in [*encoded, []]])
        return Encoded(tokens, [len(ids) for ids in encoded], piece.stored)


@contextmanager
def tokenized(job: Job, pieces: Iterable[Piece], workers: int) -> Iterator[Iterator[Encoded]]:
    """Yield the tokenized pieces in their order; the processes end with the context.

    Raises:
        UserError: from a piece, or a process was killed.
    """
    if workers == 1:
        yield map(job, pieces)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (job,)) as pool:
        try:
            yield _in_order(pool, pieces, workers * IN_FLIGHT)
        except BrokenProcessPool as error:
            raise UserError(
                "a tokenizing process was killed, most likely for want of memory: use fewer "
                "--workers"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, pieces: Iterable[Piece], in_flight: int
) -> Iterator[Encoded]:
    waiting: deque[Future[Encoded]] = deque()
    for piece in pieces:
        waiting.append(pool.submit(_run, piece))
        if len(waiting) >= in_flight:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


_job: Job | None = None


def _start(job: Job) -> None:
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _job = job


def _run(piece: Piece) -> Encoded:
    return _job(piece)
