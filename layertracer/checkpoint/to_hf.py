"""Megatron to Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from layertracer.checkpoint.families import layer_rules, model_rules
from layertracer.checkpoint.hf_folder import ShardWriter, copy_everything_but_weights
from layertracer.checkpoint.megatron_reader import MegatronReader, iteration_folder
from layertracer.checkpoint.progress import byte_progress
from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.checkpoint.to_megatron import DTYPES
from layertracer.errors import UserError
from layertracer.files import atomic_directory, refuse_existing, write_json

DEFAULT_SHARD_BYTES = 5 * 10**9


def to_hf(
    checkpoint: Path,
    target: Path,
    *,
    iteration: int | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    overwrite: bool = False,
) -> Path:
    """Convert a Megatron checkpoint into the model folder ``target``; return what was read.

    Args:
        iteration: which one; None takes the latest.
        dtype: type of the written weights; None takes that of the original model.

    Raises:
        UserError: the checkpoint is missing or incomplete, or ``target`` exists.
    """
    shape = MegatronShape.load(checkpoint)
    if not (checkpoint / SOURCE / "config.json").is_file():
        raise UserError(f"{checkpoint}/{SOURCE} has no config.json: it came with the conversion")
    refuse_existing(target, overwrite=overwrite)
    folder = iteration_folder(checkpoint, iteration)
    wanted = DTYPES[dtype or shape.dtype]
    reader = MegatronReader(folder)
    inputs = {"checkpoint": folder}
    with (
        atomic_directory(target, overwrite=overwrite, inputs=inputs) as unfinished,
        byte_progress("writing", expected_bytes(reader, shape, wanted)) as written,
    ):
        copy_everything_but_weights(checkpoint / SOURCE, unfinished)
        _name_dtype(unfinished / "config.json", dtype, shape.dtype)
        shards = ShardWriter(unfinished, max_shard_bytes)
        for name, tensor in hf_tensors(reader, shape):
            cast = tensor.to(wanted)
            shards.add(name, cast)
            written(cast.numel() * cast.element_size())
        shards.close()
    return folder


def hf_tensors(reader: MegatronReader, shape: MegatronShape) -> Iterator[tuple[str, Tensor]]:
    """Yield every Hugging Face tensor by name, layer by layer, in the checkpoint's own type."""
    for rule in model_rules(shape):
        parts = rule.fusion.split(reader.whole(rule.megatron), shape)
        yield from zip(rule.sources, parts, strict=True)
    for layer in range(shape.num_layers):
        for rule in layer_rules(shape):
            parts = rule.fusion.split(reader.layer(layer, rule.megatron), shape)
            names = [f"model.layers.{layer}.{name}" for name in rule.sources]
            yield from zip(names, parts, strict=True)


def expected_bytes(reader: MegatronReader, shape: MegatronShape, dtype: torch.dtype) -> int:
    """Return about how many bytes will be written, for the progress bar."""
    per_layer = sum(reader.layer(0, rule.megatron).numel() for rule in layer_rules(shape))
    rest = sum(reader.whole(rule.megatron).numel() for rule in model_rules(shape))
    return (per_layer * shape.num_layers + rest) * dtype.itemsize


def _name_dtype(config: Path, asked: str | None, stored: str) -> None:
    """Name another type in ``config.json`` where one was asked for: else it stays as it was."""
    if asked is None or asked == stored:
        return
    content = json.loads(config.read_text("utf-8"))
    content["dtype" if "dtype" in content else "torch_dtype"] = asked
    write_json(config, content)
