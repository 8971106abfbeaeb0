"""The data base of every evaluated checkpoint."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from layertracer.errors import UserError
from layertracer.evaluate.history import OVERALL, open_history
from tests.evaluate.conftest import made_up


def test_what_is_recorded_comes_back_by_step(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "history.sqlite"
    with open_history(file) as history:
        history.record("iter_20", 20, Path("e20"), made_up({"law": [True, False]}))
        history.record("iter_3", 3, Path("e3"), made_up({"law": [True, True]}))
    with open_history(file) as history:
        assert [one.name for one in history.checkpoints()] == ["iter_3", "iter_20"]
        found = [(r.checkpoint, r.subject, r.accuracy) for r in history.results()]
    assert found == [
        ("iter_3", OVERALL, 1.0),
        ("iter_3", "law", 1.0),
        ("iter_20", OVERALL, 0.5),
        ("iter_20", "law", 0.5),
    ]


def test_recording_again_replaces(tmp_path: Path) -> None:
    with open_history(tmp_path / "h") as history:
        history.record_failure("iter_1", 1, "truncated")
        assert not history.checkpoints()[0].done
        history.record("iter_1", 1, Path("e"), made_up({"law": [True]}))
        history.record("iter_1", 1, Path("e"), made_up({"logic": [False, False]}))
        (one,) = history.checkpoints()
        assert (one.done, one.detail, one.evaluation) == (True, "", "e")
        assert {r.subject for r in history.results()} == {OVERALL, "logic"}


def test_noise_is_kept_by_suite_and_protocol(tmp_path: Path) -> None:
    with open_history(tmp_path / "h") as history:
        history.record_noise("ceval", "logit", 100, 2)
        history.record_noise("ceval", "logit", 100, 1)
        assert history.noise() == {("ceval", "logit"): (100, 1)}


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a data base, but long enough to look at" * 50)
    with pytest.raises(UserError, match="not a usable history"), open_history(tmp_path / "text"):
        pass
    other = sqlite3.connect(tmp_path / "newer")
    other.execute("PRAGMA user_version = 7")
    other.close()
    with pytest.raises(UserError, match="version 7"), open_history(tmp_path / "newer"):
        pass
