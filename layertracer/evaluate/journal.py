"""Answers already computed, line by line on disk, so that a killed evaluation goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self, TextIO


class Journal:
    """Answers by request; every process appends to a file of its own, all of them are read.

    Args:
        folder: where the files are; None keeps nothing.
        rank: names this process's file.
        identity: what the answers depend on beside the request; answers of another are dropped.
    """

    def __init__(self, folder: Path | None = None, *, rank: int = 0, identity: str = "") -> None:
        self._answers: dict[str, Any] = {}
        self._file: TextIO | None = None
        self._path: Path | None = None
        self._identity = identity
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("answers-*.jsonl")):
                self._read(path)
            self._path = folder / f"answers-{rank}.jsonl"

    def __enter__(self) -> Self:
        """Begin to write: only when every process has read."""
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8")
            self._file.write("\n")  # ends a line that a killed process left half-written
        return self

    def __exit__(self, *_: object) -> None:
        """Stop writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def get(self, key: str) -> Any:
        """Return the answer to a request, or None."""
        return self._answers.get(key)

    def put(self, key: str, answer: Any) -> None:
        """Keep an answer."""
        self._answers[key] = answer
        if self._file is not None:
            self._file.write(json.dumps([self._identity, key, answer], ensure_ascii=False) + "\n")
            self._file.flush()

    def _read(self, path: Path) -> None:
        for line in path.read_text("utf-8", errors="replace").splitlines():
            try:
                identity, key, answer = json.loads(line)
            except ValueError:
                continue  # a line that was cut off
            if identity == self._identity:
                self._answers[key] = answer


def request_key(kind: str, arguments: tuple[Any, ...]) -> str:
    """Return a digest of a request."""
    text = json.dumps([kind, *arguments], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
