import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from layertracer import ops
from layertracer.trace.comparison import LN2, Columns, compare_logits


def random_logits(seed: int, rows: int = 5, width: int = 200, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(rows, width, generator=generator)


def js(p: torch.Tensor, q: torch.Tensor) -> np.ndarray:
    return compare_logits([p, q], torch.zeros(len(p), dtype=torch.long))[1].numpy()


def scipy_js(p: torch.Tensor, q: torch.Tensor) -> np.ndarray:
    return jensenshannon(p.double().softmax(-1), q.double().softmax(-1), axis=1) ** 2


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0, 30.0])
def test_divergence_equals_scipys_in_nats(spread: float) -> None:
    p, q = random_logits(1, spread=spread), random_logits(2, spread=spread)
    np.testing.assert_allclose(js(p, q), scipy_js(p, q), rtol=1e-5, atol=1e-8)


def test_probability_is_the_softmaxs() -> None:
    logits, target = random_logits(3), torch.tensor([0, 7, 199, 50, 50])
    found = compare_logits([logits, logits], target)[0]
    expected = logits.double().softmax(-1).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_null_compares_the_two_disturbed_ones() -> None:
    clean, first, second = (random_logits(seed) for seed in (1, 2, 3))
    found = compare_logits([clean, first, second], torch.zeros(5, dtype=torch.long)).numpy()
    np.testing.assert_allclose(found[1], scipy_js(clean, first), rtol=1e-5)
    np.testing.assert_allclose(found[2], scipy_js(first, second), rtol=1e-5)


def test_divergence_is_zero_for_equal_and_ln2_for_disjoint_distributions() -> None:
    logits = random_logits(3)
    assert (js(logits, logits) == 0).all()
    one = torch.tensor([[0.0, -math.inf, -math.inf]])
    other = torch.tensor([[-math.inf, 0.0, 0.0]])
    assert js(one, other)[0] == pytest.approx(LN2, abs=1e-6)


def test_divergence_is_finite_where_logits_are_minus_infinity() -> None:
    p, q = random_logits(1), random_logits(2)
    p[:, :20], q[:, 10:30] = -math.inf, -math.inf
    np.testing.assert_allclose(js(p, q), scipy_js(p, q), rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=30),
    st.randoms(use_true_random=False),
)
def test_divergence_is_bounded_and_symmetric(logits: list[float], random) -> None:
    p, q = torch.tensor([logits]), torch.tensor([random.sample(logits, len(logits))])
    assert 0 <= js(p, q)[0] <= LN2
    assert js(p, q)[0] == js(q, p)[0]


def test_parts_of_the_vocabulary_join_to_the_whole() -> None:
    """As tensor parallelism splits it: the second part's columns begin at token 120."""
    p, q, target = random_logits(1), random_logits(2), torch.tensor([3, 119, 120, 199, 5])
    parts = [(0, p[:, :120].contiguous(), q[:, :120].contiguous())]
    parts += [(120, p[:, 120:].contiguous(), q[:, 120:].contiguous())]

    def states(of: int) -> list[torch.Tensor]:
        return [ops.lens_update(part[of], target, ops.lens_start(5), part[0]) for part in parts]

    joined = {of: ops.lens_combine(torch.stack(states(of))) for of in (1, 2)}
    sums: list[torch.Tensor] = []
    for first, part_p, part_q in parts:
        order = iter((1, 2))
        columns = Columns(
            first,
            combine=lambda _own, order=order: joined[next(order)],
            add=lambda own: sums.append(own) or own,
        )
        found = compare_logits([part_p, part_q], target, columns)
    whole = compare_logits([p, q], target)
    torch.testing.assert_close(found[0], whole[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(sum(sums), whole[1], rtol=1e-6, atol=1e-9)
