"""Fusions are exact inverses, and lie as Megatron's layers read them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layertracer.checkpoint.fusion import Copy, GateUp, GroupedQkv, HeadColumns, Rows, padding_for
from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.errors import UserError


def shape(heads: int = 4, groups: int = 2, width: int = 3, padded: int = 0) -> MegatronShape:
    per_group = heads // groups
    return MegatronShape(
        family="llama",
        architecture="LlamaForCausalLM",
        num_layers=2,
        hidden_size=5,
        ffn_hidden_size=7,
        num_attention_heads=heads + padded * per_group,
        num_query_groups=groups + padded,
        padded_query_groups=padded,
        kv_channels=width,
        vocab_size=11,
        max_position_embeddings=64,
        norm_epsilon=1e-5,
        rotary_base=10000,
        tied_embeddings=False,
        dtype="float32",
        source_fingerprint="",
    )


def labelled(rows: int, label: int) -> torch.Tensor:
    """Rows that say which head they are of: 100 * label + head."""
    return (100 * label + torch.arange(rows) // 3).float()[:, None].expand(rows, 5).contiguous()


def test_qkv_lies_by_group_queries_then_key_then_value() -> None:
    parts = [labelled(12, 1), labelled(6, 2), labelled(6, 3)]
    fused = GroupedQkv().join(parts, shape())
    assert fused[::3, 0].tolist() == [100, 101, 200, 300, 102, 103, 201, 301]


def test_added_groups_are_zero_and_last() -> None:
    padded = shape(padded=2)
    fused = GroupedQkv().join([labelled(12, 1), labelled(6, 2), labelled(6, 3)], padded)
    assert fused.shape == ((8 + 2 * 4) * 3, 5)
    assert not fused[24:].any()
    matrix = torch.randn(5, 12)
    columns = HeadColumns().join([matrix], padded)
    assert columns[:, :12].equal(matrix) and not columns[:, 12:].any()


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 4),
    per_group=st.integers(1, 4),
    width=st.integers(1, 5),
    padded=st.integers(0, 3),
    bias=st.booleans(),
)
def test_qkv_and_projection_split_what_they_joined(
    groups: int, per_group: int, width: int, padded: int, bias: bool
) -> None:
    model = shape(groups * per_group, groups, width, padded)
    rest = () if bias else (5,)
    parts = [
        torch.randn(groups * per_group * width, *rest),
        torch.randn(groups * width, *rest),
        torch.randn(groups * width, *rest),
    ]
    split = GroupedQkv().split(GroupedQkv().join(parts, model), model)
    assert all(a.equal(b) for a, b in zip(parts, split, strict=True))
    matrix = torch.randn(5, groups * per_group * width)
    assert HeadColumns().split(HeadColumns().join([matrix], model), model)[0].equal(matrix)


@pytest.mark.parametrize("fusion", [GroupedQkv(), HeadColumns()])
def test_added_groups_that_moved_are_refused(fusion: GroupedQkv | HeadColumns) -> None:
    padded = shape(padded=1)
    size = (5, 18) if isinstance(fusion, HeadColumns) else (36, 5)
    with pytest.raises(UserError, match="no longer zero"):
        fusion.split(torch.ones(size), padded)


def test_gate_lies_above_up() -> None:
    gate, up = torch.zeros(7, 5), torch.ones(7, 5)
    fused = GateUp().join([gate, up], shape())
    assert not fused[:7].any() and fused[7:].all()
    assert [
        part.equal(x) for part, x in zip(GateUp().split(fused, shape()), (gate, up), strict=True)
    ]


def test_vocabulary_comes_back_without_padding() -> None:
    table = torch.randn(11, 5)
    assert Rows().join([table], shape()).equal(table)
    padded = torch.cat([table, torch.randn(5, 5)])
    assert Rows().split(padded, shape())[0].equal(table)
    assert Copy().split(table, shape())[0] is table


@pytest.mark.parametrize(
    ("groups", "heads", "parallel", "added"),
    [(3, 9, 1, 0), (3, 9, 2, 1), (2, 4, 2, 0), (2, 8, 4, 0), (3, 9, 4, 1), (5, 5, 4, 3)],
)
def test_groups_added_for_tensor_parallelism(
    groups: int, heads: int, parallel: int, added: int
) -> None:
    found = padding_for(groups, heads, parallel)
    total = groups + found
    assert found == added
    assert (total * (heads // groups)) % parallel == 0
    assert total % parallel == 0 or parallel % total == 0
