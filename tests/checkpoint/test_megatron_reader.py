"""Reading checkpoints: damage is named, and no pickle runs code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint import save as dcp_save

from layertracer.checkpoint.megatron_reader import MegatronReader, iteration_folder
from layertracer.checkpoint.sidecar import MegatronShape
from layertracer.checkpoint.slots import Slot, slots
from layertracer.checkpoint.to_hf import to_hf
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.errors import UserError
from tests.checkpoint.tiny import save_tiny


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    to_megatron(save_tiny(tmp_path / "hf", "llama"), tmp_path / "megatron")
    return tmp_path / "megatron"


def refused(checkpoint: Path) -> str:
    """Export, expecting refusal with nothing left behind; return the message."""
    out = checkpoint.parent / "out"
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError) as error:
        to_hf(checkpoint, out)
    assert sorted(out.parent.iterdir()) == before
    return str(error.value)


def test_missing_and_truncated_files_name_a_tensor(checkpoint: Path) -> None:
    file = max((checkpoint / "release").glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-10])
    assert f"{file} is truncated: tensor " in refused(checkpoint)
    file.unlink()
    assert f"{file} is missing: it holds tensor " in refused(checkpoint)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle"])
def test_damaged_metadata(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "release" / ".metadata").write_bytes(content)
    assert ".metadata is damaged" in refused(checkpoint)


class Attack:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch attacked",)


def test_metadata_cannot_run_code(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint)
    (checkpoint / "release" / ".metadata").write_bytes(pickle.dumps(Attack()))
    assert "asks for posix.system: not loaded" in refused(checkpoint)
    assert not (checkpoint / "attacked").exists()


def test_which_iteration(checkpoint: Path) -> None:
    assert iteration_folder(checkpoint, None) == checkpoint / "release"
    with pytest.raises(UserError, match=r"iter_0000007: no complete checkpoint"):
        iteration_folder(checkpoint, 7)
    (checkpoint / "release").rename(checkpoint / "iter_0000007")
    assert iteration_folder(checkpoint, 7) == checkpoint / "iter_0000007"
    (checkpoint / "latest_checkpointed_iteration.txt").write_text("nonsense")
    with pytest.raises(UserError, match="'nonsense' is neither a step nor"):
        iteration_folder(checkpoint, None)
    with pytest.raises(UserError, match="no Megatron checkpoint there"):
        iteration_folder(checkpoint.parent, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 3}, r"is for \[2\] layers .*but the model has \[3\]"),
        ({"hidden_size": 32}, "another model's checkpoint"),
        ({"qkv_bias": True}, r"decoder\.layers\.self_attention\.linear_qkv\.bias is missing"),
        ({"ffn_hidden_size": 48}, r"linear_fc1\.weight has size \[192, 64\].*\[96, 64\]"),
        ({"vocab_size": 200}, r"embedding\.word_embeddings\.weight has size \[126, 64\]"),
    ],
)
def test_checkpoint_of_another_model(
    checkpoint: Path, changes: dict[str, int], message: str
) -> None:
    shape = MegatronShape.load(checkpoint).model_copy(update=changes)
    shape.save(checkpoint)
    with pytest.raises(UserError, match=message):
        to_hf(checkpoint, checkpoint.parent / "out")


def test_checkpoint_without_the_shape_or_the_source(checkpoint: Path) -> None:
    (checkpoint / "source" / "config.json").unlink()
    assert "source has no config.json" in refused(checkpoint)
    (checkpoint / "megatron_args.json").unlink()
    assert "has no megatron_args.json" in refused(checkpoint)


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> MegatronReader:
    dcp_save(tensors, storage_writer=FileSystemWriter(folder), no_dist=True)
    return MegatronReader(folder)


def test_layers_one_by_one_among_optimizer_state(checkpoint: Path, tmp_path: Path) -> None:
    """As runs of the training entry store them: no stacked tensor, and twice the optimizer's."""
    shape = MegatronShape.load(checkpoint)
    stacked = MegatronReader(checkpoint / "release")
    tensors: dict[str, torch.Tensor] = {}
    for slot in slots(shape):
        layer = f"decoder.layers.{slot.place[0]}." if slot.place else ""
        name = layer + slot.rule.megatron
        tensors[name] = stacked.read(slot)
        tensors[f"optimizer.state.exp_avg.{name}"] = torch.zeros(1)
    single = write(tmp_path / "single", tensors)
    for slot in slots(shape):
        single.check(slot)
        assert single.read(slot).equal(stacked.read(slot))


def test_rows_added_for_tensor_parallelism_are_cut(checkpoint: Path, tmp_path: Path) -> None:
    shape = MegatronShape.load(checkpoint)
    (slot, *_) = slots(shape)
    table = MegatronReader(checkpoint / "release").read(slot)
    padded = write(tmp_path / "padded", {slot.keys[0]: torch.cat([table, torch.ones(130, 64)])})
    padded.check(slot)
    assert slot.rule.fusion.split(padded.read(slot), shape)[0].equal(table)


def test_tensor_with_a_missing_chunk_is_not_made_up(checkpoint: Path) -> None:
    reader = MegatronReader(checkpoint / "release")
    slot = next(slot for slot in slots(MegatronShape.load(checkpoint)) if slot.place)
    del reader._tensors[slot.keys[0]].chunks[1]
    with pytest.raises(UserError, match=rf"tensor {slot.keys[0]} is incomplete"):
        reader.check(slot)


def test_an_expert_is_read_alone(tmp_path: Path) -> None:
    to_megatron(save_tiny(tmp_path / "hf", "mixtral"), tmp_path / "megatron")
    shape = MegatronShape.load(tmp_path / "megatron")
    reader = MegatronReader(tmp_path / "megatron" / "release")
    found = [slot for slot in slots(shape) if slot.place == (1, 2)]
    assert [reader.read(slot).shape for slot in found] == [(192, 64), (64, 96)]
    whole = Slot(found[0].rule, shape, (1,), (2,))
    assert reader.read(whole)[2].equal(reader.read(found[0]))
