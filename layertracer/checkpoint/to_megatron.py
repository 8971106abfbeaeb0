"""Hugging Face to Megatron."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layertracer.checkpoint.families import Rule, extra_state_modules, layer_rules, model_rules
from layertracer.checkpoint.hf_config import megatron_shape
from layertracer.checkpoint.hf_folder import TensorSource, copy_everything_but_weights
from layertracer.checkpoint.megatron_writer import Chunk, write_release
from layertracer.checkpoint.progress import byte_progress
from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.files import atomic_directory, refuse_existing
from layertracer.model_folder import ModelFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def to_megatron(
    source: Path,
    target: Path,
    *,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    overwrite: bool = False,
) -> MegatronShape:
    """Convert the model folder ``source`` into the Megatron checkpoint ``target``.

    Args:
        tensor_parallel: the largest tensor-parallel size to train under. Where it does not divide
            the attention heads, head groups of zeros are added, which change no output and stay
            zero in training.
        dtype: cast the weights; None keeps the stored type.

    Raises:
        UserError: the model can't be expressed, a tensor is missing or left over, or ``target``
            exists.
    """
    folder = ModelFolder(source)
    refuse_existing(target, overwrite=overwrite)
    shape = megatron_shape(folder, tensor_parallel=tensor_parallel)
    tensors = TensorSource(folder)
    chunks = list(_chunks(tensors, shape, DTYPES[dtype or shape.dtype]))
    _check_coverage(tensors, shape)
    with (
        atomic_directory(target, overwrite=overwrite, inputs={"model": source}) as unfinished,
        byte_progress("writing", sum(chunk.bytes for chunk in chunks)) as written,
    ):
        write_release(
            unfinished,
            chunks=iter(chunks),
            objects=_extra_states(shape),
            args=checkpoint_args(shape),
            written=written,
        )
        shape.save(unfinished)
        copy_everything_but_weights(source, unfinished / SOURCE)
    return shape


def _chunks(source: TensorSource, shape: MegatronShape, dtype: torch.dtype) -> Iterator[Chunk]:
    for rule in model_rules(shape):
        make = partial(_make, source, rule, rule.sources, shape, dtype)
        size = _fused_size(source, rule, rule.sources, shape)
        yield Chunk(rule.megatron, (0,) * len(size), size, size, dtype, make)
    for layer in range(shape.num_layers):
        for rule in layer_rules(shape):
            names = [f"model.layers.{layer}.{name}" for name in rule.sources]
            size = _fused_size(source, rule, names, shape)
            yield Chunk(
                key=f"decoder.layers.{rule.megatron}",
                offsets=(layer, *(0,) * len(size)),
                sizes=(1, *size),
                global_size=(shape.num_layers, *size),
                dtype=dtype,
                make=partial(_make, source, rule, names, shape, dtype),
            )


def _make(
    source: TensorSource,
    rule: Rule,
    names: Sequence[str],
    shape: MegatronShape,
    dtype: torch.dtype,
) -> Tensor:
    return rule.fusion.join([source.read(name) for name in names], shape).to(dtype)


def _fused_size(
    source: TensorSource, rule: Rule, names: Sequence[str], shape: MegatronShape
) -> tuple[int, ...]:
    """Return the size of the fused tensor, computed on tensors without storage."""
    parts = [torch.empty(source.shape(name), device="meta") for name in names]
    return tuple(rule.fusion.join(parts, shape).shape)


def _check_coverage(source: TensorSource, shape: MegatronShape) -> None:
    if shape.tied_embeddings:
        source.drop_tied_head("model.embed_tokens.weight", "lm_head.weight")
    used = {name for rule in model_rules(shape) for name in rule.sources}
    for layer in range(shape.num_layers):
        for rule in layer_rules(shape):
            used |= {f"model.layers.{layer}.{name}" for name in rule.sources}
    source.refuse_unused(used)


def _extra_states(shape: MegatronShape) -> dict[str, Any]:
    layers = shape.num_layers
    states: dict[str, Any] = {"decoder.final_layernorm._extra_state/shard_0_1": [None]}
    for module in extra_state_modules(shape):
        for layer in range(layers):
            states[f"decoder.layers.{module}._extra_state/shard_{layer}_{layers}"] = [None]
    return states


def checkpoint_args(shape: MegatronShape) -> Namespace:
    """Return the arguments that Megatron reads from the checkpoint itself."""
    return Namespace(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        group_query_attention=True,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        max_position_embeddings=shape.max_position_embeddings,
        position_embedding_type="rope",
        add_position_embedding=True,
        rotary_base=int(shape.rotary_base),
        rotary_percent=1.0,
        use_rope_scaling=shape.rope_scaling_factor is not None,
        rope_scaling_factor=shape.rope_scaling_factor or 8.0,
        add_bias_linear=False,
        add_qkv_bias=shape.qkv_bias,
        qk_layernorm=shape.qk_layernorm,
        swiglu=True,
        normalization="RMSNorm",
        norm_epsilon=shape.norm_epsilon,
        untie_embeddings_and_output_weights=not shape.tied_embeddings,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        vocab_size=shape.vocab_size,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
        ckpt_format="torch_dist",
    )
