"""From measured batches to the trace folder."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertracer import __version__
from layertracer.files import atomic_directory, write_json
from layertracer.trace.encoding import EncodedPrompt
from layertracer.trace.files import (
    FILE,
    ModelInfo,
    PromptInfo,
    TraceFile,
    TraceSettings,
    Versions,
)
from layertracer.trace.measure import Measured
from layertracer.trace.prepare import Prepared
from layertracer.trace.summary import summarize
from layertracer.trace.table import PromptTable


def write_trace(
    out: Path,
    batches: list[Measured],
    prepared: Prepared,
    settings: TraceSettings,
    *,
    model: ModelInfo,
    kinds: list[str],
    device: str,
    started: float,
    overwrite: bool,
) -> TraceFile:
    """Aggregate the batches and write the folder ``out``, whole or not at all.

    Args:
        kinds: what each block is.
        started: ``time.monotonic()`` at the beginning.
    """
    table = assemble(batches, prepared.prompts)
    summary = summarize(table, kinds, resamples=settings.bootstrap, seed=settings.seed)
    trace = TraceFile(
        model=model,
        settings=settings,
        prompts=_prompt_info(table, prepared.prompts, prepared.replacement),
        versions=_versions(device),
        seconds=time.monotonic() - started,
        p_target_embedding=float(table.p[:, 0].mean()),
        **vars(summary),
    )
    inputs = {"model": model.path, "prompts": settings.prompts}
    with atomic_directory(out, overwrite=overwrite, inputs=inputs) as temporary:
        table.save(temporary)
        write_json(temporary / FILE, trace.model_dump(mode="json"))
    return TraceFile.load(out)


def assemble(parts: list[Measured], prompts: list[EncodedPrompt]) -> PromptTable:
    """Put the batches together in the order of the prompts."""
    order = np.argsort(np.concatenate([part.index for part in parts]))

    def joined(name: str) -> Any:
        values = [asdict(part)[name] for part in parts]
        return None if values[0] is None else np.concatenate(values)[order]

    return PromptTable(
        p=joined("p"),
        js=joined("js"),
        js_null=joined("js_null"),
        target=joined("target"),
        predicted=joined("predicted"),
        given=np.array([-1 if p.target is None else p.target for p in prompts]),
        tokens=np.array([len(p) for p in prompts]),
        text=[p.prompt.text for p in prompts],
        group=[p.prompt.group for p in prompts],
    )


def _prompt_info(
    table: PromptTable, encoded: list[EncodedPrompt], replacement: str | None
) -> PromptInfo:
    known = table.given >= 0
    right = table.predicted[known] == table.given[known]
    return PromptInfo(
        count=len(encoded),
        duplicates=sum(prompt.occurrence > 0 for prompt in encoded),
        without_context=sum(len(prompt.context) == 0 for prompt in encoded),
        tokens=int(table.tokens.sum()),
        longest=int(table.tokens.max()),
        replacement=replacement,
        accuracy=float(right.mean()) if known.any() else None,
    )


def _versions(device: str) -> Versions:
    import transformers

    return Versions(
        layertracer=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=device,
    )
