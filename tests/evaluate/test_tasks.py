"""The texts that a model is given, against the published wording."""

from __future__ import annotations

from pathlib import Path

import lm_eval.tasks
import pytest
import yaml

from layertracer.evaluate.files import EvalSettings
from layertracer.evaluate.questions import Subject, known_subjects
from layertracer.evaluate.sources import builtin_suite
from layertracer.evaluate.tasks import subject_task

SUBJECTS = {subject.name: subject for subject in builtin_suite().subjects}
PHYSICS, HISTORY = SUBJECTS["middle_school_physics"], SUBJECTS["chinese_history"]
TASKS = Path(lm_eval.tasks.__file__).parent


def text(subject: Subject, settings: EvalSettings) -> str:
    """Return the first question's prompt and its answer."""
    task = subject_task("builtin", subject, "logit", settings)
    task.build_all_requests(rank=0, world_size=1)
    context, option = task.instances[0].args
    return context + option


def test_ceval_official() -> None:
    q = PHYSICS.test[0]
    a, b, c, d = q.options
    assert text(PHYSICS, EvalSettings()) == (
        "以下是中国关于初中物理考试的单项选择题，请选出其中的正确答案。\n\n"
        f"{q.text}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\n答案：A"
    )


def test_ceval_official_with_examples() -> None:
    found = text(PHYSICS, EvalSettings(shots=2))
    first, second = PHYSICS.dev[:2]
    assert f"{first.text}\nA. {first.options[0]}" in found
    assert f"\n答案：{first.answer}\n\n{second.text}\n" in found
    assert found.count("答案：") == 3 and PHYSICS.dev[2].text not in found


def test_cmmlu_official() -> None:
    q = HISTORY.test[0]
    a, b, c, d = q.options
    assert text(HISTORY, EvalSettings()) == (
        "以下是关于中国历史的单项选择题，请直接给出正确答案的选项。\n\n"
        f"题目：{q.text}\nA. {a}\nB. {b}\nC. {c}\nD. {d}\n答案是：A"
    )


@pytest.mark.parametrize(
    ("subject", "folder", "default", "file"),
    [
        (PHYSICS, "ceval", "_default_ceval_yaml", "ceval-valid_middle_school_physics.yaml"),
        (HISTORY, "cmmlu", "_default_template_yaml", "cmmlu_chinese_history.yaml"),
    ],
)
def test_lm_evals_wording_is_that_of_its_own_tasks(
    subject: Subject, folder: str, default: str, file: str
) -> None:
    stock = yaml.safe_load((TASKS / folder / default).read_text("utf-8"))
    stock |= yaml.safe_load((TASKS / folder / file).read_text("utf-8"))
    config = subject_task("builtin", subject, "logit", EvalSettings(prompt="lm-eval")).config
    theirs = stock["doc_to_text"].replace("{{Question", "{{question")
    assert config.doc_to_text == theirs
    assert config.description == stock["description"]
    assert config.target_delimiter == " "


@pytest.mark.parametrize(("folder", "prefix"), [("ceval", "ceval-valid"), ("cmmlu", "cmmlu")])
def test_titles_are_those_of_lm_evals_tasks(folder: str, prefix: str) -> None:
    for name, (title, _) in known_subjects()[folder].items():
        stock = yaml.safe_load((TASKS / folder / f"{prefix}_{name}.yaml").read_text("utf-8"))
        assert f"关于{title}的单项选择题" in stock["description"]
