"""``layertracer convert`` from the command line: what it says, and without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from layertracer.cli import app
from tests.checkpoint.tiny import save_tiny


def convert(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)], catch_exceptions=False)


def test_there_and_back(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "qwen3", num_attention_heads=9, num_key_value_heads=3)
    out = convert("to-megatron", model, tmp_path / "megatron", "--tensor-parallel", 2).output
    assert "added 1 query group(s) of zeros" in out and "cast" not in out
    out = convert("to-hf", tmp_path / "megatron", tmp_path / "back").output
    assert f"wrote {tmp_path / 'back'} from {tmp_path / 'megatron' / 'release'}" in out
    assert "cast" not in out


def test_casting_is_said_both_ways(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama")
    out = convert("to-megatron", model, tmp_path / "megatron", "--dtype", "bfloat16").output
    assert "cast the weights from float32 to bfloat16" in out
    out = convert("to-hf", tmp_path / "megatron", tmp_path / "back").output
    assert "cast 21 tensor(s) from bfloat16 to float32" in out


def test_no_network_is_needed(tmp_path: Path) -> None:
    offline = ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*offline, "true"], check=False).returncode:
        pytest.skip("this machine makes no network namespaces")
    model = save_tiny(tmp_path / "hf", "llama-tied")
    command = [sys.executable, "-m", "layertracer", "convert", "to-megatron"]
    command += [str(model), str(tmp_path / "megatron")]
    done = subprocess.run([*offline, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
