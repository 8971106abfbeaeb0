"""How Hugging Face tensors and Megatron's fused ones become each other.

Every fusion has two directions that are exact inverses: no arithmetic, only copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.errors import UserError


class Fusion(Protocol):
    """Joins the source tensors of one Megatron tensor, and splits it again."""

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return the Megatron tensor."""
        ...

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return the Hugging Face tensors, in the order of ``join``'s parts."""
        ...


class Copy:
    """One tensor, unchanged."""

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return the only part."""
        return parts[0]

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return the tensor."""
        return [tensor]


class Rows:
    """A vocabulary matrix: Megatron pads its rows for tensor parallelism, Hugging Face doesn't."""

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return the matrix as it is: Megatron pads when it loads."""
        return parts[0]

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return the rows of the vocabulary, without the padding."""
        return [tensor[: shape.vocab_size]]


class GateUp:
    """Gate and up projection, one above the other: ``[2f, h]``."""

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return ``cat([gate, up])``."""
        return torch.cat(list(parts))

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return gate and up."""
        return list(tensor.chunk(2))


class GroupedQkv:
    """Query, key and value by group: ``[q_g0 .. q_gn, k_g, v_g]`` for each group ``g``.

    Groups that conversion added (``padded_query_groups``) are zeros and stay zeros in training:
    their value is zero, so their output is, and every gradient of theirs is a product with zero.
    """

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return ``[(heads + 2 * groups) * kv_channels, ...]``."""
        groups, per_group = _source_groups(shape), _heads_per_group(shape)
        query, key, value = parts
        rest = query.shape[1:]
        width = shape.kv_channels
        grouped = torch.cat(
            [
                query.reshape(groups, per_group * width, *rest),
                key.reshape(groups, width, *rest),
                value.reshape(groups, width, *rest),
            ],
            dim=1,
        )
        if shape.padded_query_groups:
            empty = grouped.new_zeros(shape.padded_query_groups, *grouped.shape[1:])
            grouped = torch.cat([grouped, empty])
        return grouped.reshape(-1, *rest)

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return query, key and value."""
        per_group, width, rest = _heads_per_group(shape), shape.kv_channels, tensor.shape[1:]
        grouped = tensor.reshape(shape.num_query_groups, (per_group + 2) * width, *rest)
        grouped = _without_padding(grouped, shape)
        query, key, value = grouped.split([per_group * width, width, width], dim=1)
        return [part.reshape(-1, *rest) for part in (query, key, value)]


class HeadColumns:
    """The attention's output projection ``[h, heads * kv_channels]``: columns by head."""

    def join(self, parts: Sequence[Tensor], shape: MegatronShape) -> Tensor:
        """Return the matrix, with zero columns for the groups that were added."""
        (matrix,) = parts
        added = shape.padded_query_groups * _heads_per_group(shape) * shape.kv_channels
        if not added:
            return matrix
        return torch.cat([matrix, matrix.new_zeros(matrix.shape[0], added)], dim=1)

    def split(self, tensor: Tensor, shape: MegatronShape) -> list[Tensor]:
        """Return the matrix without the added columns."""
        by_group = tensor.reshape(tensor.shape[0], shape.num_query_groups, -1).transpose(0, 1)
        kept = _without_padding(by_group, shape)
        return [kept.transpose(0, 1).reshape(tensor.shape[0], -1)]


def _heads_per_group(shape: MegatronShape) -> int:
    return shape.num_attention_heads // shape.num_query_groups


def _source_groups(shape: MegatronShape) -> int:
    return shape.num_query_groups - shape.padded_query_groups


def _without_padding(by_group: Tensor, shape: MegatronShape) -> Tensor:
    kept = by_group[: _source_groups(shape)]
    if by_group[_source_groups(shape) :].any():
        raise UserError(
            "the head groups that conversion added are no longer zero: the checkpoint was trained "
            "with something that moves zero weights, and can't be converted back exactly"
        )
    return kept


def padding_for(groups: int, heads: int, tensor_parallel: int) -> int:
    """Return how many query groups to add so that ``tensor_parallel`` divides the heads.

    Megatron needs the heads to be a multiple of the tensor-parallel size, and the groups a multiple
    or a divisor of it.
    """
    per_group = heads // groups
    total = groups
    while (total * per_group) % tensor_parallel or (
        total % tensor_parallel and tensor_parallel % total
    ):
        total += 1
    return total - groups
