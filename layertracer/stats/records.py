"""Lines of JSON that grow with a run and survive being killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layertracer.files import atomic_file


class StepRecords:
    """A JSON-lines file in which each line belongs to a step.

    A resumed run writes some steps again: when it starts, lines after the step it goes on from are
    dropped, so that there are no doubled lines; a half-written last line is dropped too.
    """

    def __init__(self, file: Path, resume_from: int) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            self._keep(resume_from)
        self._stream = file.open("a", encoding="utf-8")

    def _keep(self, last_step: int) -> None:
        kept = []
        for line in self.file.read_text("utf-8").splitlines():
            try:
                step = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                continue
            if step <= last_step:
                kept.append(line)
        with atomic_file(self.file) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), "utf-8")

    def write(self, lines: list[dict[str, Any]]) -> None:
        """Append ``lines``, each with its ``step``, and hand them to the system at once."""
        self._stream.write("".join(json.dumps(line) + "\n" for line in lines))
        self._stream.flush()
