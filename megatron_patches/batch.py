"""Data sets, batches and the loss of a language model, for ``megatron.training.pretrain``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.utils import (
    get_attr_wrapped_model,
    get_batch_on_this_cp_rank,
    get_batch_on_this_tp_rank,
)
from megatron.training import get_args
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage
from torch import Tensor

_KEYS = ("tokens", "labels", "loss_mask", "attention_mask", "position_ids")


def datasets(sample_counts: list[int], vp_stage: int | None = None) -> tuple[Any, Any, Any]:
    """Build the training, validation and test sets from Megatron's data flags."""
    args = get_args()
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        split=args.split,
        path_to_cache=args.data_cache_path,
        mmap_bin_files=args.mmap_bin_files,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        tokenizer=build_tokenizer(args),
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=args.create_attention_mask_in_dataloader,
        mid_level_dataset_surplus=args.mid_level_dataset_surplus,
    )

    def built_here() -> bool:
        first = mpu.get_tensor_model_parallel_rank() == 0
        return first and is_first_or_last_pipeline_stage(vp_stage)

    return BlendedMegatronDatasetBuilder(GPTDataset, sample_counts, built_here, config).build()


datasets.is_distributed = True


def next_batch(batches: Iterator[dict[str, Tensor]], vp_stage: int | None) -> dict[str, Any]:
    """Return this rank's part of the next micro-batch, ``[batch, sequence]`` each.

    Tensor-parallel rank 0 reads it and sends it to the others; the first pipeline stage gets the
    tokens, the last one the labels, those between nothing.
    """
    args = get_args()
    if not is_first_or_last_pipeline_stage(vp_stage):
        return dict.fromkeys(_KEYS)
    tp_rank = mpu.get_tensor_model_parallel_rank()
    batch: dict[str, Any] = {}
    if tp_rank == 0:
        read = next(batches)
        batch = {
            key: read[key].cuda(non_blocking=True) if read.get(key) is not None else None
            for key in _KEYS
        }
    batch = get_batch_on_this_tp_rank(
        batch,
        has_cu_seqlens=False,
        is_hybrid_cp=False,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=False,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    batch = {key: batch.get(key) for key in _KEYS}
    if args.context_parallel_size == 1:
        return batch
    return get_batch_on_this_cp_rank(
        batch, is_hybrid_cp=False, cp_group=mpu.get_context_parallel_group()
    )


def loss(loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the summed loss of a micro-batch, its number of tokens, and both for the log.

    Args:
        loss_mask: ``[batch, sequence]``, 0 where a token does not count.
        output: cross-entropy of each token in nats, of the same shape.
    """
    weights = loss_mask.view(-1).float()
    total = torch.sum(output.view(-1).float() * weights)
    tokens = weights.sum().detach().to(torch.int)
    logged = torch.cat([total.detach().view(1), tokens.view(1)])
    return total, tokens, {"lm loss": logged}


def forward_step(
    batches: Iterator[dict[str, Tensor]], model: torch.nn.Module
) -> tuple[Tensor, Any]:
    """Run the model on the next micro-batch; return its output and the loss function for it."""
    batch = next_batch(batches, get_attr_wrapped_model(model, "vp_stage"))
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch["attention_mask"],
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return output, partial(loss, batch["loss_mask"])
