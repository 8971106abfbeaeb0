"""The lens against independent readings of the same model, over families."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from layertracer.errors import UserError
from layertracer.trace.lens import Lens, LensError, find_layers
from layertracer.trace.model import trace_model
from layertracer.trace.tiny_models import tiny_model

FAMILIES = [
    "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma2", "gemma3_text", "gpt2",
    "gpt_neox", "phi3", "olmo2", "mamba2", "nemotron_h", "jamba", "qwen3_next", "cohere2",
    "granite", "opt", "bloom", "falcon",
]  # fmt: skip


def inputs_of(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def random_ids(rows: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(4, 300, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> nn.Module:
    made = tiny_model(request.param)
    # Random weights of std 0.02 make every logit alike; larger ones let mistakes show.
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 2:
                parameter.mul_(3.0)
            elif "norm" in name or "ln_" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def test_last_layer_gives_the_models_own_distribution(model: nn.Module) -> None:
    traced = trace_model(model, "tiny")
    ids = random_ids()
    states = traced.lens.read(inputs_of(ids), torch.tensor([8, 8]))
    with torch.no_grad():
        own = model(**inputs_of(ids)).logits[:, -1].softmax(-1)
    torch.testing.assert_close(traced.lens.decode(states[-1]).softmax(-1), own, atol=1e-5, rtol=0)


def test_each_layer_reads_as_the_model_cut_off_there(model: nn.Module) -> None:
    """h_l through the lens equals the logits of the same model with only its first l blocks."""
    traced = trace_model(model, "tiny")
    ids = random_ids()
    states = traced.lens.read(inputs_of(ids), torch.tensor([8, 8]))
    for depth in range(1, traced.num_layers):
        with torch.no_grad():
            own = cut_after(model, depth)(**inputs_of(ids), use_cache=False).logits[:, -1]
        torch.testing.assert_close(traced.lens.decode(states[depth]), own, atol=2e-5, rtol=1e-5)


def cut_after(model: nn.Module, depth: int) -> nn.Module:
    """A copy that has only the first ``depth`` blocks."""
    cut = copy.deepcopy(model)
    layers = find_layers(cut)
    del layers[depth:]
    cut.config.num_hidden_layers = depth
    return cut


def test_reading_matches_the_blocks_own_outputs(model: nn.Module) -> None:
    lens = trace_model(model, "tiny").lens
    ids = random_ids()
    seen: list[torch.Tensor] = []
    handles = [
        layer.register_forward_hook(
            lambda _m, _a, out: seen.append(out if isinstance(out, torch.Tensor) else out[0])
        )
        for layer in lens.layers
    ]
    with torch.no_grad():
        model(**inputs_of(ids), use_cache=False)
    for handle in handles:
        handle.remove()
    states = lens.read(inputs_of(ids), torch.tensor([4, 8]))
    for layer, output in enumerate(seen):
        torch.testing.assert_close(states[layer + 1, 0], output[0, 4])
        torch.testing.assert_close(states[layer + 1, 1], output[1, 8])


def test_right_padding_changes_no_state(model: nn.Module) -> None:
    lens = trace_model(model, "tiny").lens
    ids = random_ids()
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[0, 5:], mask[0, 5:] = 0, 0
    together = lens.read({"input_ids": padded, "attention_mask": mask}, torch.tensor([4, 8]))
    alone = lens.read(inputs_of(ids[:1, :5]), torch.tensor([4]))
    torch.testing.assert_close(together[:, 0], alone[:, 0], atol=1e-5, rtol=1e-4)


def test_hiding_any_context_token_leaves_states_finite(model: nn.Module) -> None:
    lens = trace_model(model, "tiny").lens
    ids = random_ids(rows=3)
    mask = torch.ones_like(ids)
    mask[0, 0], mask[1, 3:6], mask[2, :8] = 0, 0, 0
    states = lens.read({"input_ids": ids, "attention_mask": mask}, torch.tensor([8, 8, 8]))
    assert states.isfinite().all()


def test_the_model_is_left_as_it_was(model: nn.Module) -> None:
    ids = random_ids()
    with torch.no_grad():
        before = model(**inputs_of(ids), use_cache=False).logits
        lens = trace_model(model, "tiny").lens
        lens.decode(lens.read(inputs_of(ids), torch.tensor([8, 8]))[2])
        after = model(**inputs_of(ids), use_cache=False).logits
    torch.testing.assert_close(before, after, atol=0, rtol=0)
    assert not any("forward" in vars(layer) for layer in lens.layers)


def test_last_hidden_states_entry_is_after_the_norm_and_would_be_wrong() -> None:
    """Why states come from hooks: decoding ``hidden_states[-1]`` norms a second time."""
    llama = tiny_model("llama")
    with torch.no_grad():
        llama.model.norm.weight.copy_(torch.linspace(0.1, 3, 64))
        output = llama(**inputs_of(random_ids()), output_hidden_states=True)
    lens = trace_model(llama, "llama").lens
    wrong = lens.decode(output.hidden_states[-1][:, -1])
    assert (wrong - output.logits[:, -1]).abs().max() > 0.01


def test_noise_goes_to_the_chosen_embeddings_only() -> None:
    lens = trace_model(tiny_model("llama"), "llama").lens
    ids = random_ids()
    noise = torch.zeros(2, 9, 64)
    noise[0, 2] = 1.0
    clean = lens.read(inputs_of(ids), torch.tensor([2, 2]))
    noisy = lens.read(inputs_of(ids), torch.tensor([2, 2]), embedding_noise=noise)
    scale = clean[0, 0].square().mean().sqrt()
    torch.testing.assert_close(noisy[0, 0], clean[0, 0] + scale)
    torch.testing.assert_close(noisy[:, 1], clean[:, 1])
    torch.testing.assert_close(lens.read(inputs_of(ids), torch.tensor([2, 2])), clean)


def test_a_model_whose_layers_run_twice_is_refused() -> None:
    llama = tiny_model("llama")
    own = llama.model.forward

    def twice(input_ids=None, inputs_embeds=None, **kwargs):
        first = own(input_ids=input_ids, **kwargs).last_hidden_state
        return own(inputs_embeds=first, **kwargs)

    llama.model.forward = twice
    with pytest.raises(UserError, match="its layers are not run once each"):
        trace_model(llama, "looped")


def test_a_head_that_sees_more_than_the_last_state_is_refused() -> None:
    llama = tiny_model("llama")
    first: list[torch.Tensor] = []
    llama.model.layers[0].register_forward_pre_hook(
        lambda _m, args, kwargs: first.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    llama.lm_head.register_forward_hook(
        lambda _m, _a, logits: logits + first[-1].sum(-1, keepdim=True)
    )
    with pytest.raises(UserError, match=r"LlamaForCausalLM can't be traced"):
        trace_model(llama, "peeking")


def test_a_model_that_looks_ahead_is_refused() -> None:
    with pytest.raises(UserError, match="isn't causal"):
        trace_model(tiny_model("bert", is_decoder=False), "bert")


def test_missing_layers_are_named() -> None:
    llama = tiny_model("llama")
    llama.config.num_hidden_layers = 7
    with pytest.raises(LensError, match="no list of 7 decoder layers"):
        Lens(llama)


def test_hybrid_layers_are_named_by_kind() -> None:
    traced = trace_model(tiny_model("nemotron_h"), "nemotron_h")
    assert len(set(traced.layer_kinds)) > 1
    assert len(traced.layer_kinds) == traced.num_layers
