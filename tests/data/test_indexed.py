"""The written pair is what Megatron reads, and is there whole or not at all."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layertracer.data.indexed import IndexedWriter, check_pair, smallest_dtype, with_suffix
from layertracer.errors import UserError

DOCUMENTS = [[1, 2, 3], [65535], [0, 7]]


def write(prefix, documents=DOCUMENTS, dtype=np.uint16):
    with IndexedWriter(prefix, dtype) as writer:
        for document in documents:
            writer.add(np.array(document))
    return prefix


@settings(deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 65535), min_size=1), min_size=1),
    dtype=st.sampled_from([np.uint16, np.int32]),
)
def test_both_files_are_byte_for_byte_those_of_megatrons_builder(
    tmp_path_factory, documents, dtype
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    folder = tmp_path_factory.mktemp("both")
    builder = IndexedDatasetBuilder(str(folder / "megatron.bin"), dtype=dtype)
    for document in documents:
        builder.add_document(np.array(document), [len(document)])
    builder.finalize(str(folder / "megatron.idx"))
    write(folder / "ours", documents, dtype)
    for suffix in (".bin", ".idx"):
        ours, theirs = (folder / f"{name}{suffix}" for name in ("ours", "megatron"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_index_is_written_in_blocks(tmp_path, monkeypatch, read_back):
    monkeypatch.setattr("layertracer.data.indexed._INDEX_BLOCK", 2)
    documents = [[i] * (i + 1) for i in range(7)]
    assert read_back(write(tmp_path / "a", documents)) == documents


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.int32), (151936, np.int32)]
)
def test_the_type_holds_every_id(vocab_size, dtype):
    assert smallest_dtype(vocab_size) is dtype
    assert np.iinfo(dtype).max >= vocab_size - 1


@pytest.mark.parametrize("wrong", [[65536], [-1]])
def test_an_id_that_does_not_fit_is_never_wrapped(tmp_path, wrong):
    with pytest.raises(ValueError, match="does not fit uint16"):
        write(tmp_path / "a", [[1], wrong])
    assert list(tmp_path.iterdir()) == []


def test_lengths_must_be_those_of_the_tokens(tmp_path):
    for lengths in ([2], [3, 0], [4, -1]):
        with (
            pytest.raises(ValueError, match="lengths"),
            IndexedWriter(tmp_path / "a", np.uint16) as writer,
        ):
            writer.add_many(np.array([1, 2, 3]), lengths)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_pair_untouched(tmp_path, read_back):
    prefix = write(tmp_path / "a")
    with pytest.raises(RuntimeError), IndexedWriter(prefix, np.uint16) as writer:
        writer.add(np.array([9]))
        raise RuntimeError
    assert read_back(prefix) == DOCUMENTS
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_new_tokens_never_lie_under_an_old_index(tmp_path, monkeypatch):
    prefix = write(tmp_path / "a")

    def full_disk(path, value):
        raise OSError("No space left on device")

    monkeypatch.setattr("layertracer.data.indexed.write_json", full_disk)
    with pytest.raises(OSError, match="No space"), IndexedWriter(prefix, np.uint16) as writer:
        writer.add(np.array([9]))
        writer.facts = {"tokens": 1}
    assert not with_suffix(prefix, ".idx").exists()


def test_names_with_dots_stay_whole(tmp_path):
    write(tmp_path / "zh.v1.2")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["zh.v1.2.bin", "zh.v1.2.idx"]


def test_a_pair_that_does_not_fit_is_refused(tmp_path):
    prefix = write(tmp_path / "a")
    assert check_pair(prefix) == len(DOCUMENTS)
    index, tokens = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
    whole_index, whole_tokens = index.read_bytes(), tokens.read_bytes()
    tokens.write_bytes(whole_tokens[:-2])
    with pytest.raises(UserError, match="do not fit"):
        check_pair(prefix)
    tokens.write_bytes(whole_tokens)
    for damaged, message in [(whole_index[:-8], "do not fit"), (b"junk", "not an index")]:
        index.write_bytes(damaged)
        with pytest.raises(UserError, match=message):
            check_pair(prefix)
    index.unlink()
    with pytest.raises(UserError, match="prepare-data"):
        check_pair(prefix)
