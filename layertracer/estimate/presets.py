"""Ready settings for a model size, made for H100 of 80 GB: ``examples/sizes/FAMILY-SIZE.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from layertracer.errors import UserError
from layertracer.estimate.memory import stage_memory
from layertracer.estimate.settings import (
    Layout,
    ModelShape,
    Recompute,
    config_shape,
    equal_split,
)
from layertracer.plan import Phase

# CUDA context, NCCL buffers, workspaces and what the allocator loses to fragments.
OVERHEAD_BYTES = 5 * 10**9
OVERHEAD_FACTOR = 1.05


class PresetSettings(BaseModel):
    """The variables of ``examples/cpt_llama.sh`` that a size sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    TP: int
    PP: int
    MICRO_BATCH: int
    GLOBAL_BATCH: int
    SEQ_LENGTH: int
    RECOMPUTE: Recompute
    LR: float


class Preset(BaseModel):
    """A size: the model as its config describes it, the number of GPUs, and the settings.

    ``settings`` are for ``gpus``; with more, data parallelism grows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: dict[str, Any]
    gpus: int
    settings: PresetSettings

    def shape(self) -> ModelShape:
        """Return the sizes of the model."""
        return config_shape(self.model, "the preset's model")

    def layout(self) -> Layout:
        """Return the parallel layout on ``gpus`` GPUs."""
        chosen = self.settings
        data = self.gpus // (chosen.TP * chosen.PP)
        return Layout(
            tensor=chosen.TP,
            pipeline=chosen.PP,
            data=data,
            sequence_parallel=chosen.TP > 1,
            sequence_length=chosen.SEQ_LENGTH,
            micro_batch=chosen.MICRO_BATCH,
            micro_batches=chosen.GLOBAL_BATCH // (data * chosen.MICRO_BATCH),
            recompute=chosen.RECOMPUTE,
        )


def names(folder: Path, family: str) -> list[str]:
    """Return the sizes that ``folder`` has for ``family``, for example ``["1b", "8b"]``."""
    found = [file.stem.removeprefix(f"{family}-") for file in folder.glob(f"{family}-*.json")]
    return sorted(found, key=lambda name: float(name.rstrip("b")))


def load(folder: Path, family: str, size: str) -> Preset:
    """Return the preset of ``size``.

    Raises:
        UserError: there is none, or its file is damaged.
    """
    file = folder / f"{family}-{size.lower()}.json"
    if not file.is_file():
        there = ", ".join(names(folder, family)) or "none"
        raise UserError(f"SIZE={size}: no such size of {family}; there are: {there}")
    try:
        return Preset.model_validate_json(file.read_text("utf-8"))
    except ValidationError as error:
        raise UserError(
            f"{file}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        ) from error


def settings(folder: Path, family: str, size: str | None) -> dict[str, Any]:
    """Return the variables that ``size`` sets, by name; none without a size.

    Raises:
        UserError: there is no such size.
    """
    return load(folder, family, size).settings.model_dump() if size else {}


def needed_bytes(shape: ModelShape, phase: Phase, layout: Layout) -> float:
    """Return what the fullest GPU needs, with what surrounds the tensors.

    Stages are equal; a plan that freezes some layers can only need less.
    """
    stages = equal_split(shape.num_layers, layout.pipeline)
    fullest = max(stage.total for stage in stage_memory(shape, phase, layout, stages))
    return fullest * OVERHEAD_FACTOR + OVERHEAD_BYTES
