"""Our scorer against lm-eval's stock Hugging Face model, question by question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM

from layertracer.evaluate.files import EvalSettings
from layertracer.evaluate.harness import run_lm_eval
from layertracer.evaluate.journal import Journal
from layertracer.evaluate.lm import OptionLM
from layertracer.evaluate.loading import load_model, load_tokenizer
from layertracer.evaluate.sources import builtin_suite
from layertracer.model_folder import ModelFolder
from tests.trace.conftest import save_model

SUITE = builtin_suite().limited(2)
Answers = list[tuple[str, list[tuple[float, bool]], float]]


def loaded(folder: Path) -> dict[str, Any]:
    model = load_model(ModelFolder(folder), "float32", torch.device("cpu"))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh model says nearly the same everywhere
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return {"tokenizer": load_tokenizer(folder), "model": model}


def stock(parts: dict[str, Any]) -> HFLM:
    return HFLM(
        pretrained=parts["model"], tokenizer=parts["tokenizer"], backend="causal", batch_size=4
    )


def logit_answers(lm: Any, settings: EvalSettings) -> Answers:
    samples = run_lm_eval(lm, [SUITE], settings)["samples"]
    return [
        (sample["prompt_hash"], sample["filtered_resps"], sample["acc"])
        for task in sorted(samples)
        for sample in samples[task]
    ]


def assert_equal(ours: Answers, theirs: Answers) -> None:
    assert len(ours) == len(theirs) == 16
    for (prompt, found, acc), (stock_prompt, expected, stock_acc) in zip(ours, theirs, strict=True):
        assert prompt == stock_prompt
        assert [p for p, _ in found] == pytest.approx([p for p, _ in expected], abs=2e-4)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        assert acc == stock_acc


@pytest.fixture(scope="module")
def llama(model_folder: Path) -> dict[str, Any]:
    return loaded(model_folder)


@pytest.mark.parametrize("shots", [0, 5])
@pytest.mark.parametrize("prompt", ["official", "lm-eval"])
def test_the_same_log_probabilities_and_answers(
    llama: dict[str, Any], shots: int, prompt: str
) -> None:
    """With lm-eval's prompt " A" is two bytes: options of more tokens are scored as well."""
    settings = EvalSettings(shots=shots, prompt=prompt)
    ours = OptionLM(**llama, batch_tokens=6000)
    assert ours.forward.shares_prefixes
    assert_equal(logit_answers(ours, settings), logit_answers(stock(llama), settings))
    least = {0: 4, 5: 6}[shots]  # four options in one forward, and the examples once
    assert ours.tokens_unshared > least * ours.forward.tokens
    assert not ours.truncated


@pytest.mark.parametrize(
    ("model_type", "config", "shares"),
    [
        ("gemma2", {"max_position_embeddings": 8192, "sliding_window": 64}, False),
        ("gpt2", {"n_positions": 8192}, True),
        ("qwen3", {"max_position_embeddings": 8192}, True),
        ("mamba", {}, False),
    ],
)
def test_other_architectures(
    tmp_path: Path, model_type: str, config: dict[str, Any], shares: bool
) -> None:
    """Soft-capped logits, absolute positions, windows, recurrent state: shared only where exact."""
    parts = loaded(save_model(tmp_path / "model", model_type, **config))
    ours = OptionLM(**parts)
    assert ours.forward.shares_prefixes == shares
    settings = EvalSettings(shots=1)
    assert_equal(logit_answers(ours, settings), logit_answers(stock(parts), settings))


def test_a_chat_template_gives_the_same_too(model_folder: Path) -> None:
    """Its prompts end in a line break, which belongs to the option, and begin with BOS."""
    parts = loaded(model_folder)
    parts["tokenizer"].chat_template = (
        "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]\n{% endif %}"
    )
    settings, ours = EvalSettings(shots=2, chat_template=True), OptionLM(**parts)
    answers = logit_answers(ours, settings)
    assert_equal(answers, logit_answers(stock(parts), settings))
    sample = next(iter(run_lm_eval(ours, [SUITE], settings)["samples"].values()))[0]
    context, option = sample["arguments"][0]
    assert context.startswith("<s>[") and context.endswith("[assistant]\n") and option == "A"


def test_too_long_prompts_are_cut_as_lm_eval_cuts_them_and_counted(tmp_path: Path) -> None:
    parts = loaded(save_model(tmp_path / "model", max_position_embeddings=300))
    ours, settings = OptionLM(**parts), EvalSettings(shots=1)
    assert_equal(logit_answers(ours, settings), logit_answers(stock(parts), settings))
    samples = run_lm_eval(ours, [SUITE], settings)["samples"]
    prompts = [one["arguments"][0][0] for task in samples for one in samples[task]]
    too_long = sum(len(ours.tok_encode(prompt)) > 300 for prompt in prompts)
    assert 0 < len(ours.truncated) == too_long < 16


def test_generated_text_is_the_same(llama: dict[str, Any]) -> None:
    settings = EvalSettings(protocols=("generate",), max_new_tokens=6)
    texts = []
    for lm in (OptionLM(**llama), stock(llama)):
        samples = run_lm_eval(lm, [SUITE], settings)["samples"]
        texts.append([one["resps"] for task in sorted(samples) for one in samples[task]])
    assert texts[0] == texts[1]


def test_answers_of_a_killed_evaluation_are_not_computed_again(
    llama: dict[str, Any], tmp_path: Path
) -> None:
    settings = EvalSettings()
    with Journal(tmp_path) as journal:
        first = OptionLM(**llama, journal=journal)
        whole = logit_answers(first, settings)
    file = tmp_path / "answers-0.jsonl"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20], "utf-8")
    with Journal(tmp_path, rank=3) as journal:
        second = OptionLM(**llama, journal=journal)
        again = logit_answers(second, settings)
    assert_equal(again, whole)
    assert 0 < second.forward.tokens < first.forward.tokens


def test_answers_of_another_model_are_dropped(tmp_path: Path) -> None:
    with Journal(tmp_path, identity="one") as journal:
        journal.put("key", "B")
    assert Journal(tmp_path, identity="one").get("key") == "B"
    assert Journal(tmp_path, identity="two").get("key") is None
