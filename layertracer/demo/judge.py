"""Whether a step's output is complete, by the output itself.

Identity is judged by content where the output records it (package, fingerprint of the weights,
plan), by the times of files where it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.data.indexed import check_pair, with_suffix
from layertracer.demo.step import State
from layertracer.errors import UserError
from layertracer.files import PROVENANCE
from layertracer.model_folder import ModelFolder
from layertracer.plan import FreezePlan

Judge = Callable[[], State]
TRACKER = "latest_checkpointed_iteration.txt"


def from_package(folder: Path, requirement: str, *, model: bool = False) -> Judge:
    """Judge a folder made from a pinned package; as a ``model``, its weights must be whole."""

    def judge() -> State:
        if not folder.exists():
            return State.OPEN
        made_by = _read_json(folder / PROVENANCE)
        whole = not model or _fingerprint(folder) is not None
        return _done(whole and made_by.get("inputs", {}).get("package") == requirement)

    return judge


def of_model(file: Path, weights: Path) -> Judge:
    """Judge a trace or an evaluation by the fingerprint of the model that it names."""

    def judge() -> State:
        if not file.is_file():
            return State.STALE if file.parent.exists() else State.OPEN
        named = _read_json(file).get("model", {}).get("fingerprint")
        return _done(named is not None and named == _fingerprint(weights))

    return judge


def a_plan(file: Path, weights: Path) -> Judge:
    """Judge a plan: any that fits the model will do, so that it can be edited."""

    def judge() -> State:
        if not file.is_file():
            return State.OPEN
        try:
            return _done(FreezePlan.load(file).num_layers == ModelFolder(weights).num_layers)
        except UserError:
            return State.STALE

    return judge


def a_dataset(prefix: Path, source: Path) -> Judge:
    """Judge an indexed dataset: both files whole, and no older than the text."""

    def judge() -> State:
        index = with_suffix(prefix, ".idx")
        if not index.exists():
            return State.OPEN
        try:
            return _done(check_pair(prefix) > 0 and _newer(index, source))
        except UserError:
            return State.STALE

    return judge


def a_conversion(folder: Path, weights: Path) -> Judge:
    """Judge a checkpoint made from ``weights``."""

    def judge() -> State:
        if not folder.exists():
            return State.OPEN
        return _done(_made_from(folder) == _fingerprint(weights) and _last(folder) == "release")

    return judge


def a_training(folder: Path, plan: Path, weights: Path, steps: int) -> Judge:
    """Judge a training run: the same model and plan, and ``steps`` steps; fewer go on."""

    def judge() -> State:
        last = _last(folder)
        if last is None:
            return State.STALE if (folder / TRACKER).exists() else State.OPEN
        try:
            same_plan = FreezePlan.load(folder / "layertracer" / "plan.json") == FreezePlan.load(
                plan
            )
        except UserError:
            return State.STALE
        if not same_plan or _made_from(folder) != _fingerprint(weights) or int(last) > steps:
            return State.STALE
        return State.DONE if int(last) == steps else State.OPEN

    return judge


def an_export(folder: Path, training: Path, steps: int) -> Judge:
    """Judge a model folder converted back from step ``steps`` of ``training``."""

    def judge() -> State:
        if not folder.exists():
            return State.OPEN
        made_by = folder / PROVENANCE
        checkpoint = _read_json(made_by).get("inputs", {}).get("checkpoint", "")
        return _done(
            Path(checkpoint).name == iteration_name(steps)
            and _fingerprint(folder) is not None
            and _newer(made_by, training / TRACKER)
        )

    return judge


def a_report(page: Path, shown: list[Path]) -> Judge:
    """Judge a page: no older than anything it shows."""

    def judge() -> State:
        if not page.is_file():
            return State.OPEN
        return _done(all(_newer(page, file) for file in shown))

    return judge


def iteration_name(step: int) -> str:
    """Return the folder name that Megatron gives to step ``step``."""
    return f"iter_{step:07d}"


def _done(fact: bool) -> State:
    return State.DONE if fact else State.STALE


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _fingerprint(folder: Path) -> str | None:
    try:
        return ModelFolder(folder).fingerprint
    except (UserError, OSError):
        return None


def _made_from(checkpoint: Path) -> str | None:
    try:
        return MegatronShape.load(checkpoint).source_fingerprint
    except UserError:
        return None


def _last(checkpoint: Path) -> str | None:
    """Return what the newest whole checkpoint in the folder is, as its tracker file says."""
    try:
        last = (checkpoint / TRACKER).read_text("utf-8").strip()
    except OSError:
        return None
    name = iteration_name(int(last)) if last.isdigit() else last
    return last if (checkpoint / name / ".metadata").is_file() else None


def _newer(file: Path, than: Path) -> bool:
    return than.exists() and file.stat().st_mtime >= than.stat().st_mtime
