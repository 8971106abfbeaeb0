"""Suites as lm-eval tasks and groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from datasets import Dataset
from lm_eval.api.group import Group
from lm_eval.api.task import ConfigurableTask
from lm_eval.config.group import GroupConfig

from layertracer.evaluate.extract import extract
from layertracer.evaluate.files import EvalSettings, Protocol
from layertracer.evaluate.prompts import STYLES
from layertracer.evaluate.questions import LETTERS, Subject, Suite

_MEAN = {"aggregation": "mean", "higher_is_better": True}


def task_name(suite: str, protocol: str, subject: str) -> str:
    """Return the name of a subject's task, for example ``cmmlu_logit_anatomy``."""
    return f"{suite}_{protocol}_{subject}"


def suite_group(suite: Suite, protocol: Protocol, settings: EvalSettings) -> Group:
    """Return one lm-eval group with a task for each subject; its mean is weighted by size."""
    config = GroupConfig(
        group=f"{suite.name}_{protocol}",
        aggregate_metric_list=[{"metric": "acc", "aggregation": "mean", "weight_by_size": True}],
    )
    group = Group.from_config(config)
    for subject in suite.subjects:
        group.add(subject_task(suite.name, subject, protocol, settings))
    return group


def subject_task(
    suite: str, subject: Subject, protocol: Protocol, settings: EvalSettings
) -> ConfigurableTask:
    """Return the lm-eval task of one subject."""
    style = STYLES[settings.prompt, subject.layout]
    config: dict[str, Any] = {
        "task": task_name(suite, protocol, subject.name),
        "custom_dataset": partial(_splits, subject),
        "test_split": "test",
        "num_fewshot": settings.shots,
        "description": style.description.format(title=subject.title),
        "doc_to_text": style.question,
        "target_delimiter": style.delimiter,
        "metadata": {"version": 1.0},
    }
    if subject.dev and settings.shots:
        config |= {"fewshot_split": "dev", "fewshot_config": {"sampler": "first_n"}}
    by_protocol: dict[Protocol, Callable[[EvalSettings], dict[str, Any]]] = {
        "logit": _by_logits,
        "generate": _by_generation,
    }
    return ConfigurableTask(config=config | by_protocol[protocol](settings))


def _splits(subject: Subject, **_: Any) -> dict[str, Dataset]:
    """Return the questions in memory: no file of the cache of ``datasets`` is written or read."""
    parts = {"dev": subject.dev, "test": subject.test}
    return {
        split: Dataset.from_list([question.document() for question in questions])
        for split, questions in parts.items()
    }


def _by_logits(settings: EvalSettings) -> dict[str, Any]:
    return {
        "output_type": "multiple_choice",
        "doc_to_choice": list(LETTERS),
        "doc_to_target": "{{['A', 'B', 'C', 'D'].index(answer)}}",
        "metric_list": [{"metric": "acc", **_MEAN}],
    }


def _by_generation(settings: EvalSettings) -> dict[str, Any]:
    stop = [] if settings.chat_template else ["\n\n", "\n题目："]
    return {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {
            "until": stop,
            "do_sample": False,
            "max_gen_toks": settings.max_new_tokens,
        },
        "process_results": _judge_text,
        "metric_list": [{"metric": "acc", **_MEAN}, {"metric": "extracted", **_MEAN}],
    }


def _judge_text(document: dict[str, str], results: list[str]) -> dict[str, float]:
    found = extract(results[0], [document[letter] for letter in LETTERS])
    return {
        "acc": float(found.letter == document["answer"]),
        "extracted": float(found.letter is not None),
    }
