"""Activation drift against its reference."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layertracer.ops import activation_drift, activation_drift_reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def pairs(sizes, x_dtype, reference_dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=random).to(x_dtype) for size in sizes]
    references = [torch.randn(size, generator=random).to(reference_dtype) for size in sizes]
    return tensors, references


def assert_equal(found, expected):
    for name, ours, reference in zip(found._fields, found, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-11, atol=1e-9, msg=name)


@given(
    sizes=st.lists(st.integers(0, 2500), max_size=6),
    x_dtype=st.sampled_from(DTYPES),
    reference_dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, max_examples=40)
def test_any_sizes_and_types(sizes, x_dtype, reference_dtype, seed):
    tensors, references = pairs(sizes, x_dtype, reference_dtype, seed)
    layers = [index % 3 for index in range(len(sizes))]
    weights = [float(index % 2) for index in range(len(sizes))]
    expected = activation_drift_reference(tensors, references, layers, 3, weights)
    assert_equal(activation_drift(tensors, references, layers, 3, weights), expected)


def test_a_small_drift_keeps_its_digits():
    reference = torch.randn(70000)
    moved = reference * (1 + 2**-20)
    found = activation_drift([moved], [reference], [0], 1)
    expected = (moved.double() - reference.double()).norm() / reference.double().norm()
    assert found.relative[0] == pytest.approx(expected.item(), rel=1e-12)


def test_the_three_numbers_of_a_drift():
    reference = torch.tensor([3.0, 4.0])
    found = activation_drift([2 * reference, -reference], [reference, reference], [0, 1], 2)
    assert found.relative.tolist() == [1.0, 2.0]
    assert found.cosine.tolist() == [1.0, -1.0]
    assert found.norm_ratio.tolist() == [2.0, 1.0]


def test_the_same_bits_for_any_number_of_threads():
    tensors, references = pairs([400_011, 7], torch.float32, torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(torch.stack(activation_drift(tensors, references, [0, 1], 2)))
    finally:
        torch.set_num_threads(threads)
    assert all(one.equal(other) for one, other in itertools.pairwise(results))


@pytest.mark.parametrize(
    ("references", "error", "message"),
    [
        ([], ValueError, "references has 0 entries, tensors has 1"),
        ([torch.zeros(3)], ValueError, r"references\[0\] has shape \[3\], tensors\[0\] has \[2\]"),
        ([torch.zeros(2, 2)[:, 0]], ValueError, r"references\[0\] is not contiguous"),
        ([torch.zeros(2, dtype=torch.float64)], TypeError, r"references\[0\] is Double"),
    ],
)
def test_a_wrong_argument_is_named(references, error, message):
    with pytest.raises(error, match=message):
        activation_drift([torch.zeros(2)], references, [0], 1)
