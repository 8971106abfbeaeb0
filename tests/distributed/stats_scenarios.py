"""Runs with gradient statistics in each layout; started by test_layer_stats.py."""

from __future__ import annotations

from typing import Any

import torch

from layertracer.plan import Strategy
from tests.distributed.freeze_scenarios import LAYOUTS, from_start, plan_of
from tests.distributed.session import Session, global_parameters

ARMS = (Strategy.FULL, Strategy.TRAIN_DEEP)
STEPS = 2
NAN_STEP = 1
_START = ["--train-iters", "1", "--save-interval", "1"]


def flags(session: Session, arm: Strategy, name: str) -> list[str]:
    """Return the flags of a measured run that writes its records to the folder ``name``."""
    return [
        *from_start(session),
        *session.plan(plan_of(arm)),
        *("--train-iters", str(STEPS), "--layer-stats-interval", "1"),
        *("--save", str(session.folder / name), "--no-save-optim", "--save-interval", "1000"),
    ]


def note_gradients(found: dict[str, Any]) -> Any:
    """Return a function for ``before_step`` that has the whole gradients noted, in float64."""

    def before_step(run: Any, step: int, chunks: list[Any], optimizer: Any) -> None:
        from megatron.core.utils import unwrap_model

        update = type(optimizer).step

        def step_and_note(self: Any) -> Any:
            squares: dict[str, float] = {}
            for name, parameter in global_parameters(unwrap_model(chunks)):
                if parameter.requires_grad:
                    part = name.split(".")[2] if name.startswith("decoder.layers") else name
                    own = parameter.main_grad.double().square().sum().item()
                    squares[part] = squares.get(part, 0.0) + own
            found[str(step + 1)] = squares
            type(optimizer).step = update
            return update(self)

        type(optimizer).step = step_and_note

    return before_step


def one_process(session: Session) -> None:
    """Save the common start; measure each arm, and note the gradients beside it."""
    session.train("start", [*_START, "--save", str(session.folder / "start")])
    for arm in ARMS:
        found: dict[str, Any] = {}
        session.train(
            f"one-{arm}", flags(session, arm, f"one-{arm}"), before_step=note_gradients(found)
        )
        session.record(f"gradients-{arm}", found)


def two_processes(session: Session) -> None:
    """Measure each arm in each layout; plant a NaN in one layer's gradient under each."""
    for layout, of_layout in LAYOUTS.items():
        for arm in ARMS:
            name = f"{layout}-{arm}"
            session.train(name, [*flags(session, arm, name), *of_layout])


def plant(session: Session) -> None:
    """Plant a NaN in the gradient of layer 2 on the rank that holds it, before the measurement."""
    from megatron_patches.layer_stats import LayerStats

    measure = LayerStats.measure

    def planted(self: LayerStats, step: int) -> list[dict[str, Any]]:
        for parameter, part in self._part_of.items():
            if part.layer == 2 and parameter.requires_grad and parameter.dim() == 2:
                parameter.main_grad.view(-1)[0] = torch.nan
                break
        return measure(self, step)

    LayerStats.measure = planted
    try:
        unchecked = [*LAYOUTS["pp2"], "--no-check-for-nan-in-loss-and-grad"]
        session.train("nan", [*flags(session, Strategy.FULL, "nan"), *unchecked])
    finally:
        LayerStats.measure = measure


def two_processes_and_nan(session: Session) -> None:
    """Everything that two processes do, in one start."""
    two_processes(session)
    plant(session)
