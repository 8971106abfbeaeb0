import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from layertracer.trace import metrics

P = np.array([[0.1, 0.2, 0.2, 0.8], [0.5, 0.1, 0.1, 0.3]])
unit = st.floats(0, 1)
tables = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(2, 9)), elements=st.floats(0, 1)
)


def test_ratio_is_the_published_one() -> None:
    expected = [[0.5, 0.0, 0.75], [4.0, 0.0, 2 / 3]]
    np.testing.assert_allclose(metrics.ratio(P), expected, rtol=1e-8, atol=1e-12)


def test_task_particle_is_the_block_of_the_largest_ratio() -> None:
    assert metrics.task_particle(P).tolist() == [2, 0]


def test_published_task_particle_saturates_where_onset_does_not() -> None:
    p = np.array([[1e-30, 1e-9, 1e-8, 0.9]])
    ratio = metrics.ratio(p)[0]
    assert ratio[0] == pytest.approx(0.909, abs=1e-3)
    assert ratio[2] == pytest.approx(1.0)
    assert metrics.onset(p).tolist() == metrics.largest_rise(p).tolist() == [2]


def test_onset_is_the_first_block_with_half_the_largest_probability() -> None:
    p = np.array([[0.0, 0.39, 0.4, 0.8, 0.7], [0.9, 0.1, 0.3, 0.2, 0.6]])
    assert metrics.onset(p).tolist() == [1, 1]


def test_largest_rise_counts_absolute_steps_from_the_embedding_on() -> None:
    assert metrics.largest_rise(np.array([[0.0, 0.5, 0.6], [0.5, 0.4, 0.6]])).tolist() == [0, 1]


@settings(max_examples=50, deadline=None)
@given(tables)
def test_landmarks_agree_with_plain_loops(p: np.ndarray) -> None:
    for row, particle, onset, rise in zip(
        p, metrics.task_particle(p), metrics.onset(p), metrics.largest_rise(p), strict=True
    ):
        ratios = [abs(b - a) / (b + 1e-10) for a, b in itertools.pairwise(row)]
        assert ratios[particle] == max(ratios)
        blocks = row[1:]
        assert onset == next(i for i, v in enumerate(blocks) if v >= 0.5 * max(blocks))
        rises = [b - a for a, b in itertools.pairwise(row)]
        assert rise == rises.index(max(rises))


def test_sensitivity_is_the_absolute_change_of_divergence() -> None:
    js = np.array([[0.0, 0.2, 0.1, 0.4]])
    np.testing.assert_allclose(metrics.js_rise(js), [[0.2, -0.1, 0.3]])
    np.testing.assert_allclose(metrics.sensitivity(js), [[0.2, 0.1, 0.3]])
    assert metrics.vulnerable_layer(js).tolist() == [2]


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float64, st.integers(2, 12), elements=unit))
def test_boundary_score_is_mean_of_shallow_minus_mean_of_deep(ls: np.ndarray) -> None:
    scores = metrics.boundary_scores(ls)
    expected = [ls[:b].mean() - ls[b:].mean() for b in range(1, len(ls))]
    np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_boundary_scores_of_one_layer_are_none() -> None:
    assert metrics.boundary_scores(np.array([0.3])).size == 0


def test_bootstrap_covers_the_true_mean_about_95_percent_of_the_time() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        sample = rng.exponential(1.0, size=(80, 1))
        low, high = metrics.interval(metrics.bootstrap_means(sample, 400, trial))
        hits += low[0] <= 1.0 <= high[0]
    assert 0.88 <= hits / 200 <= 0.985


def test_bootstrap_is_reproducible_and_constant_for_equal_prompts() -> None:
    same = np.full((5, 3), 0.25)
    means = metrics.bootstrap_means(same, 50, seed=7)
    np.testing.assert_allclose(means, 0.25)
    values = np.random.default_rng(1).random((9, 2))
    first = metrics.bootstrap_means(values, 50, seed=7)
    np.testing.assert_array_equal(first, metrics.bootstrap_means(values, 50, seed=7))
    assert (first != metrics.bootstrap_means(values, 50, seed=8)).any()
