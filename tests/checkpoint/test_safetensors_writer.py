"""Files that safetensors itself reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from layertracer.checkpoint.safetensors_writer import (
    Planned,
    file_names,
    split_into_files,
    write_file,
)


def test_written_file_reads_back(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "transposed": torch.randn(4, 6).half().T,
        "empty": torch.empty(0, 3),
    }
    planned = [Planned(name, tuple(t.shape), t.dtype) for name, t in tensors.items()]
    sizes = list(write_file(tmp_path / "x.safetensors", planned, tensors.values()))
    assert sizes == [60, 14, 48, 0]
    back = load_file(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    assert all(back[name].equal(tensors[name]) for name in tensors)


def test_tensor_unlike_its_plan_is_an_error(tmp_path: Path) -> None:
    planned = [Planned("a", (2, 2), torch.float32)]
    for wrong in (torch.zeros(4), torch.zeros(2, 2).half()):
        with pytest.raises(ValueError, match="a: made"):
            list(write_file(tmp_path / "x", planned, [wrong]))
    with pytest.raises(ValueError, match="shorter"):
        list(write_file(tmp_path / "x", planned, []))


def test_tensors_made_together_stay_together() -> None:
    def group(*sizes: int) -> list[Planned]:
        return [Planned("t", (size,), torch.float16) for size in sizes]

    groups = [group(50), group(20, 30), group(10), group(900), group(1)]
    assert split_into_files(groups, 200) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert split_into_files(groups[:2], 199) == [slice(0, 1), slice(1, 2)]


def test_names_are_those_of_transformers() -> None:
    assert file_names(1) == ["model.safetensors"]
    assert file_names(2)[1] == "model-00002-of-00002.safetensors"
