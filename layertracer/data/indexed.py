"""Megatron's indexed dataset, written by Megatron's own builder under temporary names."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import TracebackType

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages for GPUs, which data preparation has no use for
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder


class IndexedWriter:
    """A context that renames both files into place when its block succeeds, the index last."""

    def __init__(self, prefix: Path, dtype: type[np.number]) -> None:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._final = [prefix.with_name(prefix.name + end) for end in (".bin", ".idx")]
        self._temporary = [
            file.with_name(f".{file.name}.tmp-{os.getpid()}") for file in self._final
        ]
        self._builder = IndexedDatasetBuilder(str(self._temporary[0]), dtype=dtype)

    def add(self, tokens: np.ndarray) -> None:
        """Append one document."""
        self._builder.add_document(tokens, [len(tokens)])

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
                self._builder.finalize(str(self._temporary[1]))
                self._final[1].unlink(missing_ok=True)  # never an old index over new tokens
                for temporary, final in zip(self._temporary, self._final, strict=True):
                    temporary.replace(final)
        finally:
            self._builder.data_file.close()
            for temporary in self._temporary:
                temporary.unlink(missing_ok=True)
