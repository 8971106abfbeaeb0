"""A trace from start to end: prompts, batches, progress, resuming, files."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from layertracer import __version__
from layertracer.errors import UserError
from layertracer.files import atomic_directory, refuse_existing, write_json
from layertracer.model_folder import ModelFolder
from layertracer.trace.encoding import EncodedPrompt, encode_prompts, replacement_token
from layertracer.trace.files import (
    FILE,
    ModelInfo,
    PromptInfo,
    TraceFile,
    TraceSettings,
    Versions,
)
from layertracer.trace.measure import Measured, measure
from layertracer.trace.model import TracedModel, load_model
from layertracer.trace.partial import PartialTrace
from layertracer.trace.perturbation import Disturbance, Perturbation
from layertracer.trace.prompts import PromptChoice, load_prompts
from layertracer.trace.summary import summarize
from layertracer.trace.table import PromptTable

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
    prompts = load_prompts(_choice(settings))
    tokenizer = load_tokenizer(folder.path, trust_code)
    traced = load_model(folder.path, dtype=settings.dtype, device=device, trust_code=trust_code)
    encoded = encode_prompts(
        prompts,
        tokenizer,
        limit=traced.context_length,
        vocab_size=traced.vocab_size,
        truncate=settings.truncate,
    )
    _check_targets(encoded, settings)
    disturbance, replacement = _disturbance(settings, tokenizer)
    identity = {
        "model": folder.fingerprint,
        "settings": settings.model_dump(mode="json", exclude={"bootstrap"}),
        "prompts": [prompt.ids.tolist() for prompt in encoded],
    }
    partial = PartialTrace(out, identity)
    size = batch_tokens or BATCH_TOKENS[traced.device.type]
    measure_all(traced, encoded, disturbance, settings, partial, size)
    table = assemble(partial.batches, encoded)
    trace = _trace_file(folder, traced, settings, table, encoded, replacement, started)
    inputs = {"model": folder.path, "prompts": settings.prompts}
    with atomic_directory(out, overwrite=overwrite, inputs=inputs) as temporary:
        table.save(temporary)
        write_json(temporary / FILE, trace.model_dump(mode="json"))
    partial.remove()
    return TraceFile.load(out)


def _choice(settings: TraceSettings) -> PromptChoice:
    return PromptChoice(
        source=settings.prompts,
        count=settings.num_prompts,
        seed=settings.seed,
        shots=settings.shots,
        language=settings.language,
    )


def load_tokenizer(path: Path, trust_code: bool = False) -> Any:
    """Load the tokenizer of a model folder.

    Raises:
        UserError: it has none that can be loaded.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_code, local_files_only=True
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: its tokenizer can't be loaded: {reason}") from error


def _check_targets(encoded: list[EncodedPrompt], settings: TraceSettings) -> None:
    if settings.target == "given":
        for prompt in encoded:
            if prompt.target is None:
                raise UserError(
                    f"--target given: prompt {prompt.index + 1} ({prompt.prompt.source}) has no "
                    'target: add "target" to it, or use --target model'
                )


def _disturbance(settings: TraceSettings, tokenizer: Any) -> tuple[Disturbance, str | None]:
    token, name = 0, None
    if settings.perturbation is Perturbation.MASK:
        token, name = replacement_token(tokenizer)
    disturbance = Disturbance(
        settings.perturbation,
        settings.fraction,
        settings.seed,
        noise_scale=settings.noise_scale,
        replacement=token,
    )
    return disturbance, name


def batches(
    prompts: list[EncodedPrompt], variants: int, batch_tokens: int
) -> Iterator[list[EncodedPrompt]]:
    """Yield batches of prompts, longest first, of at most ``batch_tokens`` padded tokens each.

    A prompt longer than that is a batch of its own.
    """
    batch: list[EncodedPrompt] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        if batch and (len(batch) + 1) * variants * len(batch[0]) > batch_tokens:
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch


def measure_all(
    traced: TracedModel,
    prompts: list[EncodedPrompt],
    disturbance: Disturbance,
    settings: TraceSettings,
    partial: PartialTrace,
    batch_tokens: int,
) -> None:
    """Measure the prompts that ``partial`` lacks, storing each batch, with a progress bar."""
    done = partial.done
    rest = [prompt for prompt in prompts if prompt.index not in done]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[rate]:.1f}/s"),
        TimeRemainingColumn(),
    )
    variants = 3 if settings.null_control else 2
    with Progress(*columns) as progress:
        task = progress.add_task("tracing", total=len(prompts), completed=len(done), rate=0.0)
        started = time.monotonic()
        count = 0
        for batch in batches(rest, variants, batch_tokens):
            measured = measure(
                traced,
                batch,
                disturbance,
                null_control=settings.null_control,
                given_target=settings.target == "given",
            )
            partial.add(measured)
            count += len(batch)
            rate = count / (time.monotonic() - started)
            progress.update(task, advance=len(batch), rate=rate)


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


def _trace_file(
    folder: ModelFolder,
    traced: TracedModel,
    settings: TraceSettings,
    table: PromptTable,
    encoded: list[EncodedPrompt],
    replacement: str | None,
    started: float,
) -> TraceFile:
    summary = summarize(table, traced.layer_kinds, resamples=settings.bootstrap, seed=settings.seed)
    return TraceFile(
        model=_model_info(folder, traced),
        settings=settings,
        prompts=_prompt_info(table, encoded, replacement),
        versions=_versions(traced.device),
        seconds=time.monotonic() - started,
        p_target_embedding=float(table.p[:, 0].mean()),
        **vars(summary),
    )


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


def _versions(device: torch.device) -> Versions:
    import transformers

    return Versions(
        layertracer=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        device=str(device),
    )
