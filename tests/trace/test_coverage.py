"""Every causal-LM class of the installed transformers, and the table in docs/."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from layertracer.trace.coverage import Coverage, Outcome, cover, markdown, model_types

TABLE = Path(__file__).parents[2] / "docs" / "trace_coverage.md"


@pytest.fixture(scope="module")
def rows() -> list[Coverage]:
    logging.disable(logging.WARNING)
    try:
        return [cover(*entry) for entry in model_types().items()]
    finally:
        logging.disable(logging.NOTSET)


def test_nearly_every_class_that_can_be_built_is_covered(rows: list[Coverage]) -> None:
    covered = sum(row.outcome is Outcome.COVERED for row in rows)
    refused = sum(row.outcome is Outcome.REFUSED for row in rows)
    assert covered >= 155
    assert refused <= 15


def test_refusals_say_why_in_the_projects_words(rows: list[Coverage]) -> None:
    known = ("its states", "its layers", "decoding its last", "its logits", "no list of")
    reasons = [row.detail for row in rows if row.outcome is Outcome.REFUSED]
    assert sum(reason.startswith(known) for reason in reasons) >= len(reasons) - 3


def test_the_table_in_docs_is_the_current_one(rows: list[Coverage]) -> None:
    """Details may differ with optional packages; outcomes don't."""
    assert outcomes(TABLE.read_text("utf-8")) == outcomes(markdown(rows)), (
        "run: python -m layertracer.trace.coverage docs/trace_coverage.md"
    )


def outcomes(table: str) -> list[list[str]]:
    return [line.split(" | ")[:3] for line in table.splitlines() if line.startswith("| ")]
