"""Questions with four options, by subject and suite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

LETTERS = ("A", "B", "C", "D")
Layout = Literal["ceval", "cmmlu"]


@dataclass(frozen=True)
class Question:
    """A question, its four options and the right letter; ``id`` is unique in its subject."""

    id: str
    text: str
    options: tuple[str, str, str, str]
    answer: str

    @property
    def sha256(self) -> str:
        """16 digits that change with the text, an option or the answer."""
        return digest([self.text, *self.options, self.answer])[:16]

    def document(self) -> dict[str, str]:
        """Return the fields that the prompt templates name."""
        options = dict(zip(LETTERS, self.options, strict=True))
        return {"id": self.id, "question": self.text, **options, "answer": self.answer}


@dataclass(frozen=True)
class Subject:
    """One subject: what is asked (``test``) and the worked examples (``dev``)."""

    name: str
    title: str
    categories: tuple[str, ...]
    layout: Layout
    dev: tuple[Question, ...]
    test: tuple[Question, ...]


@dataclass(frozen=True)
class Suite:
    """Subjects that are reported together."""

    name: str
    subjects: tuple[Subject, ...]

    def sha256(self, shots: int) -> str:
        """Return a digest of every question asked and of the first ``shots`` worked examples."""
        parts = []
        for subject in self.subjects:
            parts += [subject.name, subject.title]
            parts += [q.sha256 for q in (*subject.dev[:shots], *subject.test)]
        return digest(parts)

    def limited(self, count: int | None) -> Suite:
        """Keep the first ``count`` questions of each subject; all of them where it is None."""
        kept = [
            Subject(s.name, s.title, s.categories, s.layout, s.dev, s.test[:count])
            for s in self.subjects
        ]
        return Suite(self.name, tuple(kept))


@cache
def known_subjects() -> dict[str, dict[str, tuple[str, tuple[str, ...]]]]:
    """Return title and categories of every official subject, by layout and name.

    Sources: ``subject_mapping.json`` of C-Eval (its Hard set: the paper, arXiv 2305.08322) and
    ``categories.py`` of CMMLU; titles as lm-eval's tasks spell them.
    """
    text = files("layertracer.evaluate").joinpath("subjects.json").read_text("utf-8")
    return {
        layout: {name: (s["title"], tuple(s["categories"])) for name, s in subjects.items()}
        for layout, subjects in json.loads(text).items()
    }


def digest(parts: Iterable[str]) -> str:
    """Return the SHA-256 of texts, with their borders."""
    return hashlib.sha256(json.dumps(list(parts), ensure_ascii=False).encode()).hexdigest()
