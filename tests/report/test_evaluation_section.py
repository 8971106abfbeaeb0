"""Evaluations side by side."""

from __future__ import annotations

from layertracer.evaluate.files import (
    EvalFile,
    EvalSettings,
    ModelInfo,
    QuestionResult,
    Score,
    SubjectScore,
    SuiteResult,
    Versions,
    Work,
)
from layertracer.report.evaluation_section import evaluation_section


def evaluation(name: str, answers: list[bool]) -> EvalFile:
    """An evaluation of one subject with these answers."""
    share = sum(answers) / len(answers)
    score = Score(
        questions=len(answers),
        correct=sum(answers),
        accuracy=share,
        low=share - 0.1,
        high=share + 0.1,
        macro=share,
        chance=0.25,
        constant=0.25,
        extracted=1.0,
    )
    suite = SuiteResult(
        suite="builtin",
        protocol="logit",
        questions_sha256="q",
        prompts_sha256="p",
        truncated=0,
        overall=score,
        categories=(),
        subjects=(SubjectScore(subject="s", title="科", categories=(), score=score),),
    )
    questions = tuple(
        QuestionResult(
            suite="builtin",
            protocol="logit",
            subject="s",
            id=str(number),
            question_sha256=str(number),
            prompt_sha256=str(number),
            gold="A",
            prediction="A" if right else "B",
            correct=right,
        )
        for number, right in enumerate(answers)
    )
    versions = dict.fromkeys(("layertracer", "python", "torch", "transformers", "lm_eval"), "1")
    return EvalFile(
        model=ModelInfo(path=name, fingerprint="f", architecture="a", num_layers=1),
        settings=EvalSettings(),
        versions=Versions(**versions, device="cpu", ranks=1),
        work=Work(seconds=1, tokens=1, tokens_unshared=1),
        suites=(suite,),
        questions=questions,
    )


def test_chance_stands_beside_every_number():
    (overall, _subjects) = evaluation_section([evaluation("m", [True, False])]).tables
    assert overall.columns[-1] == "chance"
    assert overall.rows[0][2:] == ["50.0%", "40.0% to 60.0%", "50.0%", "25.0%"]


def test_the_same_questions_are_compared_in_pairs():
    before = evaluation("before", [False] * 10 + [True] * 10)
    after = evaluation("after", [True] * 10 + [True] * 10)
    paired = evaluation_section([before, after]).tables[1]
    # 10 changed sides, all one way: p = 2 / 2^10.
    (row,) = paired.rows
    assert row[:4] == ["builtin, logit", "20", "10", "0"] and row[-2:] == ["0.002", "better"]
    assert row[4].startswith("+50.00 points")


def test_no_change_can_not_be_told_apart():
    same = evaluation("m", [True, False, True])
    assert evaluation_section([same, same]).tables[1].rows[0][-2:] == [
        "1.000",
        "can't be told apart",
    ]
