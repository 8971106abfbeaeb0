"""The numbers of every prompt and depth, as arrays and as parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from layertracer.errors import UserError
from layertracer.files import atomic_file
from layertracer.trace import metrics

TABLE = "trace.parquet"
PROMPTS = "prompts.parquet"
EMBEDDING = -1  # the layer number of the embedding output in the files


@dataclass(frozen=True)
class PromptTable:
    """Everything measured; column 0 of ``p``, ``js``, ``js_null`` is the embedding output.

    Attributes:
        p: probability of the target after each depth, ``[prompts, L + 1]``.
        js, js_null: divergence from the perturbed prompt, and of two perturbed ones, in nats.
        target: token id that ``p`` is about; predicted: the model's own answer.
        given: first token of the given target, -1 where none was given.
        tokens: length of each prompt.
    """

    p: NDArray[np.float64]
    js: NDArray[np.float64]
    js_null: NDArray[np.float64] | None
    target: NDArray[np.int64]
    predicted: NDArray[np.int64]
    given: NDArray[np.int64]
    tokens: NDArray[np.int64]
    text: list[str]
    group: list[str]

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return self.p.shape[1] - 1

    def save(self, folder: Path) -> None:
        """Write ``trace.parquet`` (a row per prompt and layer) and ``prompts.parquet``."""
        with atomic_file(folder / TABLE) as temporary:
            pq.write_table(self._long_table(), temporary)
        with atomic_file(folder / PROMPTS) as temporary:
            pq.write_table(self._prompt_table(), temporary)

    def _long_table(self) -> pa.Table:
        count, depths = self.p.shape
        no_embedding = np.full((count, 1), np.nan)
        columns = {
            "prompt": np.repeat(np.arange(count), depths),
            "layer": np.tile(np.arange(EMBEDDING, depths - 1), count),
            "p_target": self.p.ravel(),
            "ratio": np.hstack([no_embedding, metrics.ratio(self.p)]).ravel(),
            "js": self.js.ravel(),
            "djs": np.hstack([no_embedding, metrics.js_rise(self.js)]).ravel(),
            "js_null": None if self.js_null is None else self.js_null.ravel(),
        }
        empty = pa.nulls(count * depths, pa.float64())
        return pa.table(
            {
                name: empty if values is None else pa.array(values, from_pandas=True)
                for name, values in columns.items()
            }
        )

    def _prompt_table(self) -> pa.Table:
        return pa.table(
            {
                "prompt": np.arange(len(self.text)),
                "text": self.text,
                "group": self.group,
                "tokens": self.tokens,
                "target": self.target,
                "predicted": self.predicted,
                "given": self.given,
                "task_particle": metrics.task_particle(self.p),
                "onset": metrics.onset(self.p),
                "largest_rise": metrics.largest_rise(self.p),
                "vulnerable_layer": metrics.vulnerable_layer(self.js),
            }
        )

    @classmethod
    def load(cls, folder: Path) -> PromptTable:
        """Read both files.

        Raises:
            UserError: one is missing or damaged.
        """
        try:
            long = pq.read_table(folder / TABLE)
            prompts = pq.read_table(folder / PROMPTS)
            count = len(prompts)
            shape = (count, len(long) // count)
            column = {
                name: long[name].to_numpy().astype(np.float64).reshape(shape)
                for name in ("p_target", "js", "js_null")
            }
        except (OSError, pa.ArrowException, KeyError, ValueError, ZeroDivisionError) as error:
            raise UserError(
                f"{folder}: the trace's parquet files can't be read: {error}"
            ) from error
        numbers = {
            name: prompts[name].to_numpy() for name in ("target", "predicted", "given", "tokens")
        }
        without_null = bool(np.isnan(column["js_null"]).all())
        return cls(
            p=column["p_target"],
            js=column["js"],
            js_null=None if without_null else column["js_null"],
            text=prompts["text"].to_pylist(),
            group=prompts["group"].to_pylist(),
            **numbers,
        )
