"""The compiled ops against their references."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from layertracer.ops import LayerStats, layer_grad_stats, layer_grad_stats_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CHUNK = 1 << 16


def assert_equal(found, expected):
    for name, ours, reference in zip(found._fields, found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=0, msg=name)


@given(
    sizes=st.lists(st.integers(0, 300), max_size=12),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, max_examples=60)
def test_any_number_of_tensors_of_any_size(sizes, dtype, seed):
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=random).to(dtype) for size in sizes]
    layers = torch.randint(0, 4, (len(sizes),), generator=random).tolist()
    weights = torch.randint(0, 2, (len(sizes),), generator=random).double().tolist()
    expected = layer_grad_stats_reference(tensors, layers, 4, weights)
    assert_equal(layer_grad_stats(tensors, layers, 4, weights), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 16, 17, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("offset", [0, 1])
def test_tails_chunk_edges_and_odd_addresses(dtype, size, offset):
    tensor = torch.randn(size + offset).to(dtype)[offset:]
    assert_equal(layer_grad_stats([tensor], [0], 1), layer_grad_stats_reference([tensor], [0], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_number_is_read_right(dtype):
    largest, smallest = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    values = [0.0, -0.0, 1.0, -2.5, largest, -largest, smallest, smallest / 4]
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert_equal(layer_grad_stats([tensor], [0], 1), layer_grad_stats_reference([tensor], [0], 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_counted_and_spoils_nothing(dtype):
    tensor = torch.ones(100, dtype=dtype)
    tensor[[3, 50, 99]] = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    stats = layer_grad_stats([tensor], [1], 2)
    assert stats.nonfinite.tolist() == [0, 3]
    assert stats.sum_of_squares.tolist() == [0, 97]
    assert stats.max_abs.tolist() == [0, 1]


def test_the_same_bits_for_any_number_of_threads():
    tensors = [torch.randn(5 * CHUNK + 11), torch.randn(7)]
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(torch.stack(layer_grad_stats(tensors, [0, 1], 2)))
    finally:
        torch.set_num_threads(threads)
    assert all(one.equal(other) for one, other in itertools.pairwise(results))


def test_no_tensor_and_no_layer_are_fine():
    assert layer_grad_stats([], [], 3).sum_of_squares.tolist() == [0, 0, 0]
    assert layer_grad_stats([], [], 0).sum_of_squares.numel() == 0


@pytest.mark.parametrize(
    ("tensors", "layers", "weights", "error", "message"),
    [
        ([torch.zeros(2)], [], None, ValueError, "layers has 0 entries, tensors has 1"),
        ([torch.zeros(2)], [2], None, ValueError, r"layers\[0\] is 2; it must be from 0 to 1"),
        ([torch.zeros(2)], [-1], None, ValueError, r"layers\[0\] is -1"),
        ([torch.zeros(2)], [0], [1.0, 1.0], ValueError, "weights has 2 entries"),
        ([torch.zeros(4, 4).t()[1:]], [0], None, ValueError, r"tensors\[0\] is not contiguous"),
        ([torch.zeros(2, dtype=torch.int32)], [0], None, TypeError, r"tensors\[0\] is Int"),
    ],
)
def test_a_wrong_argument_is_named(tensors, layers, weights, error, message):
    with pytest.raises(error, match=message):
        layer_grad_stats(tensors, layers, 2, weights)


def test_fake_tensors_give_the_shape():
    with FakeTensorMode():
        stats = layer_grad_stats([torch.empty(5)], [0], 3)
    assert stats.max_abs.shape == (3,) and stats.max_abs.dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gpu_agrees(dtype):
    tensors = [torch.randn(size).to(dtype).cuda() for size in (1, 17, CHUNK + 3, 5 * CHUNK)]
    found = layer_grad_stats(tensors, [0, 1, 1, 2], 3)
    on_cpu = LayerStats(*(part.cpu() for part in found))
    assert_equal(on_cpu, layer_grad_stats_reference(tensors, [0, 1, 1, 2], 3))
