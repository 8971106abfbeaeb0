"""Two traces side by side: what changed per layer, with intervals over prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from layertracer.errors import UserError
from layertracer.files import write_json
from layertracer.trace import metrics
from layertracer.trace.files import Estimate, TraceFile, TraceSettings
from layertracer.trace.metrics import Array
from layertracer.trace.summary import estimates
from layertracer.trace.table import PromptTable

RESAMPLES = 2000


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LayerDifference(_Model):
    """One block: second trace minus first; ``clear`` when the LS interval excludes zero."""

    layer: int
    kind: str
    p_target: Estimate
    js: Estimate
    ls: Estimate

    @property
    def clear(self) -> bool:
        """Whether the change of LS is larger than the prompts' scatter explains."""
        return self.ls.low > 0 or self.ls.high < 0


class Comparison(_Model):
    """Second trace minus first.

    Attributes:
        paired: both have the same prompts, so that differences are taken prompt by prompt.
        same_answer: share of prompts with the same most probable token, None when not paired.
        other_settings: settings that differ, as ``name: first, second``.
        ls_drift: ``||LS' - LS|| / ||LS||`` over layers, from the mean LS of each trace.
        ls_correlation: Pearson correlation of the mean LS over layers.
    """

    format: Literal["layertracer.comparison"] = "layertracer.comparison"
    version: Literal[1] = 1
    first: str
    second: str
    paired: bool
    same_answer: float | None
    other_settings: list[str]
    layers: list[LayerDifference]
    task_particle: Estimate
    onset: Estimate
    largest_rise: Estimate
    ls_drift: Estimate
    ls_correlation: Estimate
    vulnerable_layers: tuple[int, int]
    best_boundaries: tuple[int | None, int | None]

    def save(self, path: Path | str) -> None:
        """Write it as JSON, under a temporary name first."""
        write_json(path, self.model_dump(mode="json"))


@dataclass(frozen=True)
class _Pair:
    """Resamples of both traces: the same prompts in both when they are paired."""

    paired: bool
    seed: int = 0

    def difference(self, first: Array, second: Array) -> list[Estimate]:
        """Return the estimates of ``second - first``, means over prompts, per column."""
        a, b = self.means(first, second)
        return estimates(second.mean(axis=0) - first.mean(axis=0), b - a)

    def means(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Return ``[resamples, k]`` means of both."""
        other = self.seed if self.paired else self.seed + 1
        return (
            metrics.bootstrap_means(first, RESAMPLES, self.seed),
            metrics.bootstrap_means(second, RESAMPLES, other),
        )


def compare(first: TraceFile, second: TraceFile) -> Comparison:
    """Compare two traces of models with equally many layers.

    Raises:
        UserError: the numbers of layers differ, or a table is missing.
    """
    layers = first.model.num_layers, second.model.num_layers
    if layers[0] != layers[1]:
        raise UserError(
            f"the traces have {layers[0]} and {layers[1]} layers: only models of the same depth "
            "can be compared layer by layer"
        )
    a, b = first.table(), second.table()
    paired = a.text == b.text
    pair = _Pair(paired)
    drift, correlation = _ls_change(a, b, pair)
    return Comparison(
        first=first.model.path,
        second=second.model.path,
        paired=paired,
        same_answer=float((a.predicted == b.predicted).mean()) if paired else None,
        other_settings=_other_settings(first.settings, second.settings),
        layers=_layers(a, b, first.layer_kinds, pair),
        task_particle=_shift(metrics.task_particle(a.p), metrics.task_particle(b.p), pair),
        onset=_shift(metrics.onset(a.p), metrics.onset(b.p), pair),
        largest_rise=_shift(metrics.largest_rise(a.p), metrics.largest_rise(b.p), pair),
        ls_drift=drift,
        ls_correlation=correlation,
        vulnerable_layers=(first.vulnerable_layer.layer, second.vulnerable_layer.layer),
        best_boundaries=(first.best_boundary, second.best_boundary),
    )


def _other_settings(first: TraceSettings, second: TraceSettings) -> list[str]:
    return [
        f"{name}: {value}, {getattr(second, name)}"
        for name, value in first.model_dump(mode="json", exclude={"bootstrap"}).items()
        if value != getattr(second, name)
    ]


def _layers(a: PromptTable, b: PromptTable, kinds: list[str], pair: _Pair) -> list[LayerDifference]:
    p = pair.difference(a.p[:, 1:], b.p[:, 1:])
    js = pair.difference(a.js[:, 1:], b.js[:, 1:])
    ls = pair.difference(metrics.sensitivity(a.js), metrics.sensitivity(b.js))
    return [
        LayerDifference(layer=layer, kind=kind, p_target=p[layer], js=js[layer], ls=ls[layer])
        for layer, kind in enumerate(kinds)
    ]


def _shift(first: metrics.Layers, second: metrics.Layers, pair: _Pair) -> Estimate:
    columns = (values.astype(np.float64)[:, None] for values in (first, second))
    return pair.difference(*columns)[0]


def _ls_change(a: PromptTable, b: PromptTable, pair: _Pair) -> tuple[Estimate, Estimate]:
    first, second = metrics.sensitivity(a.js), metrics.sensitivity(b.js)
    found = _drift_and_correlation(first.mean(axis=0)[None], second.mean(axis=0)[None])
    resampled = _drift_and_correlation(*pair.means(first, second))
    drift, correlation = estimates(found[0], resampled)
    return drift, correlation


def _drift_and_correlation(first: Array, second: Array) -> Array:
    """Return ``[n, 2]``: relative change and correlation of each row of mean LS."""
    tiny = np.finfo(np.float64).tiny
    norm = np.linalg.norm(first, axis=1)
    drift = np.linalg.norm(second - first, axis=1) / np.maximum(norm, tiny)
    x = first - first.mean(axis=1, keepdims=True)
    y = second - second.mean(axis=1, keepdims=True)
    scale = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.stack([drift, (x * y).sum(axis=1) / np.maximum(scale, tiny)], axis=1)
