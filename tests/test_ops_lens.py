"""The lens ops against float64: any cut of the vocabulary, extreme logits, close distributions."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from layertracer import ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def run(logits, targets, cuts=(), update=ops.lens_update):
    """Return the state after the pieces of the vocabulary between ``cuts``."""
    state = ops.lens_start(len(logits))
    edges = [0, *cuts, logits.shape[1]]
    for begin, end in itertools.pairwise(edges):
        state = update(logits[:, begin:end].contiguous(), targets, state, begin)
    return state


def divergence(p, q, of=ops.js_divergence):
    targets = torch.zeros(len(p), dtype=torch.int64)
    sums = [torch.logsumexp(x.double(), 1) for x in (p, q)]
    ours = [ops.log_sum_exp(run(x, targets)) for x in (p, q)]
    return of(p, q, *(ours if of is ops.js_divergence else sums))


@given(
    rows=st.integers(0, 4),
    columns=st.integers(1, 1200),
    cuts=st.lists(st.integers(0, 1200), max_size=3),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, max_examples=60)
def test_any_cut_of_the_vocabulary_gives_log_sum_exp_and_target(
    rows, columns, cuts, dtype, scale, seed
):
    random = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, columns, generator=random) * scale).to(dtype)
    targets = torch.randint(0, columns, (rows,), generator=random)
    state = run(logits, targets, sorted(min(cut, columns) for cut in cuts))
    exact = logits.double()
    torch.testing.assert_close(ops.log_sum_exp(state), exact.logsumexp(1), rtol=1e-12, atol=1e-6)
    expected = exact.log_softmax(1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(ops.target_log_prob(state), expected, rtol=1e-12, atol=1e-6)


def test_states_of_ranks_combine_as_one_vocabulary():
    logits, targets = torch.randn(5, 700) * 50, torch.tensor([0, 10, 349, 350, 699])
    parts = [
        ops.lens_update(part.contiguous(), targets, ops.lens_start(5), first)
        for part, first in zip(logits.split(350, dim=1), (0, 350), strict=True)
    ]
    whole = run(logits, targets)
    torch.testing.assert_close(ops.lens_combine(torch.stack(parts)), whole, rtol=1e-6, atol=0)


def test_the_reference_is_the_definition():
    logits, targets = torch.randn(4, 90), torch.tensor([0, 5, 60, 89])
    state = run(logits, targets, [30, 30, 61], ops.lens_update_reference)
    expected = logits.double().log_softmax(1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(ops.target_log_prob(state), expected)


def test_masked_columns_and_broken_rows():
    logits = torch.zeros(4, 300)
    logits[0, 5:] = -math.inf
    logits[1] = -math.inf
    logits[2, 299] = math.nan
    logits[3, 0] = math.inf
    sums = ops.log_sum_exp(run(logits, torch.zeros(4, dtype=torch.int64), [256]))
    assert sums[0].item() == pytest.approx(math.log(5), rel=1e-6)
    assert sums[1].item() == -math.inf
    assert sums[2:].isnan().all()
    found = ops.js_divergence(
        logits, torch.zeros(4, 300), sums, torch.full((4,), math.log(300.0)).double()
    )
    assert found[0].isfinite() and found[1:].isnan().all()


@given(
    columns=st.integers(2, 900),
    scale=st.sampled_from([0.1, 3.0, 40.0]),
    distance=st.sampled_from([1e-4, 1e-2, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, max_examples=60)
def test_divergence_of_far_and_close_distributions(columns, scale, distance, dtype, seed):
    random = torch.Generator().manual_seed(seed)
    p = torch.randn(3, columns, generator=random) * scale
    q = (p + torch.randn(3, columns, generator=random) * distance).to(dtype)
    p = p.to(dtype)
    found, expected = divergence(p, q), divergence(p, q, ops.js_divergence_reference)
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-14)


def test_divergence_is_symmetric_bounded_and_zero_for_equal():
    p, q = torch.randn(6, 5000) * 20, torch.randn(6, 5000) * 20
    assert divergence(p, q).equal(divergence(q, p))
    assert divergence(p, p).eq(0).all()
    apart = torch.full((2, 400), -1e4)
    apart[0, 7], apart[1, 399] = 1e4, 1e4
    assert divergence(apart, apart.flip(0)).tolist() == pytest.approx([math.log(2)] * 2, rel=1e-6)
    disjoint = torch.tensor([[0.0, -math.inf, -math.inf]])
    assert divergence(disjoint, disjoint.flip(1)).item() == pytest.approx(math.log(2), rel=1e-6)


def test_a_constant_added_to_large_logits_changes_nothing():
    p = torch.randint(-10000, 10000, (3, 2000)).float()
    q = p + torch.randint(-2, 3, p.shape)
    expected = divergence(p, q, ops.js_divergence_reference)
    torch.testing.assert_close(divergence(p + 4096, q - 4096), expected, rtol=1e-5, atol=1e-12)


def test_pieces_of_the_vocabulary_add_up():
    p, q = torch.randn(3, 1000), torch.randn(3, 1000)
    sums = [x.double().logsumexp(1) for x in (p, q)]
    pieces = [
        ops.js_divergence(a.contiguous(), b.contiguous(), *sums)
        for a, b in zip(p.split(300, 1), q.split(300, 1), strict=True)
    ]
    torch.testing.assert_close(sum(pieces), ops.js_divergence(p, q, *sums), rtol=1e-6, atol=0)


LOGITS, TARGETS = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
SUMS = torch.zeros(2, dtype=torch.float64)


@pytest.mark.parametrize(
    ("logits", "targets", "state", "error", "message"),
    [
        (LOGITS[0], TARGETS, ops.lens_start(2), ValueError, "logits has 1 dimensions"),
        (LOGITS.t(), TARGETS, ops.lens_start(3), ValueError, "logits is not contiguous"),
        (LOGITS.double(), TARGETS, ops.lens_start(2), TypeError, "logits is Double"),
        (LOGITS, TARGETS.int(), ops.lens_start(2), TypeError, "targets is Int; it must be Long"),
        (LOGITS, TARGETS, ops.lens_start(3), ValueError, r"state has shape \[3, 3\]"),
    ],
)
def test_a_wrong_argument_of_the_update_is_named(logits, targets, state, error, message):
    with pytest.raises(error, match=message):
        ops.lens_update(logits, targets, state)


@pytest.mark.parametrize(
    ("q", "log_sum_q", "error", "message"),
    [
        (LOGITS[:, :2], SUMS, ValueError, "logits_q"),
        (LOGITS.bfloat16(), SUMS, TypeError, "logits_q is BFloat16, logits_p is Float"),
        (LOGITS, SUMS.float(), TypeError, "log_sum_q is Float; it must be Double"),
        (LOGITS, SUMS[:1], ValueError, r"log_sum_q has shape \[1\]"),
    ],
)
def test_a_wrong_argument_of_the_divergence_is_named(q, log_sum_q, error, message):
    with pytest.raises(error, match=message):
        ops.js_divergence(LOGITS, q, SUMS, log_sum_q)


def test_fake_tensors_give_the_shapes():
    with FakeTensorMode():
        logits, targets = torch.empty(5, 9), torch.empty(5, dtype=torch.int64)
        state = ops.lens_update(logits, targets, ops.lens_start(5))
        sums = ops.log_sum_exp(state)
        assert state.shape == (5, 3)
        assert ops.js_divergence(logits, logits, sums, sums).shape == (5,)
