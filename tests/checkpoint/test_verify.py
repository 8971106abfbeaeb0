"""Verify says what differs, and where first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from layertracer.checkpoint.probe import EMBEDDING, LOGITS, layer_file, probe_tokens
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.checkpoint.verify import (
    Difference,
    OutputReport,
    compare_outputs,
    compare_weights,
    compare_with_hf,
    load_hf,
)
from layertracer.checkpoint.verify_table import print_outputs
from layertracer.cli import app
from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder
from tests.checkpoint.tiny import save_tiny

NAME = "model.layers.1.self_attn.v_proj.weight"


def flip_one_bit(model: Path, name: str) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors[name].view(torch.int32)[0, 0] ^= 1
    save_file(tensors, model / "model.safetensors")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    model = save_tiny(tmp_path / "hf", "llama")
    to_megatron(model, tmp_path / "megatron")
    return model, tmp_path / "megatron"


def test_one_bit_is_seen_and_named(pair: tuple[Path, Path]) -> None:
    assert not compare_weights(*pair).different
    flip_one_bit(pair[0], NAME)
    assert list(compare_weights(*pair).different) == [NAME]


def test_swapped_gate_and_up_are_seen(pair: tuple[Path, Path]) -> None:
    """Same shapes, same sums: only the places differ."""
    file = pair[0] / "model.safetensors"
    tensors = load_file(file)
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]
    save_file(tensors, file)
    assert list(compare_weights(*pair).different) == [gate, up]


def test_other_type_is_cast_before_comparing(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama", dtype=torch.bfloat16)
    to_megatron(model, tmp_path / "megatron", dtype="float32")
    report = compare_weights(model, tmp_path / "megatron")
    assert report.cast == report.tensors and not report.different


def test_folder_of_another_model_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", "llama", hidden_size=32)
    with pytest.raises(UserError, match=r"embed_tokens\.weight has size"):
        compare_weights(other, pair[1])


def record(model: Path, tokens: torch.Tensor, out: Path) -> None:
    """Write what Hugging Face computes in the files that Megatron's run would leave."""
    hf = load_hf(model)
    out.mkdir()
    files = {hf.get_input_embeddings(): EMBEDDING}
    files |= {layer: layer_file(number) for number, layer in enumerate(hf.model.layers)}
    for module, name in files.items():

        def write(_module: object, _inputs: object, output: object, name: str = name) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            torch.save(hidden.reshape(-1, 64), out / name)

        module.register_forward_hook(write)
    with torch.no_grad():
        torch.save(hf(tokens[None]).logits[0], out / LOGITS)


def test_first_layer_that_differs_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    model = pair[0]
    tokens = probe_tokens(ModelFolder(model), 20)
    record(model, tokens, tmp_path / "recorded")
    report = compare_with_hf(load_hf(model), tokens, tmp_path / "recorded")
    assert [place.place for place in report.places] == ["embedding", "layer 0", "layer 1", "logits"]
    assert report.first_beyond(1e-6) is None
    tensors = load_file(model / "model.safetensors")
    tensors[NAME] += 0.1
    save_file(tensors, model / "model.safetensors")
    report = compare_with_hf(load_hf(model), tokens, tmp_path / "recorded")
    first = report.first_beyond(1e-6)
    assert first is not None and first.place == "layer 1"
    assert report.logits.difference > 1e-4


def test_not_a_number_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    places = (Difference("layer 0", float("nan"), 1.0), Difference("logits", float("nan"), 1.0))
    assert not print_outputs([OutputReport(8, places)], 1e-4)
    assert "the first place that differs is layer 0" in capsys.readouterr().out


def test_text_of_a_real_tokenizer_or_random_tokens(pair: tuple[Path, Path]) -> None:
    tokens = probe_tokens(ModelFolder(pair[0]), 300)
    assert tokens.equal(probe_tokens(ModelFolder(pair[0]), 300))
    assert tokens.max() < 126 and len(tokens.unique()) > 50


def test_length_beyond_the_context_is_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"--tokens 9000: the model's context is shorter"):
        compare_outputs(*pair, lengths=[9000])


def test_command_on_weights_alone(pair: tuple[Path, Path]) -> None:
    command = ["convert", "verify", str(pair[0]), str(pair[1]), "--no-logits"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0 and "21 tensors, all equal bit by bit" in done.output
    flip_one_bit(pair[0], NAME)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1 and NAME in done.output


@pytest.mark.distributed
def test_command_runs_megatron(pair: tuple[Path, Path]) -> None:
    """Whole: two processes of Megatron, and a tensor whose loss shows from layer 1 on."""
    tensors = load_file(pair[0] / "model.safetensors")
    tensors[NAME] += 0.1
    save_file(tensors, pair[0] / "model.safetensors")
    command = ["convert", "verify", str(pair[0]), str(pair[1]), "--tokens", "64", "--tp", "2"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "the first place that differs is layer 1" in done.output


@pytest.mark.distributed
def test_checkpoint_that_megatron_cannot_load_is_one_line(pair: tuple[Path, Path]) -> None:
    (pair[1] / "release" / "metadata.json").unlink()
    with pytest.raises(UserError) as error:
        compare_outputs(*pair, lengths=[16])
    assert "\n" not in str(error.value)
