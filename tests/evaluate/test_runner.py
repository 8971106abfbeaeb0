"""Whole evaluations: files, resuming, ranks, and bad input."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile, EvalSettings
from layertracer.evaluate.journal import Journal
from layertracer.evaluate.runner import run_evaluation
from layertracer.model_folder import ModelFolder

SETTINGS = EvalSettings(limit=2, protocols=("logit", "generate"), max_new_tokens=4)


@pytest.fixture(scope="module")
def made(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "eval"
    run_evaluation(model_folder, out, SETTINGS)
    return out


def test_the_record_is_whole_and_agrees_with_lm_evals_own(made: Path, model_folder: Path) -> None:
    record = EvalFile.load(made)
    assert record.model.fingerprint == ModelFolder(model_folder).fingerprint
    assert len(record.questions) == 2 * 16
    theirs = json.loads((made / "lm_eval.json").read_text("utf-8"))
    for protocol in ("logit", "generate"):
        suite = record.suite("builtin", protocol)
        ours = [q for q in record.questions if q.protocol == protocol]
        assert suite.overall.correct == sum(q.correct for q in ours)
        stock = theirs["groups"][f"builtin_{protocol}"]["acc,none"]
        assert suite.overall.accuracy == pytest.approx(stock)
        for subject in suite.subjects:
            stock = theirs["results"][f"builtin_{protocol}_{subject.subject}"]["acc,none"]
            assert subject.score.accuracy == pytest.approx(stock)
    assert all(len(q.log_probs) == 4 for q in record.questions if q.protocol == "logit")
    assert all(q.answer is not None and q.parsed for q in record.questions[16:17])


def test_nothing_is_left_beside_it(made: Path) -> None:
    assert [path.name for path in made.parent.iterdir()] == ["eval"]


def test_an_existing_evaluation_is_kept(made: Path, model_folder: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        run_evaluation(model_folder, made, SETTINGS)


def test_the_same_model_gives_the_same_answers(
    made: Path, model_folder: Path, tmp_path: Path
) -> None:
    again = run_evaluation(model_folder, tmp_path / "again", SETTINGS)
    first = EvalFile.load(made)
    assert again is not None
    assert [q.prediction for q in again.questions] == [q.prediction for q in first.questions]
    assert [s.prompts_sha256 for s in again.suites] == [s.prompts_sha256 for s in first.suites]


@pytest.mark.distributed
def test_two_ranks_give_the_same_answers(made: Path, model_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(port), "-m", "layertracer", "eval", str(model_folder)]
    command += ["--out", str(tmp_path / "two"), "--limit", "2", "--protocol", "logit,generate"]
    command += ["--max-new-tokens", "4"]
    root = Path(__file__).parents[2]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    two, one = EvalFile.load(tmp_path / "two"), EvalFile.load(made)
    assert two.versions.ranks == 2
    assert [q.prediction for q in two.questions] == [q.prediction for q in one.questions]
    for ours, theirs in zip(two.questions, one.questions, strict=True):
        if ours.log_probs:
            assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-4)


def test_a_killed_evaluation_goes_on_where_it_stopped(
    made: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, kept = Journal.put, []

    def put_ten(journal: Journal, key: str, answer: object) -> None:
        if len(kept) == 10:
            raise KeyboardInterrupt
        kept.append(key)
        put(journal, key, answer)

    monkeypatch.setattr(Journal, "put", put_ten)
    with pytest.raises(KeyboardInterrupt):
        run_evaluation(model_folder, tmp_path / "e", SETTINGS)
    assert not (tmp_path / "e").exists()
    monkeypatch.setattr(Journal, "put", lambda self, key, answer: kept.append(key))
    record = run_evaluation(model_folder, tmp_path / "e", SETTINGS)
    assert record is not None
    assert len(kept) == len(set(kept)) == 16 * 4 + 16
    expected = [q.prediction for q in EvalFile.load(made).questions]
    assert [q.prediction for q in record.questions] == expected


def run_cli(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["eval", *map(str, words)])
    if isinstance(done.exception, UserError):
        return 2, str(done.exception)
    return done.exit_code, done.output


def test_the_command_prints_chance_and_interval(model_folder: Path, tmp_path: Path) -> None:
    code, output = run_cli(
        model_folder, "--out", tmp_path / "e", "--limit", 1, "--prompt", "lm-eval", "--by-subject"
    )
    assert code == 0, output
    assert "25.0%" in output and "初中物理" in output and "wrote" in output
    assert EvalFile.load(tmp_path / "e").settings.prompt == "lm-eval"


def test_bad_input_is_one_clear_error(model_folder: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "e")
    assert run_cli(tmp_path / "none", *out) == (2, f"{tmp_path / 'none'}: no such model folder")
    assert "--tasks mmlu" in run_cli(model_folder, *out, "--tasks", "mmlu")[1]
    assert "--protocol" in run_cli(model_folder, *out, "--protocol", "guess")[1]
    assert "--chat-template" in run_cli(model_folder, *out, "--chat-template")[1]
    assert not (tmp_path / "e").exists()


def test_a_model_with_a_missing_weight_is_refused(model_folder: Path, tmp_path: Path) -> None:
    """transformers would go on with a random one."""
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(model_folder, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        run_evaluation(broken, tmp_path / "e", SETTINGS)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no evaluation"):
        EvalFile.load(tmp_path)
    (tmp_path / "eval.json").write_text("{", "utf-8")
    with pytest.raises(UserError, match="not valid JSON"):
        EvalFile.load(tmp_path)
    (tmp_path / "eval.json").write_text('{"format": "other"}', "utf-8")
    with pytest.raises(UserError, match=r"eval\.json: format"):
        EvalFile.load(tmp_path)
