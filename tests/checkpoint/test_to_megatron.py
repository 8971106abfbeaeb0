"""Bad model folders: the tensor is named, and nothing half-written stays."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from layertracer.checkpoint.megatron_reader import MegatronReader
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.errors import UserError
from tests.checkpoint.tiny import edit_config, save_tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "hf", "llama")


def change(model: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors; ``__`` stands for a dot."""
    file = model / "model.safetensors"
    content = load_file(file)
    for key, tensor in tensors.items():
        name = key.replace("__", ".")
        content.pop(name, None)
        if tensor is not None:
            content[name] = tensor
    save_file(content, file)


def refused(model: Path, out: Path) -> str:
    """Convert, expecting refusal with nothing left behind; return the message."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError) as error:
        to_megatron(model, out)
    assert sorted(out.parent.iterdir()) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_tensor(model: Path, tmp_path: Path) -> None:
    change(model, model__layers__1__mlp__up_proj__weight=None)
    assert "model.layers.1.mlp.up_proj.weight is missing" in refused(model, tmp_path / "out")


def test_head_missing_though_untied_is_never_made_up(model: Path, tmp_path: Path) -> None:
    change(model, lm_head__weight=None)
    assert "tensor lm_head.weight is missing" in refused(model, tmp_path / "out")


def test_tensor_without_a_place(model: Path, tmp_path: Path) -> None:
    change(model, model__layers__1__mlp__extra__weight=torch.ones(3))
    assert "model.layers.1.mlp.extra.weight has no place" in refused(model, tmp_path / "out")


def test_bias_in_one_layer_only_is_not_dropped(model: Path, tmp_path: Path) -> None:
    change(model, model__layers__1__self_attn__q_proj__bias=torch.ones(64))
    assert "layers.1.self_attn.q_proj.bias has no place" in refused(model, tmp_path / "out")


def test_size_that_contradicts_the_config(model: Path, tmp_path: Path) -> None:
    edit_config(model, num_key_value_heads=4)
    message = refused(model, tmp_path / "out")
    assert "layers.0.self_attn.k_proj.weight has size [32, 64]" in message
    assert "config.json speaks of [64, 64]" in message


def test_truncated_file_names_the_tensor(model: Path, tmp_path: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    message = refused(model, tmp_path / "out")
    assert "is truncated" in message and "tensor model." in message


def test_index_that_names_a_tensor_no_file_holds(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "hf", "llama", max_shard_size="60KB")
    index = json.loads((model / "model.safetensors.index.json").read_text("utf-8"))
    (model / index["weight_map"]["model.norm.weight"]).unlink()
    assert "is in the index but no file" in refused(model, tmp_path / "out")


def test_existing_checkpoint_is_kept(model: Path, tmp_path: Path) -> None:
    to_megatron(model, tmp_path / "out")
    assert "exists already" in refused(model, tmp_path / "out")
    to_megatron(model, tmp_path / "out", overwrite=True)


def test_old_precomputed_frequencies_are_left_out(model: Path, tmp_path: Path) -> None:
    change(model, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    to_megatron(model, tmp_path / "out")


def limited(code: str, *arguments: Path, limit: int, kind: int) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python of its own under a resource limit."""

    def restrict() -> None:
        resource.setrlimit(kind, (limit, limit))

    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        preexec_fn=restrict,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_full_disk_leaves_nothing(model: Path, tmp_path: Path, threads: int) -> None:
    """A limit on file size stands for a full disk, also in the threads beside the main one."""
    code = (
        "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from layertracer.checkpoint.to_megatron import to_megatron\n"
        f"to_megatron(Path(sys.argv[1]), Path(sys.argv[2]), threads={threads})\n"
    )
    done = limited(code, model, tmp_path / "out", limit=60_000, kind=resource.RLIMIT_FSIZE)
    assert done.returncode != 0
    assert "out could not be written: " in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_threads_write_the_same_checkpoint(model: Path, tmp_path: Path) -> None:
    from layertracer.checkpoint.slots import slots

    shape = to_megatron(model, tmp_path / "one", threads=1)
    to_megatron(model, tmp_path / "four", threads=4)
    assert len(list((tmp_path / "four/release").glob("*.distcp"))) == 4
    one, four = (MegatronReader(tmp_path / name / "release") for name in ("one", "four"))
    assert all(one.read(slot).equal(four.read(slot)) for slot in slots(shape))
