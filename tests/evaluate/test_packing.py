"""Which texts share a forward pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from layertracer.evaluate.packing import Batch, Row, common_prefix, pack, share_out

SHARED = tuple(range(100, 130))


def rows(*lengths: int, group: str = "law", start: int = 0) -> list[Row]:
    return [
        Row(start + i, group, (*SHARED, *range(1000 * i, 1000 * i + n)))
        for i, n in enumerate(lengths)
    ]


def test_the_prefix_is_what_all_rows_begin_with() -> None:
    assert common_prefix(rows(3, 5, 9)) == len(SHARED)


def test_a_row_keeps_at_least_its_wanted_positions() -> None:
    whole = Row(0, "law", SHARED, heads=2)
    assert common_prefix([whole, *rows(5, start=1)]) == len(SHARED) - 2


def test_short_or_lonely_beginnings_are_not_shared() -> None:
    assert common_prefix(rows(3)) == 0
    assert common_prefix([Row(0, "law", (1, 2, 3)), Row(1, "law", (1, 2, 4))]) == 0


def test_groups_stay_apart_and_long_rows_come_first() -> None:
    batches = pack([*rows(1, 8, 4), *rows(2, 2, group="logic", start=3)], budget=80)
    assert [[row.index for row in batch.rows] for batch in batches] == [[1, 2], [0], [3, 4]]
    assert all(batch.prefix == len(SHARED) for batch in batches)


def test_without_sharing_there_is_no_prefix() -> None:
    assert {batch.prefix for batch in pack(rows(1, 2), 80, share=False)} == {0}


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.integers(1, 300),
    st.integers(1, 5),
)
def test_each_row_runs_once_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    batches = pack(rows(*lengths), budget)
    parts = share_out(batches, ranks)
    assert len(parts) == ranks
    assert [batch for part in parts for batch in part] == batches
    assert sorted(row.index for batch in batches for row in batch.rows) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch.rows) * max(len(row.tokens) for row in batch.rows)
        assert padded <= budget or len(batch.rows) == 1


def test_ranks_get_about_the_same_work() -> None:
    batches = [Batch(0, (Row(i, "a", (0,) * 10),)) for i in range(100)]
    assert [len(part) for part in share_out(batches, 4)] == [25, 25, 25, 25]
