"""Runs a checkpoint's model forward on given tokens and writes what each layer computes.

Under torchrun, with any Megatron flag::

    torchrun -m megatron_patches.logits --load megatron/ --probe-tokens tokens.pt --probe-out out/

What it changes: nothing; it uses Megatron's own building, loading and forward pass.
Why: `layertracer convert verify` compares these with Hugging Face's, layer by layer.
Megatron versions: 0.19.x.
Test: tests/distributed/test_convert_logits.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layertracer.checkpoint.probe import EMBEDDING, LOGITS, has_tokenizer, layer_file
from layertracer.checkpoint.sidecar import SOURCE
from layertracer.errors import EXIT_USER_ERROR, UserError
from megatron_patches.arguments import given


def main() -> None:
    """Run once; a UserError becomes one line from rank 0, and exit code 2 on every rank."""
    try:
        forward(sys.argv[1:])
    except UserError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_USER_ERROR)  # the other ranks may wait in a collective: never join them
    torch.distributed.destroy_process_group()


def forward(arguments: Sequence[str]) -> None:
    """Build the model, load ``--load``, run each file of tokens, write the files.

    Written to each ``--probe-out``: the embedding's and every layer's output, ``[tokens, hidden]``,
    and the logits of the last ``--probe-logits`` tokens, ``[tokens, vocabulary]``, all float32.

    Raises:
        UserError: the checkpoint does not fit the model.
    """
    probe, rest = _probe_arguments(arguments)
    texts = [torch.load(file, weights_only=True) for file in probe.probe_tokens]
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import megatron_patches

    megatron_patches.apply()
    chunks = _build_and_load([*_flags_for(max(map(len, texts))), *_tokenizer(rest), *rest])
    for tokens, out in zip(texts, probe.probe_out, strict=True):
        out.mkdir(parents=True, exist_ok=True)
        with torch.no_grad(), _recording(chunks, out):
            _run(chunks, tokens, partial(_write_logits, out, probe.probe_logits))
    torch.distributed.barrier()


def _probe_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--probe-tokens", type=Path, nargs="+", required=True)
    parser.add_argument("--probe-out", type=Path, nargs="+", required=True)
    parser.add_argument("--probe-logits", type=int, default=256)
    return parser.parse_known_args(arguments)


def _flags_for(length: int) -> list[str]:
    return [
        *("--seq-length", str(length)),
        *("--micro-batch-size", "1", "--train-iters", "1"),
        *("--lr", "0", "--lr-decay-style", "constant"),
        *("--skip-train", "--no-load-optim", "--no-load-rng", "--finetune"),
    ]


def _tokenizer(arguments: list[str]) -> list[str]:
    """Megatron wants a tokenizer at its start, though none is used: for models without one."""
    source = Path(given(arguments, "--load") or "") / SOURCE
    return [] if has_tokenizer(source) else ["--tokenizer-type", "NullTokenizer"]


def _build_and_load(arguments: list[str]) -> list[Any]:
    """Return the model chunks of this rank, with the checkpoint's weights, for evaluation."""
    from megatron.core.enums import ModelType
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.utils import unwrap_model
    from megatron.training import training
    from megatron.training.argument_utils import (
        gpt_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    from megatron_patches import arguments as command_line

    sys.argv = [sys.argv[0], *command_line.complete(arguments)]
    args = parse_and_validate_args(extra_args_provider=command_line.add_arguments)
    model = gpt_config_from_args(args)
    training.initialize_megatron()
    chunks, _, _ = training.setup_model_and_optimizer(
        ModelType.encoder_or_decoder,
        cfg_container=pretrain_cfg_container_from_args(args, model),
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )
    chunks = unwrap_model(chunks)
    for chunk in chunks:
        chunk.eval()
    return chunks


@contextmanager
def _recording(chunks: list[Any], folder: Path) -> Iterator[None]:
    """Write the output of the embedding and of each layer of this rank to ``folder``."""
    from megatron.core import mpu

    def write(name: str, _module: Any, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        torch.save(hidden[:, 0].float().cpu(), folder / name)

    hooks = []
    if mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_data_parallel_rank() == 0:
        for chunk in chunks:
            if chunk.pre_process:
                hooks.append(chunk.embedding.register_forward_hook(partial(write, EMBEDDING)))
            for layer in chunk.decoder.layers:
                name = layer_file(layer.layer_number - 1)
                hooks.append(layer.register_forward_hook(partial(write, name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run(chunks: list[Any], tokens: Tensor, take: Callable[[Tensor], None]) -> None:
    """Run ``tokens`` through all pipeline stages; the last one hands its logits to ``take``."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def step(_batches: Any, model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = tokens.cuda()[None]
        positions = torch.arange(len(tokens), device=batch.device)[None]
        return model(batch, positions, None), finish

    def finish(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        take(output)
        return output.new_zeros(()), {}

    get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=None if len(chunks) == 1 else [None] * len(chunks),
        model=chunks,
        num_microbatches=1,
        seq_length=len(tokens),
        micro_batch_size=1,
        forward_only=True,
    )


def _write_logits(folder: Path, count: int, output: Tensor) -> None:
    """Gather the vocabulary's parts and write the last ``count`` tokens' logits."""
    from megatron.core import mpu
    from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

    logits = gather_from_tensor_model_parallel_region(output[0, -count:].contiguous())
    if mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_data_parallel_rank() == 0:
        torch.save(logits.float().cpu(), folder / LOGITS)


if __name__ == "__main__":
    main()
