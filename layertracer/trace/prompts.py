"""Prompts for a trace: what one is, and choosing the asked-for number of them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from layertracer.errors import UserError

SOURCES = "builtin, antsynnet:FILE, cmmlu:DIR, ceval:DIR or FILE.jsonl"


class Language(StrEnum):
    """Language of the templates around word pairs and questions."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        text: ends where the answer begins.
        group: relation or subject, for grouped results.
        source: file and line, for messages.
        target: the right answer where it is known, as it follows ``text``.
    """

    text: str
    group: str
    source: str
    target: str | None = None


@dataclass(frozen=True)
class PromptChoice:
    """Which prompts to make.

    Attributes:
        source: one of SOURCES.
        count: number of prompts; all of them when there are fewer.
        shots: solved examples in front of each word pair.
        language: of the templates; None for the source's own.
    """

    source: str = "builtin"
    count: int = 500
    seed: int = 0
    shots: int = 5
    language: Language | None = None


def load_prompts(choice: PromptChoice) -> list[Prompt]:
    """Return the prompts of ``choice``, drawn without replacement by its seed.

    Raises:
        UserError: the source is unknown, missing, empty or damaged; the message names it.
    """
    from layertracer.trace import prompt_sources

    kind, _, place = choice.source.partition(":")
    if choice.source == "builtin":
        prompts = prompt_sources.builtin(choice)
    elif kind == "antsynnet":
        prompts = prompt_sources.antsynnet(Path(place), choice)
    elif kind in ("cmmlu", "ceval"):
        prompts = prompt_sources.questions(Path(place), choice)
    elif choice.source.endswith(".jsonl"):
        prompts = prompt_sources.jsonl(Path(choice.source))
    else:
        raise UserError(f"--prompts {choice.source}: give one of {SOURCES}")
    if not prompts:
        raise UserError(f"--prompts {choice.source}: holds no prompt")
    return draw(prompts, choice.count, choice.seed)


def draw(items: list[Any], count: int, seed: int) -> list[Any]:
    """Return ``count`` of ``items`` (all when there are fewer), chosen by ``seed``, in order."""
    if len(items) <= count:
        return items
    chosen = random.Random(seed).sample(range(len(items)), count)
    return [items[i] for i in sorted(chosen)]
