"""Nothing half-written is ever taken for complete."""

import json

import pytest

from layertracer.errors import UserError
from layertracer.files import atomic_directory, atomic_file, write_json


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out.json"
    with pytest.raises(RuntimeError), atomic_file(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write_json(target, {"a": "汉字"})
    assert json.loads(target.read_text("utf-8")) == {"a": "汉字"}
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    target = tmp_path / "out"
    target.write_text("old")
    with pytest.raises(RuntimeError), atomic_file(target) as temporary:
        temporary.write_text("new")
        raise RuntimeError
    assert target.read_text() == "old"


def test_a_directory_appears_whole_and_says_what_made_it(tmp_path):
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_directory(target) as temporary:
        (temporary / "part").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic_directory(target, inputs={"model": "m"}) as temporary:
        (temporary / "part").write_text("whole")
    assert json.loads((target / "made_by.json").read_text())["inputs"] == {"model": "m"}
    assert (target / "part").read_text() == "whole"


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("x")
    with pytest.raises(UserError, match="exists already"), atomic_directory(target):
        pass
    assert (target / "precious").exists()
    with atomic_directory(target, overwrite=True):
        pass
    assert not (target / "precious").exists()
