"""A batch measured, against a plain float64 computation with the formulas of the design."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from layertracer.errors import UserError
from layertracer.trace import measure as module
from layertracer.trace.encoding import EncodedPrompt
from layertracer.trace.measure import measure
from layertracer.trace.model import TracedModel, trace_model
from layertracer.trace.perturbation import Disturbance, Perturbation, perturbed_row
from layertracer.trace.prompts import Prompt
from layertracer.trace.tiny_models import tiny_model

LENGTHS = [12, 1, 7, 2, 12]


@pytest.fixture(scope="module")
def traced() -> TracedModel:
    llama = tiny_model("llama")
    with torch.no_grad():
        for parameter in llama.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return trace_model(llama, "llama")


@pytest.fixture(scope="module")
def prompts() -> list[EncodedPrompt]:
    rng = np.random.default_rng(5)
    return [
        EncodedPrompt(
            index, Prompt(f"p{index}", "all", f"line {index}"), rng.integers(4, 300, length),
            np.arange(length - 1), int(rng.integers(300)), 0,
        )
        for index, length in enumerate(LENGTHS)
    ]  # fmt: skip


def reference_distributions(ids: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Llama's p_l at the last token in float64: every depth through final norm and head."""
    llama = tiny_model("llama").double()
    with torch.no_grad():
        for parameter in llama.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
        output = llama(
            input_ids=torch.tensor(ids)[None],
            attention_mask=torch.tensor(visible)[None],
            output_hidden_states=True,
        )
        # The last entry of hidden_states is after the final norm already.
        states = [h[0, -1] for h in output.hidden_states[:-1]]
        logits = [llama.lm_head(llama.model.norm(h)) for h in states] + [output.logits[0, -1]]
        return torch.stack(logits).softmax(-1).numpy()


@pytest.mark.parametrize("kind", [Perturbation.MASK, Perturbation.DROP])
def test_equals_the_definitions_in_float64(
    traced: TracedModel, prompts: list[EncodedPrompt], kind: Perturbation
) -> None:
    disturbance = Disturbance(kind, 0.4, seed=3, replacement=3)
    found = measure(traced, prompts, disturbance, null_control=True, given_target=False)
    for row, prompt in enumerate(prompts):
        clean = reference_distributions(prompt.ids, np.ones_like(prompt.ids))
        draws = [perturbed_row(prompt, disturbance, draw) for draw in (0, 1)]
        first, second = (reference_distributions(draw.ids, draw.visible) for draw in draws)
        target = clean[-1].argmax()
        assert found.predicted[row] == found.target[row] == target
        np.testing.assert_allclose(found.p[row], clean[:, target], atol=1e-6, rtol=1e-4)
        for values, p, q in ((found.js, clean, first), (found.js_null, first, second)):
            expected = jensenshannon(p, q, axis=1) ** 2
            np.testing.assert_allclose(values[row], np.nan_to_num(expected), atol=1e-6)


def test_a_prompt_without_context_has_no_divergence(
    traced: TracedModel, prompts: list[EncodedPrompt]
) -> None:
    found = measure(
        traced, prompts, Disturbance(Perturbation.MASK, 0.5, 0), null_control=True,
        given_target=False,
    )  # fmt: skip
    assert np.abs(found.js[1]).max() < 1e-6
    assert found.js[0].max() > 1e-3
    assert (found.js[:, 0] < 1e-6).all(), "the answer token itself is never disturbed"


def test_probabilities_are_of_the_given_target_when_asked(
    traced: TracedModel, prompts: list[EncodedPrompt]
) -> None:
    disturbance = Disturbance(Perturbation.MASK, 0.5, 0)
    found = measure(traced, prompts, disturbance, null_control=False, given_target=True)
    assert found.js_null is None
    assert found.target.tolist() == [prompt.target for prompt in prompts]
    clean = reference_distributions(prompts[0].ids, np.ones_like(prompts[0].ids))
    np.testing.assert_allclose(found.p[0], clean[:, prompts[0].target], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", list(Perturbation))
def test_numbers_do_not_depend_on_batch_or_chunk_size(
    traced: TracedModel, prompts: list[EncodedPrompt], kind: Perturbation, monkeypatch
) -> None:
    disturbance = Disturbance(kind, 0.5, seed=1, replacement=3)
    options = {"null_control": True, "given_target": False}
    together = measure(traced, prompts, disturbance, **options)
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 1)  # one row at a time
    for row, prompt in enumerate(prompts):
        alone = measure(traced, [prompt], disturbance, **options)
        np.testing.assert_allclose(alone.p[0], together.p[row], atol=1e-6)
        np.testing.assert_allclose(alone.js[0], together.js[row], atol=1e-6)
        np.testing.assert_allclose(alone.js_null[0], together.js_null[row], atol=1e-6)


def test_states_that_are_not_finite_name_the_prompt(prompts: list[EncodedPrompt]) -> None:
    traced = trace_model(tiny_model("llama"), "llama")
    with torch.no_grad():
        traced.model.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match=r"line 0: the model's states or logits are not finite"):
        measure(
            traced, prompts, Disturbance(Perturbation.MASK, 0.5, 0), null_control=False,
            given_target=False,
        )  # fmt: skip


def test_logits_that_are_not_finite_name_the_prompt(prompts: list[EncodedPrompt]) -> None:
    traced = trace_model(tiny_model("llama"), "llama")
    with torch.no_grad():
        traced.model.lm_head.weight[5, 0] = float("inf")
    with pytest.raises(UserError, match="states or logits are not finite"):
        measure(
            traced, prompts, Disturbance(Perturbation.MASK, 0.5, 0), null_control=True,
            given_target=False,
        )  # fmt: skip


def test_logits_alive_at_once_do_not_grow_with_prompts(
    traced: TracedModel, prompts: list[EncodedPrompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory: no more rows are decoded together than the budget allows."""
    sizes: list[int] = []
    own = traced.lens.decode
    monkeypatch.setattr(traced.lens, "decode", lambda s: sizes.append(len(s)) or own(s))
    monkeypatch.setitem(module.LOGITS_PER_CHUNK, "cpu", 20 * 320)
    measure(
        traced, prompts * 20, Disturbance(Perturbation.MASK, 0.5, 0), null_control=True,
        given_target=False,
    )  # fmt: skip
    assert max(sizes) <= 20
    assert sum(sizes) == len(prompts) * 20 * 5 * 3
