"""What a trace folder holds: ``trace.json``, ``trace.parquet`` and ``prompts.parquet``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from layertracer.errors import UserError
from layertracer.files import read_model
from layertracer.trace.perturbation import Perturbation
from layertracer.trace.prompts import Language
from layertracer.trace.table import PromptTable

FORMAT = "layertracer.trace"
FILE = "trace.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceSettings(_Model):
    """What decides the numbers of a trace; batch size and device don't."""

    prompts: str = "builtin"
    num_prompts: Annotated[int, Field(ge=1)] = 500
    shots: Annotated[int, Field(ge=0)] = 5
    language: Language | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    perturbation: Perturbation = Perturbation.MASK
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.3
    noise_scale: Annotated[float, Field(gt=0)] = 1.0
    null_control: bool = True
    target: Literal["model", "given"] = "model"
    truncate: bool = False
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    bootstrap: Annotated[int, Field(ge=1)] = 1000


class ModelInfo(_Model):
    """The traced model; ``lens_difference`` is the largest relative error of its lens."""

    path: str
    fingerprint: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    lens_difference: float


class PromptInfo(_Model):
    """The prompts: how many, equal ones among them, tokens, and how many the model answers right.

    ``replacement`` is the token that masks; ``accuracy`` is the share of known targets whose first
    token is the model's own answer, None where no target is known.
    """

    count: int
    duplicates: int
    without_context: int
    tokens: int
    longest: int
    replacement: str | None
    accuracy: float | None


class Estimate(_Model):
    """A mean over prompts and its bootstrap 95% interval."""

    mean: float
    low: float
    high: float


class LayerResult(_Model):
    """One block: means over prompts, and the share of prompts whose landmark it is."""

    layer: int
    kind: str
    p_target: Estimate
    ratio: Estimate
    js: Estimate
    djs: Estimate
    ls: Estimate
    js_null: Estimate | None
    ls_null: Estimate | None
    task_particle_share: float
    onset_share: float
    largest_rise_share: float


class Landmark(_Model):
    """A layer that each prompt has one of: the mean over prompts, the median, the most frequent."""

    mean: Estimate
    median: float
    mode: int


class VulnerableLayer(_Model):
    """The block with the largest mean JS, and the 95% interval of that choice."""

    layer: int
    low: int
    high: int


class BoundaryResult(_Model):
    """Score ``S(b)``; ``best_share`` is how often the boundary wins when prompts are resampled."""

    boundary: int
    score: Estimate
    score_null: Estimate | None
    best_share: float


class GroupResult(_Model):
    """Means over the prompts of one relation or subject, per block."""

    group: str
    prompts: int
    task_particle: float
    p_target: list[float]
    js: list[float]
    ls: list[float]


class Versions(_Model):
    """What computed the numbers."""

    layertracer: str
    python: str
    torch: str
    transformers: str
    device: str


class TraceFile(_Model):
    """A whole trace; per-prompt numbers are in the parquet files beside it (``table``)."""

    format: Literal["layertracer.trace"] = FORMAT
    version: Literal[1] = 1
    model: ModelInfo
    settings: TraceSettings
    prompts: PromptInfo
    versions: Versions
    seconds: float
    p_target_embedding: float
    layers: list[LayerResult]
    task_particle: Landmark
    onset: Landmark
    largest_rise: Landmark
    vulnerable_layer: VulnerableLayer
    boundaries: list[BoundaryResult]
    best_boundary: int | None
    groups: list[GroupResult]

    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: Path | str) -> TraceFile:
        """Read ``trace.json``; ``path`` is the folder or the file.

        Raises:
            UserError: it is missing or not a trace; the message names it.
        """
        path = Path(path)
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise UserError(f"{path}: holds no trace; make one with `layertracer trace`")
        trace = read_model(cls, file)
        trace._folder = file.parent
        return trace

    def table(self) -> PromptTable:
        """Read the numbers of every prompt.

        Raises:
            UserError: the parquet files are missing or damaged.
        """
        if self._folder is None:
            raise UserError("this trace was not read from a folder")
        return PromptTable.load(self._folder)

    @property
    def layer_kinds(self) -> list[str]:
        """What each block is."""
        return [layer.kind for layer in self.layers]
