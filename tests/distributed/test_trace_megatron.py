"""The trace of a converted checkpoint, in Megatron under every layout, equals Hugging Face's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.trace.files import TraceFile, TraceSettings
from layertracer.trace.runner import run_trace
from tests.distributed.session import start
from tests.trace.conftest import save_model

pytestmark = pytest.mark.distributed

COMMON = {"num_prompts": 9, "shots": 1, "bootstrap": 20}
LAYOUTS = {
    "tensor": (["--tensor-model-parallel-size", "2"], {"perturbation": "mask"}),
    "pipeline": (["--pipeline-model-parallel-size", "2"], {"perturbation": "drop"}),
    "data": ([], {"perturbation": "noise", "noise_scale": 2.0}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random norms too, as a Hugging Face folder and as a checkpoint."""
    folder = tmp_path_factory.mktemp("megatron-trace")
    save_model(folder / "hf")
    model = AutoModelForCausalLM.from_pretrained(folder / "hf")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
    model.save_pretrained(folder / "hf")
    to_megatron(folder / "hf", folder / "megatron")
    return folder


def run(folder: Path, out: Path, layout: list[str], settings: dict) -> tuple[int, str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    arguments = ["--load", str(folder / "megatron"), "--out", str(out), "--batch-tokens=300"]
    log = out.with_name("log.txt")
    started = start("layertracer.trace.megatron", [*arguments, *layout, *flags], 2, log)
    try:
        started.wait(timeout=300)
    finally:
        started.terminate()
    return started.returncode, log.read_text("utf-8", errors="replace")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_numbers_as_hugging_face(folder: Path, tmp_path: Path, layout: str) -> None:
    flags, changes = LAYOUTS[layout]
    code, output = run(folder, tmp_path / "trace", flags, {**COMMON, **changes})
    assert code == 0, output[-6000:]
    found = TraceFile.load(tmp_path / "trace")
    expected = run_trace(folder / "hf", tmp_path / "expected", TraceSettings(**COMMON, **changes))
    ours, theirs = found.table(), expected.table()
    assert ours.text == theirs.text
    np.testing.assert_array_equal(ours.predicted, theirs.predicted)
    assert theirs.js.max() > 0.05
    for name in ("p", "js", "js_null"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-4)
    assert found.model.lens_difference < 1e-5
    assert not (tmp_path / "trace.partial").exists()
