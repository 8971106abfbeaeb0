"""What a launch script says before it starts: its settings, and whether they fit the GPU."""

from __future__ import annotations

from pathlib import Path

from layertracer.errors import UserError
from layertracer.estimate.presets import needed_bytes
from layertracer.estimate.settings import Layout, ModelShape, full_phase, read_shape
from layertracer.plan import FreezePlan, Phase


def memory_line(model: Path, plan: Path | None, layout: Layout, gpu_bytes: int | None) -> str:
    """Return one line: what the fullest rank will need, of how much.

    Args:
        model: config.json of the model, or its folder.
        plan: what trains; None: everything.
        gpu_bytes: memory of one GPU; None without GPUs.
    """
    try:
        shape = read_shape(model)
        phase = FreezePlan.load(plan).phases[0] if plan is not None else full_phase(shape)
        needed = needed_bytes(shape, phase, layout)
    except UserError as error:
        return f"memory: no estimate ({error})"
    line = f"memory: about {needed / 1e9:.0f} GB on the fullest of {_ranks(layout)} ranks"
    if gpu_bytes is None:
        return line
    line += f", a GPU has {gpu_bytes / 1e9:.0f} GB"
    return line if needed <= gpu_bytes else f"{line}: this will not fit; {_advice(shape, phase)}"


def _ranks(layout: Layout) -> int:
    return layout.tensor * layout.pipeline * layout.data


def _advice(shape: ModelShape, phase: Phase) -> str:
    frozen = shape.num_layers - len(phase.layers)
    return f"raise TP or PP, or RECOMPUTE, or freeze more than {frozen} layers"
