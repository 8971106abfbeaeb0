from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_patches.tracker import TRACKER, Storage


def storage() -> Storage:
    return Storage(SimpleNamespace(open=open, answer=42))


def test_tracker_keeps_its_old_content_until_the_new_one_is_complete(tmp_path: Path) -> None:
    tracker = tmp_path / TRACKER
    tracker.write_text("10")
    with storage().open(str(tracker), "w") as stream:
        stream.write("20")
        stream.flush()
        assert tracker.read_text() == "10"
    assert tracker.read_text() == "20"
    assert list(tmp_path.iterdir()) == [tracker]


def test_tracker_keeps_its_old_content_when_writing_fails(tmp_path: Path) -> None:
    tracker = tmp_path / TRACKER
    tracker.write_text("10")
    with pytest.raises(OSError, match="full"), storage().open(str(tracker), "w"):
        raise OSError("disk full")
    assert tracker.read_text() == "10"


def test_other_files_and_functions_are_as_before(tmp_path: Path) -> None:
    with storage().open(str(tmp_path / "other"), "w") as stream:
        stream.write("text")
    with storage().open(str(tmp_path / "other")) as stream:
        assert stream.read() == "text"
    assert storage().answer == 42
