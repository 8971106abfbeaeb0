import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.errors import UserError
from layertracer.trace import metrics
from layertracer.trace.compare import compare
from layertracer.trace.files import TraceFile, TraceSettings
from layertracer.trace.runner import run_trace
from tests.trace.conftest import save_model

SETTINGS = TraceSettings(num_prompts=16, bootstrap=50, shots=1)


@pytest.fixture(scope="module")
def before(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return run_trace(llama_folder, tmp_path_factory.mktemp("a") / "before", SETTINGS)


@pytest.fixture(scope="module")
def after(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    """The same model with its layer 2 turned up."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("b")
    model = AutoModelForCausalLM.from_pretrained(llama_folder)
    with torch.no_grad():
        for parameter in model.model.layers[2].parameters():
            parameter.mul_(4)
    model.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(llama_folder).save_pretrained(folder / "model")
    return run_trace(folder / "model", folder / "after", SETTINGS)


def test_differences_are_second_minus_first_prompt_by_prompt(
    before: TraceFile, after: TraceFile
) -> None:
    found = compare(before, after)
    assert found.paired and not found.other_settings
    change = metrics.sensitivity(after.table().js) - metrics.sensitivity(before.table().js)
    for layer in found.layers:
        assert layer.ls.mean == pytest.approx(change[:, layer.layer].mean())
        assert layer.ls.low <= layer.ls.mean <= layer.ls.high
    assert found.layers[2].clear
    assert not found.layers[0].clear and not found.layers[1].clear
    assert found.ls_drift.mean > 0


def test_a_trace_equals_itself(before: TraceFile) -> None:
    found = compare(before, before)
    assert all(layer.ls.low == layer.ls.high == 0 for layer in found.layers)
    assert found.ls_drift.high == 0 and found.same_answer == 1
    assert found.ls_correlation.mean == pytest.approx(1)
    assert found.task_particle.mean == 0


def test_different_prompts_are_compared_unpaired_with_wider_intervals(
    llama_folder: Path, before: TraceFile, after: TraceFile, tmp_path: Path
) -> None:
    changed = SETTINGS.model_copy(update={"seed": 3})
    other = run_trace(llama_folder, tmp_path / "other", changed)
    found = compare(before, other)
    assert not found.paired and found.same_answer is None
    assert found.other_settings == ["seed: 0, 3"]
    width = np.mean([layer.ls.high - layer.ls.low for layer in found.layers[:2]])
    paired = np.mean([layer.ls.high - layer.ls.low for layer in compare(before, after).layers[:2]])
    assert width > paired


def test_models_of_different_depth_are_refused(before: TraceFile, tmp_path: Path) -> None:
    shallow = save_model(tmp_path / "model", num_hidden_layers=2)
    other = run_trace(shallow, tmp_path / "out", SETTINGS)
    with pytest.raises(UserError, match="4 and 2 layers"):
        compare(before, other)


def test_the_command_writes_page_and_numbers(
    before: TraceFile, after: TraceFile, tmp_path: Path
) -> None:
    out = tmp_path / "compare.html"
    arguments = ["compare", str(before._folder), str(after._folder), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "layers whose sensitivity changed clearly: 2" in result.output
    numbers = json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert len(numbers["layers"]) == 4 and "compare-ls-change" in out.read_text("utf-8")
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, UserError) and "exists already" in str(again.exception)
