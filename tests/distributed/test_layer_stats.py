"""Gradient statistics per layer: the same in every layout, and true to the gradients."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.freeze_scenarios import LAYOUTS
from tests.distributed.session import Runs, torchrun
from tests.distributed.stats_scenarios import ARMS, STEPS

pytestmark = pytest.mark.distributed
QUANTITIES = ("grad_norm", "grad_max_abs", "weight_norm", "ratio")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    """The folder with each run's records, and what the ranks saw."""
    folder = tmp_path_factory.mktemp("stats")
    torchrun("stats_scenarios:one_process", folder, processes=1)
    return folder, torchrun("stats_scenarios:two_processes_and_nan", folder, processes=2)


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / name / "layertracer" / "stats.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("arm", ARMS)
def test_norms_are_those_of_the_gradients_themselves(measured, arm):
    folder, runs = measured
    gradients = runs[f"gradients-{arm}"][0]
    for line in lines(folder, f"one-{arm}"):
        squares = gradients[str(line["step"])]
        names = {
            "layer": str(line["layer"]),
            "embedding": "embedding.word_embeddings.weight",
            "final_norm": "decoder.final_layernorm.weight",
        }
        expected = squares.get(names[line["group"]])
        assert line["frozen"] == (expected is None)
        if expected is not None:
            assert line["grad_norm"] == pytest.approx(math.sqrt(expected), rel=1e-6)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_quantity_is_the_same_in_every_layout(measured, layout, arm):
    folder, _ = measured
    one, several = lines(folder, f"one-{arm}"), lines(folder, f"{layout}-{arm}")
    assert len(one) == len(several) == STEPS * (4 + 2)
    for expected, found in zip(one, several, strict=True):
        for key in ("step", "group", "layer", "frozen", "nonfinite"):
            assert found[key] == expected[key]
        for key in QUANTITIES:
            if expected[key] is None:
                assert found[key] is None
            else:
                assert found[key] == pytest.approx(expected[key], rel=1e-4), (key, expected)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_together_they_are_megatrons_own_norm(measured, layout, arm):
    folder, runs = measured
    for step in range(1, STEPS + 1):
        squares = sum(
            line["grad_norm"] ** 2
            for line in lines(folder, f"{layout}-{arm}")
            if line["step"] == step and not line["frozen"]
        )
        own = runs[f"{layout}-{arm}"][0].grad_norms[step - 1]
        assert math.sqrt(squares) == pytest.approx(own, rel=1e-5)


def test_a_nan_is_reported_at_its_layer(measured):
    folder, _ = measured
    first = [line for line in lines(folder, "nan") if line["step"] == 1]
    assert [line["layer"] for line in first if line["nonfinite"]] == [2]
