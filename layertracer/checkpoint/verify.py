"""Proves that a Hugging Face folder and a Megatron checkpoint are the same model.

First every weight, bit for bit; then both are run in float32 on the same text, Megatron as it is
built for training, and each layer's output and the logits are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layertracer.checkpoint.hf_folder import DTYPES, TensorSource
from layertracer.checkpoint.megatron_reader import MegatronReader, iteration_folder
from layertracer.checkpoint.probe import EMBEDDING, LOGITS, layer_file, probe_tokens
from layertracer.checkpoint.progress import byte_progress
from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.checkpoint.slots import slots
from layertracer.checkpoint.to_hf import hf_tensors
from layertracer.checkpoint.to_megatron import check_source
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder

KEPT_LOGITS = 256


@dataclass
class WeightReport:
    """How many tensors were compared, those that differ with the largest difference, and casts."""

    tensors: int = 0
    different: dict[str, float] = field(default_factory=dict)
    cast: int = 0


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference at one place, and the largest value there."""

    place: str
    difference: float
    largest: float

    @property
    def relative(self) -> float:
        """The difference in units of the largest value."""
        return self.difference / max(self.largest, 1e-30)


@dataclass(frozen=True)
class OutputReport:
    """Differences on a text of ``tokens`` tokens: embedding, layers, then logits."""

    tokens: int
    places: tuple[Difference, ...]

    @property
    def logits(self) -> Difference:
        """That of the logits."""
        return self.places[-1]

    def first_beyond(self, tolerance: float) -> Difference | None:
        """Return the first place whose relative difference is beyond ``tolerance``."""
        return next((place for place in self.places if not place.relative <= tolerance), None)


@dataclass(frozen=True)
class Layout:
    """How Megatron is split while it is compared."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def flags(self) -> list[str]:
        """Megatron's flags."""
        return [
            *("--tensor-model-parallel-size", str(self.tensor)),
            *("--pipeline-model-parallel-size", str(self.pipeline)),
        ]


def compare_weights(model: Path, checkpoint: Path, *, iteration: int | None = None) -> WeightReport:
    """Compare every weight bit by bit, a tensor at a time.

    A checkpoint in another type than the folder is cast to the folder's first.

    Raises:
        UserError: either side is damaged, or they are not of the same shape.
    """
    shape = MegatronShape.load(checkpoint)
    source = TensorSource(ModelFolder(model))
    check_source(source, shape)
    reader = MegatronReader(iteration_folder(checkpoint, iteration))
    places = list(slots(shape))
    for slot in places:
        reader.check(slot)
    report = WeightReport()
    total = sum(tensor.end - tensor.begin for tensor in source.folder.tensors.values())
    with byte_progress("comparing", total) as compared:
        for slot in places:
            for name, tensor in hf_tensors(reader, slot):
                header = source.header(name)
                _compare_tensor(report, name, source.read(name), tensor)
                compared(header.numel * DTYPES[header.dtype].itemsize)
    return report


def _compare_tensor(report: WeightReport, name: str, expected: Tensor, found: Tensor) -> None:
    report.tensors += 1
    report.cast += found.dtype != expected.dtype
    bits = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    found = found.to(expected.dtype)
    if not torch.equal(found.contiguous().view(bits), expected.view(bits)):
        report.different[name] = (found.float() - expected.float()).abs().max().item()


def compare_outputs(
    model: Path,
    checkpoint: Path,
    *,
    lengths: Sequence[int],
    text: Path | None = None,
    iteration: int | None = None,
    layout: Layout | None = None,
) -> list[OutputReport]:
    """Run both models in float32 on text of each length; return the differences.

    Raises:
        UserError: a length is beyond the model's context, or Megatron can't load the checkpoint.
    """
    shape = MegatronShape.load(checkpoint)
    if max(lengths) > shape.max_position_embeddings:
        raise UserError(f"--tokens {max(lengths)}: the model's context is shorter")
    iteration_folder(checkpoint, iteration)
    folder = ModelFolder(model)
    with tempfile.TemporaryDirectory(prefix="layertracer-verify-") as scratch:
        texts = [probe_tokens(folder, length, text) for length in lengths]
        outs = [Path(scratch) / str(length) for length in lengths]
        run_megatron(checkpoint, texts, outs, iteration, layout or Layout())
        hf = load_hf(model)
        return [compare_with_hf(hf, *both) for both in zip(texts, outs, strict=True)]


def run_megatron(
    checkpoint: Path,
    texts: Sequence[Tensor],
    outs: Sequence[Path],
    iteration: int | None,
    layout: Layout,
) -> None:
    """Run the checkpoint on each text in a process group of its own; its files come to ``outs``."""
    files = [out.with_suffix(".pt") for out in outs]
    for file, tokens in zip(files, texts, strict=True):
        torch.save(tokens, file)
    processes = layout.tensor * layout.pipeline
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), "-m", "megatron_patches.logits"]
    command += ["--load", str(checkpoint), "--probe-logits", str(KEPT_LOGITS), *layout.flags]
    command += ["--probe-tokens", *map(str, files), "--probe-out", *map(str, outs)]
    if iteration is not None:
        command += ["--ckpt-step", str(iteration)]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        raise UserError(
            told[0] if told else f"{checkpoint}: Megatron could not run it: {_last(lines)}"
        )


def _last(lines: Sequence[str]) -> str:
    """Return the last line that names an error, for a message of one line."""
    named = [line.strip() for line in lines if "Error" in line and "elastic" not in line]
    return (named or [*lines, "no message"])[-1 if not named else 0]


def load_hf(model: Path) -> Any:
    """Return the model of a folder in float32, for evaluation."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, local_files_only=True, attn_implementation="sdpa"
    )
    return loaded.eval()


def compare_with_hf(hf: Any, tokens: Tensor, folder: Path) -> OutputReport:
    """Run the Hugging Face model and compare with the files that Megatron's run left."""

    differences: list[Difference] = []

    def compare(place: str, file: str, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = hidden.reshape(-1, hidden.shape[-1])
        other = torch.load(folder / file, weights_only=True)[:, : hidden.shape[-1]]
        largest = hidden.abs().max().item()
        differences.append(Difference(place, (hidden - other).abs().max().item(), largest))

    watched = [("embedding", EMBEDDING, hf.get_input_embeddings())]
    watched += [(f"layer {n}", layer_file(n), block) for n, block in enumerate(hf.model.layers)]
    with torch.no_grad(), _watching(watched, compare):
        answer = hf(tokens[None], logits_to_keep=min(KEPT_LOGITS, len(tokens)), use_cache=False)
    compare("logits", LOGITS, answer.logits)
    return OutputReport(len(tokens), tuple(differences))


@contextmanager
def _watching(
    watched: Sequence[tuple[str, str, torch.nn.Module]], see: Callable[[str, str, Any], None]
) -> Iterator[None]:
    def hook(place: str, file: str, _module: Any, _inputs: Any, output: Any) -> None:
        see(place, file, output)

    hooks = [
        module.register_forward_hook(partial(hook, place, file)) for place, file, module in watched
    ]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()
