"""Which causal-LM classes of the installed transformers can be traced.

``python -m layertracer.trace.coverage docs/trace_coverage.md`` builds each class tiny, with random
weights, tries to read it through its own head, and writes the table.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from layertracer.errors import UserError
from layertracer.files import atomic_file
from layertracer.trace.model import trace_model
from layertracer.trace.tiny_models import CannotBuild, tiny_model


class Outcome(StrEnum):
    """What became of a class."""

    COVERED = "covered"
    REFUSED = "refused"
    NOT_BUILT = "not built"


@dataclass(frozen=True)
class Coverage:
    """One class: the outcome, and why when it isn't covered."""

    model_type: str
    architecture: str
    outcome: Outcome
    detail: str


def model_types() -> dict[str, str]:
    """Return every causal-LM model type of transformers and its class name."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return dict(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()))


def cover(model_type: str, architecture: str) -> Coverage:
    """Build one class tiny and try to trace it."""
    try:
        model = tiny_model(model_type)
    except CannotBuild as error:
        return Coverage(model_type, architecture, Outcome.NOT_BUILT, _short(error))
    try:
        traced = trace_model(model, model_type)
    except UserError as error:
        reason = str(error).split("can't be traced: ")[1].split(". The trace needs")[0]
        return Coverage(model_type, architecture, Outcome.REFUSED, _short(reason))
    kinds = ", ".join(sorted(set(traced.layer_kinds)))
    return Coverage(model_type, architecture, Outcome.COVERED, kinds)


def _short(reason: object) -> str:
    text = " ".join(str(reason).replace("|", "/").split())
    return text if len(text) <= 110 else f"{text[:107]}..."


def markdown(rows: Iterable[Coverage]) -> str:
    """Return the table as a page."""
    from transformers import __version__

    rows = list(rows)
    count = {outcome: sum(row.outcome is outcome for row in rows) for outcome in Outcome}
    lines = [
        "# What the trace covers",
        "",
        f"Every causal-LM class of transformers {__version__}, built tiny with random weights by "
        "`python -m layertracer.trace.coverage docs/trace_coverage.md`: "
        f"{count[Outcome.COVERED]} covered, {count[Outcome.REFUSED]} refused with a message, "
        f"{count[Outcome.NOT_BUILT]} not built (they need a config of their own; most are "
        "multimodal wrappers whose text model has its own line).",
        "",
        "Covered means: the logits that the lens makes from the state after the last block equal "
        "the model's own to 1e-5, depend on nothing else, and padding changes no state.",
        "",
        "| model type | class | outcome | layer kinds, or why not |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.model_type} | {row.architecture} | {row.outcome} | {row.detail} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Write the table to ``path``."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows = [cover(*entry) for entry in model_types().items()]
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(markdown(rows), "utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1])
