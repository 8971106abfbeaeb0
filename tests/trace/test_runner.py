"""Whole traces: files, resuming, reproducibility, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from layertracer.errors import UserError
from layertracer.trace import metrics, runner
from layertracer.trace.files import TraceFile, TraceSettings
from layertracer.trace.prepare import batches
from layertracer.trace.runner import run_trace
from tests.trace.conftest import byte_tokenizer, save_model

FEW = {"num_prompts": 12, "bootstrap": 50, "shots": 1}


def settings(**changes) -> TraceSettings:
    return TraceSettings(**{**FEW, **changes})


@pytest.fixture(scope="module")
def traced(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TraceFile:
    return run_trace(llama_folder, tmp_path_factory.mktemp("trace") / "out", settings())


def test_the_folder_holds_json_parquet_and_what_made_it(traced: TraceFile) -> None:
    folder = traced._folder
    assert {path.name for path in folder.iterdir()} == {
        "trace.json", "trace.parquet", "prompts.parquet", "made_by.json",
    }  # fmt: skip
    content = json.loads((folder / "trace.json").read_text("utf-8"))
    assert content["model"]["fingerprint"] == traced.model.fingerprint
    assert content["model"]["lens_difference"] <= 1e-5
    assert not list(folder.parent.glob("*.partial")) and not list(folder.parent.glob(".*"))


def test_parquet_has_a_row_for_every_prompt_and_depth(traced: TraceFile) -> None:
    long = pq.read_table(traced._folder / "trace.parquet").to_pandas()
    assert list(long.columns) == ["prompt", "layer", "p_target", "ratio", "js", "djs", "js_null"]
    assert len(long) == 12 * 5
    assert sorted(long.layer.unique()) == [-1, 0, 1, 2, 3], "-1 is the embedding output"
    of_embedding = long[long.layer == -1]
    assert of_embedding.ratio.isna().all() and of_embedding.djs.isna().all()
    first = long[long.prompt == 0]
    np.testing.assert_allclose(first.djs.to_numpy()[1:], np.diff(first.js), atol=1e-12)


def test_aggregates_follow_from_the_table(traced: TraceFile) -> None:
    table = traced.table()
    ls = metrics.sensitivity(table.js).mean(axis=0)
    for layer in traced.layers:
        assert layer.ls.mean == pytest.approx(ls[layer.layer])
        assert layer.ls.low <= layer.ls.mean <= layer.ls.high
        assert layer.p_target.mean == pytest.approx(table.p[:, layer.layer + 1].mean())
    assert [b.boundary for b in traced.boundaries] == [1, 2, 3]
    for boundary in traced.boundaries:
        b = boundary.boundary
        assert boundary.score.mean == pytest.approx(ls[:b].mean() - ls[b:].mean())
    best = max(traced.boundaries, key=lambda b: b.score.mean)
    assert traced.best_boundary == best.boundary == metrics.best_boundary(traced)
    assert sum(b.best_share for b in traced.boundaries) == pytest.approx(1)
    for name in ("task_particle", "onset", "largest_rise"):
        assert sum(getattr(la, f"{name}_share") for la in traced.layers) == pytest.approx(1)
    particle = metrics.task_particle(table.p)
    assert traced.task_particle.mean.mean == pytest.approx(particle.mean())
    assert sum(group.prompts for group in traced.groups) == 12


def test_same_seed_same_numbers_whatever_the_batch_size(
    llama_folder: Path, traced: TraceFile, tmp_path: Path
) -> None:
    other = run_trace(llama_folder, tmp_path / "b", settings(), batch_tokens=1).table()
    first = traced.table()
    for name in ("p", "js", "js_null"):
        np.testing.assert_allclose(getattr(other, name), getattr(first, name), atol=1e-5)
    changed = run_trace(llama_folder, tmp_path / "c", settings(seed=1)).table()
    assert changed.text != first.text


class Killed(Exception):
    pass


def test_a_killed_trace_does_the_rest_on_the_next_start(
    llama_folder: Path, traced: TraceFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, sizes = runner.measure, []

    def counting(model, batch, *args, **rest):
        if sum(sizes) >= 8 and len(sizes) == 8:
            raise Killed
        sizes.append(len(batch))
        return own(model, batch, *args, **rest)

    monkeypatch.setattr(runner, "measure", counting)
    with pytest.raises(Killed):
        run_trace(llama_folder, tmp_path / "out", settings(), batch_tokens=1)
    assert not (tmp_path / "out").exists() and (tmp_path / "out.partial").is_dir()
    done = len(sizes)
    # A batch whose file was damaged by the kill is measured again.
    sorted((tmp_path / "out.partial").glob("*.npz"))[0].write_bytes(b"PK")
    sizes.append(0)
    resumed = run_trace(llama_folder, tmp_path / "out", settings(), batch_tokens=400)
    assert sum(sizes[done:]) == 12 - 8 + 1
    np.testing.assert_allclose(resumed.table().js, traced.table().js, atol=1e-5)
    assert resumed.table().text == traced.table().text
    assert not (tmp_path / "out.partial").exists()


def test_what_was_measured_under_other_settings_is_not_reused(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, measured = runner.measure, []

    def stopping(model, batch, *args, **rest):
        if len(measured) == 2:
            raise Killed
        measured.append(len(batch))
        return own(model, batch, *args, **rest)

    monkeypatch.setattr(runner, "measure", stopping)
    with pytest.raises(Killed):
        run_trace(llama_folder, tmp_path / "out", settings(), batch_tokens=1)
    monkeypatch.setattr(runner, "measure", own)
    other = run_trace(llama_folder, tmp_path / "out", settings(fraction=0.9))
    fresh = run_trace(llama_folder, tmp_path / "fresh", settings(fraction=0.9))
    np.testing.assert_allclose(other.table().js, fresh.table().js, atol=1e-6)


@pytest.mark.parametrize("model_type", ["gpt2", "gemma2", "mamba2", "qwen3_next"])
@pytest.mark.parametrize("perturbation", ["mask", "drop", "noise"])
def test_other_families_give_sane_traces(
    tmp_path: Path, model_type: str, perturbation: str
) -> None:
    folder = save_model(tmp_path / "model", model_type, bos=False)
    made = run_trace(
        folder, tmp_path / "out", settings(num_prompts=4, shots=0, perturbation=perturbation)
    )
    table = made.table()
    assert table.p.shape == (4, made.model.num_layers + 1)
    assert (table.js >= 0).all() and (table.js <= np.log(2)).all()
    assert table.js[:, 1:].max() > 0, "the disturbance reaches the answer"
    assert (table.target == table.predicted).all()


def test_odd_prompts(llama_folder: Path, tmp_path: Path) -> None:
    """One token, equal ones, Chinese, one with a target that is not the model's answer."""
    file = tmp_path / "odd.jsonl"
    records = [{"prompt": "a"}, {"prompt": "same"}, {"prompt": "same"}, {"prompt": "你好，世界"}]
    file.write_text("\n".join(json.dumps(record) for record in records), "utf-8")
    made = run_trace(llama_folder, tmp_path / "out", settings(prompts=str(file)))
    assert (made.prompts.count, made.prompts.duplicates, made.prompts.without_context) == (4, 1, 1)
    assert made.prompts.accuracy is None
    table = made.table()
    np.testing.assert_allclose(table.p[1], table.p[2], atol=1e-6)
    assert np.abs(table.js[0]).max() < 1e-6


def test_one_prompt_and_no_null_control(llama_folder: Path, tmp_path: Path) -> None:
    made = run_trace(llama_folder, tmp_path / "out", settings(num_prompts=1, null_control=False))
    assert made.table().js_null is None
    assert made.layers[0].js_null is None and made.boundaries[0].score_null is None
    assert made.layers[0].ls.low == pytest.approx(made.layers[0].ls.high)


def test_prompts_beyond_the_context_length(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", "gpt2", n_positions=32, max_position_embeddings=32)
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"prompt": "x" * 50}), "utf-8")
    with pytest.raises(UserError, match=r"prompt 1 .*long.jsonl:1\) has 51 tokens.*--truncate"):
        run_trace(folder, tmp_path / "out", settings(prompts=str(file)))
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    made = run_trace(folder, tmp_path / "out", settings(prompts=str(file), truncate=True))
    assert made.prompts.longest == 32


def test_given_targets_must_be_there(llama_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "target": "b"}\n{"prompt": "c"}', "utf-8")
    with pytest.raises(UserError, match=r"--target given: prompt 2 .*has no target"):
        run_trace(llama_folder, tmp_path / "o", settings(prompts=str(file), target="given"))


def test_bad_folders_are_named_and_leave_nothing(llama_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model folder"):
        run_trace(tmp_path / "absent", tmp_path / "out", settings())
    bert = save_model(tmp_path / "bert", "bert")
    config = json.loads((bert / "config.json").read_text("utf-8"))
    config["architectures"] = ["BertForMaskedLM"]
    (bert / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UserError, match="not a causal language model"):
        run_trace(bert, tmp_path / "out", settings())
    silent = save_model(tmp_path / "silent")
    (silent / "tokenizer.json").unlink()
    (silent / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="its tokenizer can't be loaded"):
        run_trace(silent, tmp_path / "out", settings())
    with pytest.raises(UserError, match="--device cuda:99: not available"):
        run_trace(llama_folder, tmp_path / "out", settings(), device="cuda:99")
    assert not (tmp_path / "out").exists()


def test_an_existing_trace_is_kept_unless_told(llama_folder: Path, traced: TraceFile) -> None:
    before = (traced._folder / "trace.json").read_bytes()
    with pytest.raises(UserError, match="exists already"):
        run_trace(llama_folder, traced._folder, settings())
    assert (traced._folder / "trace.json").read_bytes() == before


def test_batches_go_longest_first_within_the_token_budget() -> None:
    from layertracer.trace.encoding import encode_prompts
    from layertracer.trace.prompts import Prompt

    texts = ["x" * n for n in (3, 9, 1, 30, 9, 4)]
    prompts = encode_prompts(
        [Prompt(t, "all", "x") for t in texts], byte_tokenizer(bos=False), limit=None,
        vocab_size=320, truncate=False,
    )  # fmt: skip
    made = list(batches(prompts, variants=2, batch_tokens=40))
    assert [[len(p) for p in batch] for batch in made] == [[30], [9, 9], [4, 3, 1]]


def test_bfloat16_is_close_to_float32(
    llama_folder: Path, traced: TraceFile, tmp_path: Path
) -> None:
    made = run_trace(llama_folder, tmp_path / "out", settings(dtype="bfloat16"))
    assert made.settings.dtype == "bfloat16"
    np.testing.assert_allclose(made.table().p, traced.table().p, rtol=0.1, atol=1e-3)
