"""Outputs are judged by what they are: whole, and of the model, plan and text that are there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.data.indexed import IndexedWriter
from layertracer.demo import judge
from layertracer.demo.step import State
from layertracer.files import atomic_directory, write_json
from layertracer.model_folder import ModelFolder
from layertracer.plan import FreezePlan, Phase

LAYERS = 2


def make_model(
    folder: Path,
    seed: int = 0,
    package: str = "p==1",
    vocab_size: int = 64,
    positions: int = 32,
) -> Path:
    """Write a Llama of a few thousand parameters, as if made from a package."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        max_position_embeddings=positions,
    )
    with atomic_directory(folder, inputs={"package": package}, overwrite=True) as unfinished:
        LlamaForCausalLM(config).save_pretrained(unfinished)
    return folder


@pytest.fixture
def weights(tmp_path):
    return make_model(tmp_path / "weights")


def cut(file: Path) -> None:
    """Drop the last bytes of ``file``."""
    os.truncate(file, file.stat().st_size - 8)


def older(file: Path, than: Path) -> None:
    """Make ``file`` older than another."""
    before = than.stat().st_mtime - 10
    os.utime(file, (before, before))


def test_a_package_folder_is_of_the_pinned_version_and_its_weights_whole(tmp_path, weights):
    assert judge.from_package(tmp_path / "none", "p==1")() is State.OPEN
    assert judge.from_package(weights, "p==1", model=True)() is State.DONE
    assert judge.from_package(weights, "p==2", model=True)() is State.STALE
    cut(weights / "model.safetensors")
    assert judge.from_package(weights, "p==1", model=True)() is State.STALE


def test_a_trace_is_of_the_weights_that_are_there(tmp_path, weights):
    file = tmp_path / "trace" / "trace.json"
    assert judge.of_model(file, weights)() is State.OPEN
    write_json(file, {"model": {"fingerprint": ModelFolder(weights).fingerprint}})
    assert judge.of_model(file, weights)() is State.DONE
    make_model(weights, seed=1)
    assert judge.of_model(file, weights)() is State.STALE
    file.write_text("{half")
    assert judge.of_model(file, weights)() is State.STALE


def test_nothing_is_of_weights_that_are_not_there(tmp_path):
    write_json(tmp_path / "trace" / "trace.json", {"model": {"fingerprint": None}})
    assert judge.of_model(tmp_path / "trace" / "trace.json", tmp_path / "none")() is State.STALE


def make_plan(file: Path, layer: int = 0, num_layers: int = LAYERS) -> Path:
    """Write a plan in which one layer trains."""
    FreezePlan(num_layers=num_layers, tied_embeddings=True, phases=(Phase(layers=(layer,)),)).save(
        file
    )
    return file


def test_an_edited_plan_stands_as_long_as_it_fits_the_model(tmp_path, weights):
    plan = tmp_path / "plan.json"
    assert judge.a_plan(plan, weights)() is State.OPEN
    for layer in range(LAYERS):
        assert judge.a_plan(make_plan(plan, layer), weights)() is State.DONE
    assert judge.a_plan(make_plan(plan, num_layers=9), weights)() is State.STALE
    plan.write_text("{}")
    assert judge.a_plan(plan, weights)() is State.STALE


def test_a_dataset_is_a_fitting_pair_no_older_than_its_text(tmp_path):
    source, prefix = tmp_path / "text", tmp_path / "news"
    source.touch()
    assert judge.a_dataset(prefix, source)() is State.OPEN
    with IndexedWriter(prefix, np.uint16) as writer:
        writer.add(np.array([1, 2]))
    assert judge.a_dataset(prefix, source)() is State.DONE
    older(tmp_path / "news.idx", source)
    assert judge.a_dataset(prefix, source)() is State.STALE
    older(source, tmp_path / "news.idx")
    (tmp_path / "news.bin").write_bytes(b"")
    assert judge.a_dataset(prefix, source)() is State.STALE


def test_a_conversion_is_of_the_weights_that_are_there(tmp_path, weights):
    megatron = tmp_path / "megatron"
    assert judge.a_conversion(megatron, weights)() is State.OPEN
    to_megatron(weights, megatron)
    assert judge.a_conversion(megatron, weights)() is State.DONE
    make_model(weights, seed=1)
    assert judge.a_conversion(megatron, weights)() is State.STALE


@pytest.fixture
def trained(tmp_path, weights):
    """What a run of 4 steps leaves for the judge to read."""
    folder = tmp_path / "cpt"
    to_megatron(weights, folder)
    (folder / "release").rename(folder / "iter_0000004")
    (folder / judge.TRACKER).write_text("4")
    make_plan(folder / "layertracer" / "plan.json")
    return folder


def test_a_training_is_of_this_model_and_plan_and_goes_on_when_short(tmp_path, weights, trained):
    plan = make_plan(tmp_path / "plan.json")
    assert judge.a_training(tmp_path / "none", plan, weights, 4)() is State.OPEN
    assert judge.a_training(trained, plan, weights, 4)() is State.DONE
    assert judge.a_training(trained, plan, weights, 6)() is State.OPEN
    assert judge.a_training(trained, plan, weights, 2)() is State.STALE
    make_plan(plan, layer=1)
    assert judge.a_training(trained, plan, weights, 4)() is State.STALE
    make_plan(plan)
    (trained / "iter_0000004" / ".metadata").unlink()
    assert judge.a_training(trained, plan, weights, 4)() is State.STALE


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, weights, trained):
    plan = make_plan(tmp_path / "plan.json")
    (trained / judge.TRACKER).unlink()
    assert judge.a_training(trained, plan, weights, 4)() is State.OPEN


def test_an_export_is_of_the_last_step_and_no_older_than_it(tmp_path, trained):
    hf = tmp_path / "hf"
    assert judge.an_export(hf, trained, 4)() is State.OPEN
    make_model(hf)
    write_json(hf / "made_by.json", {"inputs": {"checkpoint": str(trained / "iter_0000004")}})
    assert judge.an_export(hf, trained, 4)() is State.DONE
    assert judge.an_export(hf, trained, 6)() is State.STALE
    older(hf / "made_by.json", trained / judge.TRACKER)
    assert judge.an_export(hf, trained, 4)() is State.STALE


def test_a_report_is_no_older_than_what_it_shows(tmp_path):
    page, shown = tmp_path / "report.html", tmp_path / "trace.json"
    shown.write_text(json.dumps({}))
    assert judge.a_report(page, [shown])() is State.OPEN
    page.touch()
    assert judge.a_report(page, [shown])() is State.DONE
    older(page, shown)
    assert judge.a_report(page, [shown])() is State.STALE
    assert judge.a_report(page, [tmp_path / "missing"])() is State.STALE
