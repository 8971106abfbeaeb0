import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from layertracer.trace.divergence import LN2, js_divergence


def log_probs(seed: int, rows: int = 5, width: int = 200, spread: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0, 30.0])
def test_equals_scipy_in_nats(spread: float) -> None:
    log_p, log_q = log_probs(1, spread=spread), log_probs(2, spread=spread)
    expected = jensenshannon(log_p.exp().numpy(), log_q.exp().numpy(), axis=1) ** 2
    np.testing.assert_allclose(js_divergence(log_p, log_q).numpy(), expected, rtol=1e-9)
    single = js_divergence(log_p.float(), log_q.float())
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_is_zero_for_equal_and_ln2_for_disjoint_distributions() -> None:
    log_p = log_probs(3).float()
    assert js_divergence(log_p, log_p).abs().max() == 0
    one = torch.tensor([[0.0, -math.inf, -math.inf]])
    other = torch.tensor([[-math.inf, math.log(0.5), math.log(0.5)]])
    assert js_divergence(one, other).item() == pytest.approx(LN2, abs=2e-6)


def test_is_finite_where_logits_are_minus_infinity() -> None:
    logits = torch.randn(2, 50)
    logits[:, :20] = -math.inf
    other = torch.randn(2, 50)
    other[:, 10:30] = -math.inf
    value = js_divergence(logits.log_softmax(-1), other.log_softmax(-1))
    p, q = logits.double().softmax(-1).numpy(), other.double().softmax(-1).numpy()
    np.testing.assert_allclose(value.numpy(), jensenshannon(p, q, axis=1) ** 2, rtol=1e-5)


def test_keeps_its_digits_for_nearly_equal_distributions() -> None:
    log_p = log_probs(4, rows=1)
    change = 1e-3 * torch.randn(1, 200, dtype=torch.float64)
    log_q = (log_p + change).log_softmax(-1)
    exact = js_divergence(log_p, log_q).item()
    assert 0 < exact < 1e-6
    assert js_divergence(log_p.float(), log_q.float()).item() == pytest.approx(exact, rel=1e-2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=30),
    st.randoms(use_true_random=False),
)
def test_is_bounded_and_symmetric_in_float32(logits: list[float], random) -> None:
    shuffled = random.sample(logits, len(logits))
    log_p = torch.tensor([logits]).log_softmax(-1)
    log_q = torch.tensor([shuffled]).log_softmax(-1)
    value = js_divergence(log_p, log_q)
    assert 0 <= value.item() <= LN2
    assert value.item() == js_divergence(log_q, log_p).item()
