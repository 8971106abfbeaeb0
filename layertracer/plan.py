"""FreezePlan: the one description of what trains, from which step, and its JSON.

Layers are 0-based decoder block indices, global across pipeline stages.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from layertracer.errors import UserError
from layertracer.files import write_json

FORMAT = "layertracer.plan"


class Strategy(StrEnum):
    """The arms of a continued pre-training trial."""

    FULL = "full"
    TRAIN_SHALLOW = "train-shallow"
    TRAIN_DEEP = "train-deep"
    CUSTOM = "custom"


class Phase(BaseModel):
    """What trains from step ``at_step`` on, until the next phase begins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at_step: Annotated[int, Field(ge=0)] = 0
    layers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    embedding: bool = False
    final_norm: bool = False
    output_layer: bool = False

    @field_validator("layers")
    @classmethod
    def _sorted_and_unique(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(layers)) != len(layers):
            raise ValueError("a layer is listed twice")
        return tuple(sorted(layers))

    @model_validator(mode="after")
    def _something_trains(self) -> Phase:
        if not (self.layers or self.embedding or self.final_norm or self.output_layer):
            raise ValueError(
                f"nothing trains from step {self.at_step} on: list at least one layer, or set "
                "embedding, final_norm or output_layer to true"
            )
        return self

    def trains_layer(self, layer: int) -> bool:
        """Whether decoder block ``layer`` (0-based, global) trains."""
        return layer in self.layers


class FreezePlan(BaseModel):
    """A layer allocation for a model of ``num_layers`` blocks: phases in order of their step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["layertracer.plan"] = FORMAT
    version: Literal[1] = 1
    num_layers: Annotated[int, Field(ge=1)]
    tied_embeddings: bool
    strategy: Strategy = Strategy.CUSTOM
    boundary: Annotated[int, Field(ge=0)] | None = None
    model: str | None = None
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> FreezePlan:
        steps = [phase.at_step for phase in self.phases]
        if steps[0] != 0:
            raise ValueError("the first phase must have at_step 0")
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError(f"at_step must rise from phase to phase, but is {steps}")
        for phase in self.phases:
            self._check_layers(phase)
            self._check_tied_head(phase)
        return self

    def _check_layers(self, phase: Phase) -> None:
        unknown = [layer for layer in phase.layers if layer >= self.num_layers]
        if unknown:
            raise ValueError(
                f"layers {unknown} do not exist: the model has {self.num_layers} layers, "
                f"0 to {self.num_layers - 1}"
            )

    def _check_tied_head(self, phase: Phase) -> None:
        if self.tied_embeddings and phase.embedding != phase.output_layer:
            raise ValueError(
                "the model's head is its embedding (tied), so both train or neither: write "
                f'"output_layer": {json.dumps(phase.embedding)} from step {phase.at_step} on, '
                f'or "embedding": {json.dumps(phase.output_layer)}'
            )

    @classmethod
    def from_strategy(
        cls,
        strategy: Strategy,
        *,
        num_layers: int,
        tied_embeddings: bool,
        boundary: int | None = None,
        embedding: bool | None = None,
        final_norm: bool | None = None,
        output_layer: bool | None = None,
        model: str | None = None,
    ) -> FreezePlan:
        """Build the plan of one arm.

        What is left ``None`` goes with its neighbours: the embedding trains when layer 0 does; the
        final norm and the head train when the last layer does. A tied head goes with the embedding.

        Raises:
            UserError: ``boundary`` is missing or not in ``1..num_layers-1`` for a split arm.
        """
        layers = _layers_of(strategy, num_layers, boundary)
        if embedding is None:
            embedding = 0 in layers
        if final_norm is None:
            final_norm = num_layers - 1 in layers
        if output_layer is None:
            output_layer = embedding if tied_embeddings else num_layers - 1 in layers
        return parse_plan(
            {
                "num_layers": num_layers,
                "tied_embeddings": tied_embeddings,
                "strategy": strategy,
                "boundary": None if strategy is Strategy.FULL else boundary,
                "model": model,
                "phases": [
                    {
                        "layers": layers,
                        "embedding": embedding,
                        "final_norm": final_norm,
                        "output_layer": output_layer,
                    }
                ],
            },
            source="the plan",
        )

    def phase_at(self, step: int) -> Phase:
        """Return the phase in force for the update that makes step ``step`` (0-based)."""
        return [phase for phase in self.phases if phase.at_step <= step][-1]

    def digest(self) -> str:
        """Return a SHA-256 over what trains when; equal plans have equal digests."""
        content = self.model_dump_json(include={"num_layers", "tied_embeddings", "phases"})
        return hashlib.sha256(content.encode()).hexdigest()

    def check_model(self, *, num_layers: int, tied_embeddings: bool, source: str) -> None:
        """Raise UserError when the plan was written for another model shape."""
        if num_layers != self.num_layers:
            raise UserError(
                f"{source}: the plan is for {self.num_layers} layers, the model has {num_layers}: "
                "make the plan again for this model with `layertracer plan`"
            )
        if tied_embeddings != self.tied_embeddings:
            ties = {True: "tied", False: "untied"}
            raise UserError(
                f"{source}: the plan is for {ties[self.tied_embeddings]} embeddings, the model's "
                f"are {ties[tied_embeddings]}: make the plan again with `layertracer plan`"
            )

    def save(self, path: Path | str) -> None:
        """Write the plan as JSON, under a temporary name first."""
        write_json(path, self.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path | str) -> FreezePlan:
        """Read and validate a plan.

        Raises:
            UserError: the file is missing, not JSON, or not a valid plan; the message names it.
        """
        path = Path(path)
        if not path.is_file():
            raise UserError(f"{path}: no such plan file; make one with `layertracer plan`")
        try:
            content = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise UserError(f"{path} is not valid JSON: {error}") from error
        return parse_plan(content, source=str(path))


def parse_plan(content: object, *, source: str) -> FreezePlan:
    """Validate ``content`` as a plan; a fault becomes a UserError that names ``source``."""
    try:
        return FreezePlan.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        raise UserError(f"{source}: {place + ': ' if place else ''}{message}") from error


def _layers_of(strategy: Strategy, num_layers: int, boundary: int | None) -> list[int]:
    if strategy is Strategy.FULL:
        return list(range(num_layers))
    if boundary is None or not 0 < boundary < num_layers:
        raise UserError(
            f"--boundary {boundary}: {strategy} needs a boundary from 1 to {num_layers - 1} "
            f"(number of shallow layers) for a model of {num_layers} layers"
        )
    if strategy is Strategy.TRAIN_SHALLOW:
        return list(range(boundary))
    if strategy is Strategy.TRAIN_DEEP:
        return list(range(boundary, num_layers))
    raise UserError(f"--strategy {strategy}: write a custom plan by hand as plan.json")
