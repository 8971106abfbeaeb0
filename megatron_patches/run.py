"""What surrounds a run: its plan, its records folder, and what its checkpoints need beside them."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from layertracer.checkpoint.sidecar import FILE, copy_sidecar
from megatron_patches import freeze, freeze_events, layer_stats, plan_agreement, train_log

RECORDS = "layertracer"


def records_folder(save: str | None) -> Path | None:
    """Return the folder of the run's records, made if need be; None if nothing is saved."""
    if save is None:
        return None
    folder = Path(save) / RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def prepare(args: Namespace, model: Any) -> None:
    """Freeze by plan when the model is built, and open the run's records.

    Args:
        model: Megatron's ``ModelConfig``; its ``pre_wrap_hooks`` run before DDP is built.
    """
    plan = freeze.load_plan(args)
    model.pre_wrap_hooks.append(plan_agreement.hook(plan))
    model.pre_wrap_hooks.append(freeze.hook(plan, freeze.first_step(args)))
    # Stacked layers can't be saved when some are frozen; one by one, the plan can change.
    model.transformer.hetereogenous_dist_checkpoint = True
    folder = records_folder(args.save)
    if folder is not None and int(os.environ.get("RANK", "0")) == 0:
        if plan is not None:
            plan.save(folder / "plan.json")
        if args.load and (Path(args.load) / FILE).is_file() and args.load != args.save:
            copy_sidecar(Path(args.load), Path(args.save))
    layer_stats.apply(args.layer_stats_interval, folder)
    if plan is not None and len(plan.phases) > 1:
        freeze_events.apply(plan, folder)
    train_log.apply(folder)  # outside the statistics, so that its times hold their cost
