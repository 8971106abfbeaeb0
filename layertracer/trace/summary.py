"""From the numbers of every prompt to what ``trace.json`` says, with intervals over prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layertracer.trace import metrics
from layertracer.trace.files import (
    BoundaryResult,
    Estimate,
    GroupResult,
    Landmark,
    LayerResult,
    VulnerableLayer,
)
from layertracer.trace.metrics import Array, Layers
from layertracer.trace.table import PromptTable


@dataclass(frozen=True)
class Summary:
    """The aggregated parts of a trace."""

    layers: list[LayerResult]
    task_particle: Landmark
    onset: Landmark
    largest_rise: Landmark
    vulnerable_layer: VulnerableLayer
    boundaries: list[BoundaryResult]
    best_boundary: int | None
    groups: list[GroupResult]


class Estimator:
    """Means and bootstrap 95% intervals over the same resampled prompts for every quantity."""

    def __init__(self, resamples: int, seed: int) -> None:
        self.resamples, self.seed = resamples, seed

    def resampled(self, values: Array) -> Array:
        """Return ``[resamples, k]`` means of ``values`` ``[prompts, k]``."""
        return metrics.bootstrap_means(values, self.resamples, self.seed)

    def of_columns(self, values: Array | None, columns: int) -> list[Estimate | None]:
        """Return an estimate of each column's mean, or Nones when there is nothing."""
        if values is None:
            return [None] * columns
        return estimates(values.mean(axis=0), self.resampled(values))


def estimates(means: Array, resampled: Array) -> list[Estimate]:
    """Return the estimates of ``means`` ``[k]`` from their resampled values ``[resamples, k]``."""
    low, high = metrics.interval(resampled)
    return [
        Estimate(mean=float(m), low=float(a), high=float(b))
        for m, a, b in zip(means, low, high, strict=True)
    ]


def summarize(table: PromptTable, kinds: list[str], *, resamples: int, seed: int) -> Summary:
    """Aggregate ``table`` over its prompts."""
    estimator = Estimator(resamples, seed)
    boundaries = _boundaries(table, estimator)
    best = max(boundaries, key=lambda b: (b.score.mean, -b.boundary), default=None)
    return Summary(
        layers=_layers(table, kinds, estimator),
        task_particle=_landmark(metrics.task_particle(table.p), estimator),
        onset=_landmark(metrics.onset(table.p), estimator),
        largest_rise=_landmark(metrics.largest_rise(table.p), estimator),
        vulnerable_layer=_vulnerable(table, estimator),
        boundaries=boundaries,
        best_boundary=None if best is None else best.boundary,
        groups=_groups(table),
    )


def _layers(table: PromptTable, kinds: list[str], estimator: Estimator) -> list[LayerResult]:
    count = table.num_layers
    null = table.js_null
    columns = {
        "p_target": table.p[:, 1:],
        "ratio": metrics.ratio(table.p),
        "js": table.js[:, 1:],
        "djs": metrics.js_rise(table.js),
        "ls": metrics.sensitivity(table.js),
        "js_null": None if null is None else null[:, 1:],
        "ls_null": None if null is None else metrics.sensitivity(null),
    }
    found = {name: estimator.of_columns(values, count) for name, values in columns.items()}
    shares = {
        "task_particle_share": _shares(metrics.task_particle(table.p), count),
        "onset_share": _shares(metrics.onset(table.p), count),
        "largest_rise_share": _shares(metrics.largest_rise(table.p), count),
    }
    return [
        LayerResult(
            layer=layer,
            kind=kinds[layer],
            **{name: values[layer] for name, values in {**found, **shares}.items()},
        )
        for layer in range(count)
    ]


def _shares(chosen: Layers, layers: int) -> list[float]:
    return (np.bincount(chosen, minlength=layers) / len(chosen)).tolist()


def _landmark(chosen: Layers, estimator: Estimator) -> Landmark:
    values = chosen.astype(np.float64)[:, None]
    return Landmark(
        mean=estimator.of_columns(values, 1)[0],
        median=float(np.median(chosen)),
        mode=int(np.bincount(chosen).argmax()),
    )


def _vulnerable(table: PromptTable, estimator: Estimator) -> VulnerableLayer:
    js = table.js[:, 1:]
    low, high = metrics.interval(estimator.resampled(js).argmax(axis=1))
    return VulnerableLayer(
        layer=int(js.mean(axis=0).argmax()), low=int(np.floor(low)), high=int(np.ceil(high))
    )


def _boundaries(table: PromptTable, estimator: Estimator) -> list[BoundaryResult]:
    if table.num_layers < 2:
        return []
    scores, resampled = _scores(table.js, estimator)
    wins = np.bincount(resampled.argmax(axis=1), minlength=resampled.shape[1])
    nulls: list[Estimate | None] = [None] * len(scores)
    if table.js_null is not None:
        nulls = estimates(*_scores(table.js_null, estimator))
    return [
        BoundaryResult(
            boundary=index + 1,
            score=score,
            score_null=nulls[index],
            best_share=float(wins[index] / len(resampled)),
        )
        for index, score in enumerate(estimates(scores, resampled))
    ]


def _scores(js: Array, estimator: Estimator) -> tuple[Array, Array]:
    ls = metrics.sensitivity(js)
    return (
        metrics.boundary_scores(ls.mean(axis=0)),
        metrics.boundary_scores(estimator.resampled(ls)),
    )


def _groups(table: PromptTable) -> list[GroupResult]:
    results = []
    names = np.array(table.group)
    for group in sorted(set(table.group)):
        rows = names == group
        p, js = table.p[rows], table.js[rows]
        results.append(
            GroupResult(
                group=group,
                prompts=int(rows.sum()),
                task_particle=float(metrics.task_particle(p).mean()),
                p_target=p[:, 1:].mean(axis=0).tolist(),
                js=js[:, 1:].mean(axis=0).tolist(),
                ls=metrics.sensitivity(js).mean(axis=0).tolist(),
            )
        )
    return results
