"""Hugging Face to Megatron."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from functools import partial, reduce
from pathlib import Path

import torch
from torch import Tensor

from layertracer.checkpoint.disk import clear_write_errors
from layertracer.checkpoint.families import extra_state_keys
from layertracer.checkpoint.hf_config import megatron_shape
from layertracer.checkpoint.hf_folder import DTYPES as STORED_DTYPES
from layertracer.checkpoint.hf_folder import TensorSource, copy_everything_but_weights
from layertracer.checkpoint.megatron_writer import Chunk, write_release
from layertracer.checkpoint.progress import byte_progress
from layertracer.checkpoint.sidecar import SOURCE, MegatronShape
from layertracer.checkpoint.slots import Slot, slots
from layertracer.files import atomic_directory, refuse_existing
from layertracer.model_folder import ModelFolder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
THREADS = min(4, os.cpu_count() or 1)


def to_megatron(
    source: Path,
    target: Path,
    *,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    overwrite: bool = False,
    threads: int = THREADS,
) -> MegatronShape:
    """Convert the model folder ``source`` into the Megatron checkpoint ``target``.

    Args:
        tensor_parallel: the largest tensor-parallel size to train under. Where it does not divide
            the attention heads, head groups of zeros are added, which change no output and stay
            zero in training.
        dtype: cast the weights; None keeps the stored types.
        threads: how many tensors are read, fused and written at once.

    Raises:
        UserError: the model can't be expressed, a tensor is missing or left over, or ``target``
            exists.
    """
    folder = ModelFolder(source)
    refuse_existing(target, overwrite=overwrite)
    shape = megatron_shape(folder, tensor_parallel=tensor_parallel)
    tensors = TensorSource(folder)
    check_source(tensors, shape)
    chunks = list(_chunks(tensors, shape, DTYPES[dtype] if dtype else None))
    with (
        clear_write_errors(target),
        atomic_directory(target, overwrite=overwrite, inputs={"model": source}) as unfinished,
        byte_progress("writing", sum(chunk.bytes for chunk in chunks)) as written,
    ):
        write_release(
            unfinished,
            chunks=iter(chunks),
            objects={key: [None] for key in extra_state_keys(shape)},
            args=checkpoint_args(shape),
            written=written,
            threads=threads,
        )
        shape.save(unfinished)
        copy_everything_but_weights(source, unfinished / SOURCE)
    return shape


def check_source(source: TensorSource, shape: MegatronShape) -> None:
    """Raise UserError unless the folder holds the model's tensors, with their sizes, and no more.

    A head that is missing though the config says untied is an error: never random weights.
    """
    used: set[str] = set()
    for slot in slots(shape):
        for name, size in slot.sources.items():
            source.check(name, size)
            used.add(name)
    source.check_all_used(used, tied=shape.tied_embeddings)


def _chunks(
    source: TensorSource, shape: MegatronShape, cast: torch.dtype | None
) -> Iterator[Chunk]:
    """Yield what to write. A key's layers share one type on disk, the widest of theirs."""
    places = list(slots(shape))
    widest: dict[str, torch.dtype] = {}
    for slot in places:
        stored = [STORED_DTYPES[source.header(name).dtype] for name in slot.sources]
        known = [widest[slot.keys[0]]] if slot.keys[0] in widest else []
        widest[slot.keys[0]] = reduce(torch.promote_types, [*known, *stored])
    for slot in places:
        dtype = cast or widest[slot.keys[0]]
        make = partial(_make, source, slot, dtype)
        for key in slot.keys:
            yield Chunk(key, slot.place, slot.grid, slot.size, dtype, make)


def _make(source: TensorSource, slot: Slot, dtype: torch.dtype) -> Tensor:
    parts = [source.read(name).to(dtype) for name in slot.sources]
    return slot.rule.fusion.join(parts, slot.shape)


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
        rotary_base=shape.rotary_base,
        rotary_percent=1.0,
        rotary_interleaved=False,
        rotary_seq_len_interpolation_factor=shape.rope_interpolation_factor,
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
        **_expert_args(shape),
    )


def _expert_args(shape: MegatronShape) -> dict[str, object]:
    if shape.experts is None:
        return {}
    return {
        "num_experts": shape.experts.num_experts,
        "moe_ffn_hidden_size": shape.experts.ffn_hidden_size,
        "moe_router_topk": shape.experts.top_k,
        "moe_router_pre_softmax": shape.experts.softmax_first,
        # A number: given as a list, Megatron looks for layers stored one by one.
        "moe_layer_freq": 1,
    }
