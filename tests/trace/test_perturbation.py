import numpy as np
import pytest
import torch

from layertracer.trace.encoding import EncodedPrompt
from layertracer.trace.perturbation import (
    Disturbance,
    Perturbation,
    batch_inputs,
    clean_row,
    perturbed_row,
)
from layertracer.trace.prompts import Prompt


def prompt(length: int = 21, text: str = "x", occurrence: int = 0, bos: int = 1) -> EncodedPrompt:
    ids = np.arange(100, 100 + length)
    return EncodedPrompt(
        0, Prompt(text, "all", "x"), ids, np.arange(bos, length - 1), None, occurrence
    )


def disturb(kind: Perturbation, fraction: float = 0.3, seed: int = 0) -> Disturbance:
    return Disturbance(kind, fraction, seed, replacement=7)


@pytest.mark.parametrize("kind", list(Perturbation))
@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
def test_the_given_share_of_the_context_is_hit_and_nothing_else(
    kind: Perturbation, fraction: float
) -> None:
    made = prompt()
    row = perturbed_row(made, disturb(kind, fraction), draw=0)
    assert len(row.hit) == max(1, round(fraction * 19))
    assert set(row.hit) <= set(made.context)
    changed = np.flatnonzero(row.ids != made.ids)
    hidden = np.flatnonzero(row.visible == 0)
    if kind is Perturbation.MASK:
        np.testing.assert_array_equal(changed, row.hit)
        assert (row.ids[row.hit] == 7).all() and not hidden.size
    elif kind is Perturbation.DROP:
        np.testing.assert_array_equal(hidden, row.hit)
        assert not changed.size
    else:
        assert not changed.size and not hidden.size


def test_draws_depend_on_seed_draw_text_and_occurrence_only() -> None:
    def hit(draw: int = 0, seed: int = 0, **rest) -> list[int]:
        made = prompt(60, **rest)
        return perturbed_row(made, disturb(Perturbation.MASK, seed=seed), draw).hit.tolist()

    assert hit() == hit()
    assert (
        len({tuple(h) for h in (hit(), hit(1), hit(seed=1), hit(text="y"), hit(occurrence=1))}) == 5
    )


def test_a_prompt_without_context_stays_as_it_is() -> None:
    for kind in Perturbation:
        row = perturbed_row(prompt(1, bos=0), disturb(kind, 1.0), draw=0)
        assert row.ids.tolist() == [100] and row.visible.tolist() == [1]


def test_batches_are_padded_on_the_right_and_padding_is_hidden() -> None:
    rows = [clean_row(prompt(4)), perturbed_row(prompt(2), disturb(Perturbation.DROP), 0)]
    inputs, positions, noise = batch_inputs(rows, 8, torch.device("cpu"))
    assert inputs["input_ids"].tolist() == [[100, 101, 102, 103], [100, 101, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert positions.tolist() == [3, 1]
    assert noise is None


def test_noise_has_the_asked_scale_at_the_hit_positions() -> None:
    made = prompt(400)
    disturbance = Disturbance(Perturbation.NOISE, 0.5, 0, noise_scale=2.0)
    rows = [clean_row(made), perturbed_row(made, disturbance, 0)]
    _, _, noise = batch_inputs(rows, 64, torch.device("cpu"))
    assert noise[0].abs().max() == 0
    hit = noise[1].abs().sum(-1) > 0
    assert hit.nonzero()[:, 0].tolist() == rows[1].hit.tolist()
    assert noise[1, hit].std().item() == pytest.approx(2.0, rel=0.05)
