"""lm-eval's samples to our record: one line a question, scores by subject, category and suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layertracer.evaluate.extract import extract
from layertracer.evaluate.files import (
    CategoryScore,
    EvalSettings,
    Protocol,
    QuestionResult,
    SubjectScore,
    SuiteResult,
)
from layertracer.evaluate.questions import LETTERS, Question, Subject, Suite, digest
from layertracer.evaluate.scores import score
from layertracer.evaluate.tasks import task_name

Samples = Mapping[str, Sequence[Mapping[str, Any]]]


def assemble(
    suites: Sequence[Suite], settings: EvalSettings, samples: Samples, truncated: Sequence[str]
) -> tuple[tuple[SuiteResult, ...], tuple[QuestionResult, ...]]:
    """Return the scores of each suite and protocol, and every question's result.

    Args:
        suites: what was asked.
        settings: how.
        samples: lm-eval's, by task.
        truncated: the task of each prompt that was cut.
    """
    scores: list[SuiteResult] = []
    questions: list[QuestionResult] = []
    for suite in suites:
        for protocol in settings.protocols:
            results = question_results(suite, protocol, samples)
            scores.append(suite_result(suite, protocol, settings.shots, results, truncated))
            questions += results
    return tuple(scores), tuple(questions)


def question_results(
    suite: Suite, protocol: Protocol, samples: Samples
) -> tuple[QuestionResult, ...]:
    """Return every question's result, in the order of subjects and questions."""
    results = []
    for subject in suite.subjects:
        by_number = {s["doc_id"]: s for s in samples[task_name(suite.name, protocol, subject.name)]}
        for number, question in enumerate(subject.test):
            results.append(_result(suite.name, protocol, subject, question, by_number[number]))
    return tuple(results)


def _result(
    suite: str, protocol: Protocol, subject: Subject, question: Question, sample: Mapping[str, Any]
) -> QuestionResult:
    read = _read_logits if protocol == "logit" else _read_text
    found = read(sample["filtered_resps"], question)
    return QuestionResult(
        suite=suite,
        protocol=protocol,
        subject=subject.name,
        id=question.id,
        question_sha256=question.sha256,
        prompt_sha256=sample["prompt_hash"][:16],
        gold=question.answer,
        correct=found["prediction"] == question.answer,
        **found,
    )


def _read_logits(responses: Sequence[Sequence[Any]], question: Question) -> dict[str, Any]:
    log_probs = [float(response[0]) for response in responses]
    best = max(range(len(log_probs)), key=log_probs.__getitem__)
    return {"prediction": LETTERS[best], "log_probs": tuple(log_probs)}


def _read_text(responses: Sequence[str], question: Question) -> dict[str, Any]:
    found = extract(responses[0], question.options)
    return {"prediction": found.letter, "answer": responses[0], "parsed": found.parsed}


def suite_result(
    suite: Suite,
    protocol: Protocol,
    shots: int,
    results: Sequence[QuestionResult],
    truncated: Iterable[str],
) -> SuiteResult:
    """Score the questions of one suite and protocol; ``truncated`` names the task of each cut."""
    tasks = {task_name(suite.name, protocol, subject.name) for subject in suite.subjects}
    categories = dict.fromkeys(name for subject in suite.subjects for name in subject.categories)
    return SuiteResult(
        suite=suite.name,
        protocol=protocol,
        questions_sha256=suite.sha256(shots),
        prompts_sha256=digest(result.prompt_sha256 for result in results),
        truncated=sum(task in tasks for task in truncated),
        overall=score(results),
        categories=tuple(_category(name, suite, results) for name in categories),
        subjects=tuple(_subject(subject, results) for subject in suite.subjects),
    )


def _category(name: str, suite: Suite, results: Sequence[QuestionResult]) -> CategoryScore:
    members = {subject.name for subject in suite.subjects if name in subject.categories}
    return CategoryScore(category=name, score=score([r for r in results if r.subject in members]))


def _subject(subject: Subject, results: Sequence[QuestionResult]) -> SubjectScore:
    return SubjectScore(
        subject=subject.name,
        title=subject.title,
        categories=subject.categories,
        score=score([result for result in results if result.subject == subject.name]),
    )
