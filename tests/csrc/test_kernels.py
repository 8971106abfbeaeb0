"""The GPU's kernels, run on the CPU by an emulator of blocks, warps and barriers."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layertracer import ops
from tests.csrc.harness import CSRC, DTYPES, Harness, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler is here")
CHUNK = 1 << 16
few = settings(deadline=None, max_examples=15)
dtypes = st.sampled_from(list(DTYPES))
seeds = st.integers(0, 2**20)


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return Harness(tmp_path_factory.mktemp("harness"))


def normal(size, dtype, seed, offset=0):
    """Return random numbers whose address is ``offset`` elements off."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(size + offset, generator=random).to(dtype)[offset:]


def assert_rows(found, expected, rtol=1e-11):
    torch.testing.assert_close(found, torch.stack(list(expected), dim=1), rtol=rtol, atol=1e-9)


sizes = st.lists(st.one_of(st.integers(0, 70), st.integers(0, 20000)), max_size=5)


@given(sizes=sizes, dtype=dtypes, offset=st.integers(0, 9), seed=seeds)
@few
def test_statistics_of_any_sizes_at_any_address(harness, sizes, dtype, offset, seed):
    tensors = [normal(size, dtype, seed + i, offset) for i, size in enumerate(sizes)]
    layers = [(7 * i) % 3 for i in range(len(sizes))]
    weights = [float(i != 1) for i in range(len(sizes))]
    expected = ops.layer_grad_stats_reference(tensors, layers, 4, weights)
    assert_rows(harness.reduce("layer_stats", tensors, layers, 4, weights), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics_at_the_edges_of_chunks(harness, dtype):
    tensors = [normal(size, dtype, size) for size in (CHUNK - 1, CHUNK + 1, 2 * CHUNK)]
    expected = ops.layer_grad_stats_reference(tensors, [1, 0, 1], 2)
    found = harness.reduce("layer_stats", tensors, [1, 0, 1], 2, [1.0] * 3)
    assert_rows(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_counted(harness, dtype, bad):
    tensor = torch.ones(1000, dtype=dtype)
    tensor[[0, 499, 999]] = bad
    assert harness.reduce("layer_stats", [tensor], [0], 1, [1.0]).tolist() == [[997, 1, 3]]
    assert harness.reduce("layer_stats", [tensor], [0], 1, [0.0]).tolist() == [[0, 0, 0]]


@given(sizes=sizes, x_dtype=dtypes, r_dtype=dtypes, offset=st.integers(0, 5), seed=seeds)
@few
def test_drift_of_any_sizes_types_and_addresses(harness, sizes, x_dtype, r_dtype, offset, seed):
    tensors = [normal(size, x_dtype, seed + i, offset) for i, size in enumerate(sizes)]
    references = [normal(size, r_dtype, seed - 1 - i) for i, size in enumerate(sizes)]
    layers, weights = [i % 3 for i in range(len(sizes))], [1.0] * len(sizes)
    expected = ops.activation_drift_reference(tensors, references, layers, 3)
    assert_rows(harness.reduce("drift", tensors, layers, 3, weights, references), expected)


@given(rows=st.integers(0, 3), columns=st.integers(1, 5000), dtype=dtypes, seed=seeds)
@few
def test_lens_over_a_cut_vocabulary(harness, rows, columns, dtype, seed):
    logits = (normal(rows * columns, dtype, seed) * 100).view(rows, columns)
    targets = torch.randint(0, columns, (rows,), generator=torch.Generator().manual_seed(seed))
    state, cut = ops.lens_start(rows), columns // 3
    for first, piece in ((0, logits[:, :cut]), (cut, logits[:, cut:])):
        state = harness.lens(piece.contiguous(), targets, state, first)
    exact = logits.double()
    torch.testing.assert_close(ops.log_sum_exp(state), exact.logsumexp(1), rtol=1e-12, atol=1e-6)
    expected = exact.gather(1, targets[:, None])[:, 0]
    assert state[:, 2].equal(expected)


@given(
    columns=st.integers(2, 3000),
    distance=st.sampled_from([1e-4, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=seeds,
)
@few
def test_divergence(harness, columns, distance, dtype, seed):
    p = normal(2 * columns, torch.float32, seed).view(2, columns) * 3
    q = (p + normal(2 * columns, torch.float32, seed + 1).view(2, columns) * distance).to(dtype)
    p = p.to(dtype)
    sums = [x.double().logsumexp(1) for x in (p, q)]
    expected = ops.js_divergence_reference(p, q, *sums)
    torch.testing.assert_close(harness.divergence(p, q, *sums), expected, rtol=2e-5, atol=1e-14)


def test_broken_rows_of_logits_end_in_nan(harness):
    logits = torch.zeros(3, 600)
    logits[0, 599], logits[1, 0], logits[2] = math.nan, math.inf, -math.inf
    sums = ops.log_sum_exp(harness.lens(logits, torch.zeros(3).long(), ops.lens_start(3)))
    assert sums[:2].isnan().all() and sums[2] == -math.inf
    assert harness.divergence(logits, logits, sums, sums).isnan().all()


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cpu_ops_on_every_instruction_set(harness, target, dtype):
    if not harness.set_target(target):
        pytest.skip("this processor does not have it")
    tensors = [normal(size, dtype, size, size % 3) for size in (0, 1, 17, 4095, 4097, CHUNK + 9)]
    tensors[2][3], tensors[3][4094] = math.nan, math.inf
    clean = [tensor.nan_to_num(nan=1.0, posinf=2.0) for tensor in tensors]
    layers, weights = [0, 0, 1, 2, 1, 2], [1.0] * 6
    logits = normal(4 * 1003, dtype, 5).view(4, 1003) * 10
    p, q, targets = logits[:2].contiguous(), logits[2:].contiguous(), torch.tensor([1002, 0])
    sums = [x.double().logsumexp(1) for x in (p, q)]
    stats = harness.reduce("layer_stats", tensors, layers, 3, weights, emulated=False)
    drift = harness.reduce("drift", clean, layers, 3, weights, clean, emulated=False)
    state = harness.lens(p, targets, ops.lens_start(2), emulated=False)
    divergence = harness.divergence(p, q, *sums, emulated=False)
    assert_rows(stats, ops.layer_grad_stats_reference(tensors, layers, 3))
    assert_rows(drift, ops.activation_drift_reference(clean, clean, layers, 3))
    torch.testing.assert_close(ops.log_sum_exp(state), sums[0], rtol=1e-12, atol=1e-6)
    expected = ops.js_divergence_reference(p, q, *sums)
    torch.testing.assert_close(divergence, expected, rtol=1e-5, atol=1e-14)


def both_orders(harness, call):
    """Return what ``call`` gives with the threads run forward and backward."""
    found = []
    for reverse in (False, True):
        harness.set_reverse(reverse)
        found.append(call())
    harness.set_reverse(False)
    return found


def test_the_order_in_which_threads_run_changes_no_bit(harness):
    tensors = [normal(3 * CHUNK + 5, torch.bfloat16, 1), normal(17, torch.float32, 2)]
    logits = normal(2 * 3001, torch.float32, 3).view(2, 3001)
    targets = torch.tensor([0, 3000])

    def everything():
        stats = harness.reduce("layer_stats", tensors, [0, 1], 2, [1.0, 1.0])
        drift = harness.reduce("drift", tensors, [0, 1], 2, [1.0, 1.0], tensors)
        state = harness.lens(logits, targets, ops.lens_start(2))
        sums = ops.log_sum_exp(state)
        return [stats, drift, state, harness.divergence(logits, logits.flip(0), sums, sums.flip(0))]

    forward, backward = both_orders(harness, everything)
    assert all(one.equal(other) for one, other in zip(forward, backward, strict=True))


def test_the_emulator_notices_a_missing_barrier(tmp_path):
    csrc = shutil.copytree(CSRC, tmp_path / "csrc")
    kernels = (csrc / "device.cuh").read_text()
    assert kernels.count("__syncthreads();") == 1
    (csrc / "device.cuh").write_text(kernels.replace("__syncthreads();", ""))
    broken = Harness(tmp_path, csrc)
    tensor = normal(5000, torch.float32, 0)
    forward, backward = both_orders(
        broken, lambda: broken.reduce("layer_stats", [tensor], [0], 1, [1.0])
    )
    assert not forward.equal(backward)
