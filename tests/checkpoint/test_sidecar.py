"""The shape beside a checkpoint: every flag that Megatron's own arguments lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from layertracer.checkpoint.hf_config import megatron_shape
from layertracer.checkpoint.sidecar import FILE, SOURCE, MegatronShape, copy_sidecar
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder
from tests.checkpoint.tiny import save_tiny


def flags(tmp_path: Path, case: str) -> dict[str, str | None]:
    return megatron_shape(ModelFolder(save_tiny(tmp_path / case, case))).flags()


def test_flags_that_checkpoint_arguments_lose(tmp_path: Path) -> None:
    assert flags(tmp_path, "llama-tied")["--norm-epsilon"] == "1e-05"
    assert "--qk-layernorm" in flags(tmp_path, "qwen3")
    assert flags(tmp_path, "mistral-window")["--window-size"] == "(99,0)"
    scaled = flags(tmp_path, "llama3")
    assert "--use-rope-scaling" in scaled and scaled["--rope-scaling-factor"] == "32.0"
    assert flags(tmp_path, "llama-linear")["--rotary-seq-len-interpolation-factor"] == "4"


def test_flags_of_the_shape(tmp_path: Path) -> None:
    qwen = flags(tmp_path, "qwen2")
    assert "--add-qkv-bias" in qwen and "--untie-embeddings-and-output-weights" in qwen
    assert "--untie-embeddings-and-output-weights" not in flags(tmp_path, "qwen2-tied")
    # Megatron's own defaults for these are 0.1.
    assert (qwen["--attention-dropout"], qwen["--hidden-dropout"]) == ("0.0", "0.0")
    assert flags(tmp_path, "llama-wide-heads")["--kv-channels"] == "32"
    experts = flags(tmp_path, "qwen3-moe-softmax-first")
    assert experts["--num-experts"] == "4" and "--moe-router-pre-softmax" in experts
    assert "--moe-router-pre-softmax" not in flags(tmp_path, "mixtral")


def test_file_round_trip_and_copy(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "qwen3-moe")
    shape = to_megatron(model, tmp_path / "megatron")
    assert MegatronShape.load(tmp_path / "megatron") == shape
    copy_sidecar(tmp_path / "megatron", tmp_path / "run")
    assert MegatronShape.load(tmp_path / "run") == shape
    kept = (tmp_path / "run" / SOURCE / "config.json").read_bytes()
    assert kept == (model / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, f"has no {FILE}"),
        ("{", "not valid JSON"),
        ('{"family": "llama"}', "architecture: Field required"),
    ],
)
def test_damaged_file_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        MegatronShape.load(tmp_path)
    with pytest.raises(UserError, match="no such checkpoint folder"):
        MegatronShape.load(tmp_path / "nowhere")
