"""``layertracer trace`` of a Megatron checkpoint, for models that fit no single GPU.

Under torchrun, with any Megatron flag of the layout::

    torchrun --nproc-per-node 8 -m layertracer.trace.megatron --load CKPT --out trace/ \\
        --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2

Data-parallel ranks share the prompts out. The files are those of ``layertracer trace``.

What it changes: nothing; it uses Megatron's own building, loading and forward pass.
Why: the trace has to see the model as it is trained, on as many GPUs as that takes.
Megatron versions: 0.19.x.
Test: tests/distributed/test_trace_megatron.py
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import distributed as dist

from layertracer.checkpoint.megatron_reader import iteration_folder
from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.errors import EXIT_USER_ERROR, UserError
from layertracer.files import refuse_existing
from layertracer.trace.encoding import EncodedPrompt
from layertracer.trace.files import ModelInfo, TraceSettings
from layertracer.trace.measure import Measured, row_chunks
from layertracer.trace.partial import PartialTrace
from layertracer.trace.perturbation import Perturbation, batch_inputs, clean_row, perturbed_row
from layertracer.trace.prepare import Prepared, batches, choose_prompts, load_tokenizer, prepare
from layertracer.trace.result import write_trace
from layertracer.trace.runner import BATCH_TOKENS, prompt_progress
from megatron_patches.trace_lens import MegatronLens, Pass


def main() -> None:
    """Trace; a UserError becomes one line, and exit code 2 on every rank."""
    try:
        trace(sys.argv[1:])
    except UserError as error:
        # Before the ranks meet all fail alike; later the one that does must say why.
        if _rank() == 0 or dist.is_initialized():
            print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_USER_ERROR)  # the other ranks may wait in a collective: never join them
    dist.destroy_process_group()


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, TraceSettings, list[str]]:
    """Return our flags, the settings they make, and Megatron's flags.

    Raises:
        UserError: a flag has a bad value.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--load", type=Path, required=True)
    parser.add_argument("--ckpt-step", type=int)
    parser.add_argument("--out", type=Path, default=Path("trace"))
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--batch-tokens", type=int)
    kept = ("seed", "dtype", "null_control", "truncate")
    names = [name for name in TraceSettings.model_fields if name not in kept]
    for name in names:
        parser.add_argument(f"--{name.replace('_', '-')}")
    parser.add_argument("--trace-seed", default=0, type=int)
    parser.add_argument("--no-null-control", action="store_true")
    parser.add_argument("--truncate", action="store_true")
    ours, rest = parser.parse_known_args(arguments)
    given = {name: getattr(ours, name) for name in names if getattr(ours, name) is not None}
    try:
        settings = TraceSettings(
            **given,
            seed=ours.trace_seed,
            null_control=not ours.no_null_control,
            truncate=ours.truncate,
            dtype="bfloat16" if "--bf16" in rest else "float16" if "--fp16" in rest else "float32",
        )
    except ValidationError as error:
        fault = error.errors()[0]
        flag = str(fault["loc"][0]).replace("_", "-")
        raise UserError(f"--{flag} {fault['input']}: {fault['msg']}") from error
    rest = [*rest, "--load", str(ours.load)]
    if ours.ckpt_step is not None:
        rest += ["--ckpt-step", str(ours.ckpt_step)]
    return ours, settings, rest


def trace(arguments: Sequence[str]) -> None:
    """Build, load, measure and write.

    Raises:
        UserError: bad input of any kind; nothing is left half-written.
    """
    started = time.monotonic()
    ours, settings, rest = parse(arguments)
    refuse_existing(ours.out, overwrite=ours.overwrite)
    shape = MegatronShape.load(ours.load)
    prompts = choose_prompts(settings)
    tokenizer = load_tokenizer(ours.load / SOURCE)
    prepared = prepare(
        prompts,
        tokenizer,
        settings,
        limit=shape.max_position_embeddings,
        vocab_size=shape.vocab_size,
    )
    lens = build_lens(rest, shape, settings)
    difference = lens.check(_probe(shape))
    fingerprint = checkpoint_fingerprint(ours.load, ours.ckpt_step)
    out = ours.out
    partial = PartialTrace(out, prepared.identity(settings, fingerprint)) if _rank() == 0 else None
    size = ours.batch_tokens or BATCH_TOKENS[lens.device.type]
    measure_all(lens, prepared, settings, partial, size)
    differences = _gathered(difference)
    if partial is not None:
        info = ModelInfo(
            path=str(ours.load),
            fingerprint=fingerprint,
            architecture=f"{shape.architecture} in Megatron",
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            lens_difference=max(differences),
        )
        write_trace(
            out,
            partial.batches,
            prepared,
            settings,
            model=info,
            kinds=["attention"] * shape.num_layers,
            device=lens.description,
            started=started,
            overwrite=ours.overwrite,
        )
        partial.remove()
        print(f"wrote {out}", flush=True)
    dist.barrier()


def build_lens(flags: list[str], shape: MegatronShape, settings: TraceSettings) -> MegatronLens:
    """Build the model of this rank, load the checkpoint and return its lens.

    Raises:
        UserError: the checkpoint doesn't fit, or the layout can't be read.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import megatron_patches

    megatron_patches.apply()
    from megatron_patches.logits import _build_and_load, _flags_for

    chunks = _build_and_load([*_flags_for(shape.max_position_embeddings), *flags])
    lens = MegatronLens(chunks, shape.vocab_size)
    own_attention = chunks[0].config.transformer_impl == "local"
    if settings.perturbation is Perturbation.DROP and not own_attention:
        raise UserError(
            "--perturbation drop needs --transformer-impl local: Transformer Engine's causal "
            "attention takes no mask; or use mask or noise"
        )
    return lens


def checkpoint_fingerprint(load: Path, step: int | None) -> str:
    """Return a SHA-256 over names, sizes and samples of the checkpoint's files."""
    digest = hashlib.sha256()
    for file in sorted(iteration_folder(load, step).glob("*.distcp")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            for part in range(64):
                stream.seek(size * part // 64)
                digest.update(stream.read(64))
    return digest.hexdigest()


def _probe(shape: MegatronShape) -> Pass:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(shape.vocab_size, (2, 8), generator=generator).cuda()
    return Pass(ids, torch.ones_like(ids), torch.tensor([7, 7]).cuda())


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _gathered(value: Any) -> list[Any]:
    """Return the value of every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def measure_all(
    lens: MegatronLens,
    prepared: Prepared,
    settings: TraceSettings,
    partial: PartialTrace | None,
    batch_tokens: int,
) -> None:
    """Measure the prompts that rank 0's ``partial`` lacks, each data-parallel rank its batches."""
    from megatron.core import mpu

    (done,) = _broadcast(partial.done if partial else None)
    rest = [prompt for prompt in prepared.prompts if prompt.index not in done]
    work = list(batches(rest, 3 if settings.null_control else 2, batch_tokens))
    share, shares = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
    bar = prompt_progress(len(prepared.prompts), len(done)) if partial else nullcontext(_silent)
    with bar as advance:
        for first in range(0, len(work), shares):
            mine = work[first + share] if first + share < len(work) else None
            found = None if mine is None else measure(lens, mine, prepared, settings)
            for measured in _gathered(found):
                if measured is not None and partial is not None:
                    partial.add(measured)
                    advance(len(measured.index))


def _silent(_prompts: int) -> None:
    """Ranks without a progress bar."""


def _broadcast(value: Any) -> list[Any]:
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values


def measure(
    lens: MegatronLens, prompts: list[EncodedPrompt], prepared: Prepared, settings: TraceSettings
) -> Measured | None:
    """Return the numbers of ``prompts``, on one rank of those that hold a copy of the model."""
    draws = 2 if settings.null_control else 1
    rows = [clean_row(prompt) for prompt in prompts]
    for draw in range(draws):
        rows += [perturbed_row(prompt, prepared.disturbance, draw) for prompt in prompts]
    inputs, positions, noise = batch_inputs(rows, lens.model.config.hidden_size, lens.device)
    hides = settings.perturbation is Perturbation.DROP
    states = lens.read(Pass(inputs["input_ids"], inputs["attention_mask"], positions, noise, hides))
    if not states.isfinite().all():
        raise UserError(f"{prompts[0].prompt.source}: the model's states are not finite near here")
    if not lens.is_last:
        return None
    given = None
    if settings.target == "given":
        given = torch.tensor([prompt.target for prompt in prompts], device=lens.device)
    variants = states.chunk(1 + draws, dim=1)
    numbers, predicted = _decode_all(lens, list(variants), given)
    if lens.tensor_rank != 0:
        return None
    return Measured(
        index=np.array([prompt.index for prompt in prompts]),
        p=numbers[0],
        js=numbers[1],
        js_null=numbers[2] if draws == 2 else None,
        target=(predicted if given is None else given).cpu().numpy(),
        predicted=predicted.cpu().numpy(),
    )


@torch.no_grad()
def _decode_all(
    lens: MegatronLens, states: list[torch.Tensor], given: torch.Tensor | None
) -> tuple[np.ndarray, torch.Tensor]:
    """Return P(target), JS and null JS ``[2 or 3, prompts, layers + 1]``, and the answers."""
    depths, count = states[0].shape[:2]
    predicted = lens.most_probable(lens.logits(states[0][-1]))
    target = predicted if given is None else given
    flat = [variant.flatten(0, 1) for variant in states]
    results = torch.zeros(len(states), depths * count, dtype=torch.float64)
    for rows in row_chunks(depths * count, lens.vocab_size * len(states), lens.device):
        wanted = target[torch.arange(rows.start, rows.stop, device=lens.device) % count]
        stacked = lens.logits(torch.cat([variant[rows] for variant in flat]))
        results[:, rows] = lens.compare(stacked.chunk(len(states)), wanted).cpu()
    return results.view(-1, depths, count).transpose(1, 2).numpy(), predicted


if __name__ == "__main__":
    main()
