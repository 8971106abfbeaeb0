"""Nights in the life of a training run."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile, EvalSettings
from layertracer.evaluate.history import open_history
from layertracer.evaluate.nightly import process as process_module
from layertracer.evaluate.nightly.job import Status, run_nightly
from tests.evaluate.conftest import made_up
from tests.evaluate.nightly.conftest import TRACKER, Run


def names(run: Run) -> dict[str, str]:
    with open_history(run.job().history) as history:
        return {one.name: one.status for one in history.checkpoints()}


def test_new_checkpoints_are_evaluated_once_and_nothing_heavy_is_kept(run: Run) -> None:
    run.save(10)
    first = run_nightly(run.job())
    assert (first.status, first.summary) == (
        Status.FINE,
        "nightly: 1 new; no regression against iter_0000010",
    )
    run.save(20, amount=0.01)
    assert "1 new" in run_nightly(run.job()).summary
    before = run.job().evaluation("iter_0000010").stat().st_mtime_ns
    assert run_nightly(run.job()).summary.startswith("nightly: 0 new")
    assert run.job().evaluation("iter_0000010").stat().st_mtime_ns == before
    assert names(run) == {"iter_0000010": "done", "iter_0000020": "done"}
    assert run.job().dashboard.is_file()
    assert not list((run.job().out / "converted").iterdir())


def test_a_checkpoint_that_is_still_being_written_waits(run: Run) -> None:
    run.save(10)
    newer = run.save(20)
    (run.watch / TRACKER).write_text("10", "utf-8")
    run_nightly(run.job())
    assert list(names(run)) == ["iter_0000010"]
    (run.watch / TRACKER).write_text("20", "utf-8")
    (newer / ".metadata").rename(newer / "away")
    run_nightly(run.job())
    assert list(names(run)) == ["iter_0000010"]


def test_a_damaged_checkpoint_is_marked_and_the_rest_goes_on(run: Run) -> None:
    damaged = run.save(10)
    run.save(20)
    shard = max(damaged.glob("*.distcp"), key=lambda file: file.stat().st_size)
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    outcome = run_nightly(run.job())
    assert outcome.status is Status.FAILED
    assert "1 FAILED (iter_0000010)" in outcome.summary
    with open_history(run.job().history) as history:
        bad, good = history.checkpoints()
    assert not bad.done and "truncated" in bad.detail and good.done
    assert run_nightly(run.job()).status is Status.FINE  # reported once
    shard.write_bytes(whole)
    assert run_nightly(run.job(retry=True)).status is Status.FINE
    assert names(run) == {"iter_0000010": "done", "iter_0000020": "done"}


def record(run: Run, step: int, right: list[bool]) -> None:
    """Put an evaluation in the history, as an earlier night would have."""
    made = made_up({"law": right}, suite="builtin")
    made = made.model_copy(update={"settings": run.job().settings})
    folder = run.job().evaluation(f"iter_{step:07d}")
    folder.mkdir(parents=True)
    (folder / "eval.json").write_text(made.model_dump_json(), "utf-8")
    with open_history(run.job().history) as history:
        history.record(f"iter_{step:07d}", step, folder, made)


def test_a_fall_shown_by_the_paired_test_is_a_regression_until_it_is_mended(run: Run) -> None:
    run.watch.mkdir()
    record(run, 10, [True] * 50 + [False] * 50)
    record(run, 20, [True] * 20 + [False] * 80)
    outcome = run_nightly(run.job())
    assert outcome.status is Status.REGRESSION
    assert "REGRESSION at iter_0000020: builtin by logit 50.0% -> 20.0%" in outcome.summary
    assert run_nightly(run.job()).status is Status.REGRESSION  # nothing new: ends alike
    assert run_nightly(run.job(min_effect=0.4)).status is Status.FINE
    assert run_nightly(run.job(baseline="iter_0000020")).status is Status.FINE
    record(run, 30, [True] * 49 + [False] * 51)
    assert run_nightly(run.job()).status is Status.FINE
    page = run.job().dashboard.read_text("utf-8")
    assert "REGRESSION" in page and "iter_0000030" in page


def test_other_settings_than_the_baselines_are_refused_before_any_work(run: Run) -> None:
    run.save(10)
    run_nightly(run.job())
    run.save(20)
    with pytest.raises(UserError, match=r"other settings \(limit 1 -> 2\)"):
        run_nightly(run.job(settings=EvalSettings(limit=2)))
    assert list(names(run)) == ["iter_0000010"]


def test_the_baseline_may_be_one_of_tonights(run: Run) -> None:
    run.save(10)
    run.save(20)
    outcome = run_nightly(run.job(baseline="iter_0000020"))
    assert outcome.summary == "nightly: 2 new; no regression against iter_0000020"


def test_an_unknown_baseline_is_an_error_that_names_the_choices(run: Run) -> None:
    run.watch.mkdir()
    record(run, 10, [True])
    with pytest.raises(UserError, match=r"--baseline iter_7: not evaluated; .* iter_0000010"):
        run_nightly(run.job(baseline="iter_7"))


def test_the_noise_floor_is_measured_once(run: Run) -> None:
    run.save(10)
    run_nightly(run.job(noise=True))
    with open_history(run.job().history) as history:
        assert history.noise() == {("builtin", "logit"): (8, 0)}
    run.save(20)
    run_nightly(run.job(noise=True))
    assert not run.job().evaluation("iter_0000020-again").exists()


def test_two_at_once_the_second_leaves(run: Run) -> None:
    run.save(10)
    job = run.job()
    job.lock.parent.mkdir(parents=True)
    holder = job.lock.open("a+")
    fcntl.flock(holder, fcntl.LOCK_EX)
    outcome = run_nightly(job)
    assert outcome.status is Status.FINE and "already running" in outcome.summary
    assert not job.history.exists()
    holder.close()
    assert "1 new" in run_nightly(job).summary


def test_a_full_disk_stops_the_job_and_blames_no_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(10)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(process_module, "run_evaluation", full)
        with pytest.raises(UserError, match="no space left"):
            run_nightly(run.job())
    assert names(run) == {}
    assert run_nightly(run.job()).status is Status.FINE


def test_a_killed_job_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the evaluation and its record: the evaluation is used as it is."""
    run.save(10)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("layertracer.evaluate.history.History.record", killed)
        with pytest.raises(KeyboardInterrupt):
            run_nightly(run.job())
    made = EvalFile.load(run.job().evaluation("iter_0000010"))
    monkeypatch.setattr(process_module, "run_evaluation", None)
    assert run_nightly(run.job()).status is Status.FINE
    with open_history(run.job().history) as history:
        assert history.checkpoints()[0].fingerprint == made.model.fingerprint


def test_the_notify_command_gets_the_line(run: Run, tmp_path: Path) -> None:
    run.save(10)
    said = tmp_path / "said"
    command = f'cat > {said}; echo "$LAYERTRACER_STATUS" >> {said}'
    outcome = run_nightly(run.job(notify=command))
    assert said.read_text("utf-8").splitlines() == [outcome.summary, "fine"]


def test_a_failing_notify_command_changes_nothing_else(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    run.save(10)
    assert run_nightly(run.job(notify="exit 3")).status is Status.FINE
    assert "--notify-command ended with 3" in capfd.readouterr().err


def test_the_command_ends_with_the_status(run: Run) -> None:
    run.watch.mkdir()
    record(run, 10, [True] * 60)
    record(run, 20, [False] * 60)
    job = run.job()
    words = ["nightly", "--watch", str(run.watch), "--history", str(job.history)]
    words += ["--limit", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and done.output.startswith("nightly: 0 new; REGRESSION")
    missing = CliRunner().invoke(app, ["nightly", "--watch", str(run.watch / "no"), *words[3:]])
    assert isinstance(missing.exception, UserError)
    assert "no such folder" in str(missing.exception)
