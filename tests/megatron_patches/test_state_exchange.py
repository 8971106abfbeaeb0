from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_patches.state_exchange import Move, common, ranges_of_ranks


def test_shards_are_counted_from_the_parameters_first_element() -> None:
    # A bucket of 8 at 16, two ranks: 16..19 and 20..23. The parameter is 18..22.
    assert ranges_of_ranks(18, 23, (16, 8), 2) == [(0, 2), (2, 5)]


def test_ranks_that_hold_nothing_get_an_empty_range() -> None:
    ranges = ranges_of_ranks(0, 3, (0, 16), 4)
    assert ranges[0] == (0, 3)
    assert all(low >= high for low, high in ranges[1:])


@pytest.mark.parametrize(
    ("one", "other", "both"), [((0, 4), (2, 9), (2, 4)), ((0, 3), (0, 9), (0, 3))]
)
def test_common_part(one: tuple, other: tuple, both: tuple) -> None:
    assert common(one, other) == both


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 5),
    st.data(),
)
def test_every_element_goes_once_from_its_owner_to_its_new_owner(
    sizes: list[int], ranks: int, data: st.DataObject
) -> None:
    """Simulate all ranks: what each sends under the two layouts, put together, is the parameter."""
    order = data.draw(st.permutations(range(len(sizes))))
    old = layout(sizes, range(len(sizes)), ranks)
    new = layout(sizes, order, ranks)
    for parameter, size in enumerate(sizes):
        move = Move(old[parameter], new[parameter])
        received = torch.zeros(size, dtype=torch.int)
        for source in range(ranks):
            for target in range(ranks):
                low, high = move.sent(source, target)
                if low < high:
                    received[low:high] += 1
                    assert old[parameter][source][0] <= low < high <= old[parameter][source][1]
                    assert new[parameter][target][0] <= low < high <= new[parameter][target][1]
        assert received.tolist() == [1] * size


def layout(sizes: list[int], order: range | list[int], ranks: int) -> dict[int, list]:
    """Lay parameters out in ``order`` in one bucket that ``ranks`` divides."""
    ends = list(accumulate((sizes[parameter] for parameter in order), initial=0))
    bucket = (0, -(-ends[-1] // ranks) * ranks)
    return {
        parameter: ranges_of_ranks(start, end, bucket, ranks)
        for parameter, (start, end) in zip(order, pairwise(ends), strict=True)
    }
