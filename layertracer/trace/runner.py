"""A trace from start to end, of a Hugging Face folder: batches, progress, resuming, files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from layertracer.files import refuse_existing
from layertracer.model_folder import ModelFolder
from layertracer.trace.files import ModelInfo, TraceFile, TraceSettings
from layertracer.trace.measure import measure
from layertracer.trace.model import TracedModel, load_model
from layertracer.trace.partial import PartialTrace
from layertracer.trace.prepare import Prepared, batches, choose_prompts, load_tokenizer, prepare
from layertracer.trace.result import write_trace

BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}


def run_trace(
    model: Path | str,
    out: Path | str,
    settings: TraceSettings,
    *,
    batch_tokens: int | None = None,
    device: str = "auto",
    trust_code: bool = False,
    overwrite: bool = False,
) -> TraceFile:
    """Trace the model in folder ``model`` and write the folder ``out``.

    A killed trace leaves ``<out>.partial``; the next call with the same settings does the rest.

    Args:
        batch_tokens: tokens of a batch, padding and perturbed copies included; changes speed and
            memory, not the numbers (up to rounding). None for what suits the device.

    Raises:
        UserError: bad input of any kind; nothing is left half-written.
    """
    started = time.monotonic()
    out = Path(out)
    refuse_existing(out, overwrite=overwrite)
    folder = ModelFolder(model)
    prompts = choose_prompts(settings)
    tokenizer = load_tokenizer(folder.path, trust_code)
    traced = load_model(folder.path, dtype=settings.dtype, device=device, trust_code=trust_code)
    prepared = prepare(
        prompts, tokenizer, settings, limit=traced.context_length, vocab_size=traced.vocab_size
    )
    partial = PartialTrace(out, prepared.identity(settings, folder.fingerprint))
    size = batch_tokens or BATCH_TOKENS[traced.device.type]
    measure_all(traced, prepared, settings, partial, size)
    trace = write_trace(
        out,
        partial.batches,
        prepared,
        settings,
        model=_model_info(folder, traced),
        kinds=traced.layer_kinds,
        device=str(traced.device),
        started=started,
        overwrite=overwrite,
    )
    partial.remove()
    return trace


def measure_all(
    traced: TracedModel,
    prepared: Prepared,
    settings: TraceSettings,
    partial: PartialTrace,
    batch_tokens: int,
) -> None:
    """Measure the prompts that ``partial`` lacks, storing each batch, with a progress bar."""
    done = partial.done
    rest = [prompt for prompt in prepared.prompts if prompt.index not in done]
    variants = 3 if settings.null_control else 2
    with prompt_progress(len(prepared.prompts), len(done)) as advance:
        for batch in batches(rest, variants, batch_tokens):
            measured = measure(
                traced,
                batch,
                prepared.disturbance,
                null_control=settings.null_control,
                given_target=settings.target == "given",
            )
            partial.add(measured)
            advance(len(batch))


class Advance(Protocol):
    """Tells the progress bar that so many prompts more are done."""

    def __call__(self, prompts: int) -> None: ...


@contextmanager
def prompt_progress(total: int, done: int) -> Iterator[Advance]:
    """Show a bar with prompts per second; yield what moves it on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rate]:.1f}/s"),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    count = 0
    with Progress(*columns) as progress:
        task = progress.add_task("tracing", total=total, completed=done, rate=0.0)

        def advance(prompts: int) -> None:
            nonlocal count
            count += prompts
            rate = count / (time.monotonic() - started)
            progress.update(task, advance=prompts, rate=rate)

        yield advance


def _model_info(folder: ModelFolder, traced: TracedModel) -> ModelInfo:
    return ModelInfo(
        path=str(folder.path),
        fingerprint=folder.fingerprint,
        architecture=type(traced.model).__name__,
        num_layers=traced.num_layers,
        hidden_size=traced.lens.hidden_size,
        vocab_size=traced.vocab_size,
        lens_difference=traced.logit_difference,
    )
