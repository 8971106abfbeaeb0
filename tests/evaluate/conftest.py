"""A tiny model folder with room for long prompts, and evaluations made up from lists of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from layertracer.evaluate.assemble import suite_result
from layertracer.evaluate.files import (
    EvalFile,
    EvalSettings,
    ModelInfo,
    QuestionResult,
    Versions,
    Work,
)
from layertracer.evaluate.questions import Question, Subject, Suite
from tests.trace.conftest import save_model

MakeEvaluation = Callable[..., EvalFile]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated") / "model"
    return save_model(folder, max_position_embeddings=8192)


def question(number: int) -> Question:
    return Question(str(number), f"question {number}", ("1", "2", "3", "4"), "ABCD"[number % 4])


def made_up(
    subjects: dict[str, Sequence[bool]], *, suite: str = "ceval", prompt: str = "a", path: str = "m"
) -> EvalFile:
    """Return an evaluation in which question ``i`` of a subject was answered right or wrong."""
    results, made = [], []
    for name, right in subjects.items():
        test = tuple(question(number) for number in range(len(right)))
        made.append(Subject(name, name, ("STEM",), "ceval", (), test))
        results += [
            QuestionResult(
                suite=suite,
                protocol="logit",
                subject=name,
                id=one.id,
                question_sha256=one.sha256,
                prompt_sha256=prompt * 16,
                gold=one.answer,
                prediction=one.answer if correct else "ABCD"[(int(one.id) + 1) % 4],
                correct=correct,
                log_probs=(-1.0, -2.0, -3.0, -4.0),
            )
            for one, correct in zip(test, right, strict=True)
        ]
    whole = Suite(suite, tuple(made))
    return EvalFile(
        model=ModelInfo(path=path, fingerprint="f", architecture="LlamaForCausalLM", num_layers=2),
        settings=EvalSettings(),
        versions=Versions(
            layertracer="0",
            python="3",
            torch="2",
            transformers="5",
            lm_eval="0",
            device="cpu",
            ranks=1,
        ),
        work=Work(seconds=1, tokens=1, tokens_unshared=4),
        suites=(suite_result(whole, "logit", 0, results, ()),),
        questions=tuple(results),
    )
