"""Files are cut into pieces, and pieces into documents, without losing or joining any."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layertracer.data.documents import Corpus, TextUnit, documents_of, find_files
from layertracer.data.pieces import pieces
from layertracer.errors import UserError
from tests.data.conftest import TEXTS, write_jsonl


def read(corpus: Corpus, size: int = 64) -> list[str]:
    return [text for piece in pieces(corpus, size) for text in documents_of(piece, corpus)]


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\n\n one\n two\r\n \n\n　three\u2028still\x85three\n\n\n".encode())
    return file


@pytest.mark.parametrize(
    ("unit", "documents"),
    [
        (TextUnit.BLANK_LINE, [" one\n two", "　three\u2028still\x85three"]),
        (TextUnit.LINE, [" one", " two", "　three\u2028still\x85three"]),
        (TextUnit.FILE, [" one\n two\n \n\n　three\u2028still\x85three"]),
    ],
)
@pytest.mark.parametrize("size", [1, 8, 4096])
def test_a_text_file_holds_documents_between_blank_lines_or_per_line_or_one(
    text_file, unit, documents, size
):
    assert read(Corpus((text_file,), text_unit=unit), size) == documents


@settings(deadline=None)
@given(
    paragraphs=st.lists(
        st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1).filter(
            str.strip
        )
    ),
    size=st.integers(1, 200),
)
def test_any_paragraphs_come_back_for_any_size_of_pieces(tmp_path_factory, paragraphs, size):
    file = tmp_path_factory.mktemp("any") / "a.txt"
    file.write_text("\n\n".join(paragraphs), "utf-8", newline="")
    assert read(Corpus((file,)), size) == [
        # a mark at the very start is the file's byte order mark, not text
        *(p.removeprefix("\ufeff") for p in paragraphs[:1] if p.removeprefix("\ufeff").strip()),
        *paragraphs[1:],
    ]


@settings(deadline=None)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"))), size=st.integers(1, 300))
def test_any_texts_come_back_from_json_lines_but_blank_ones(tmp_path_factory, texts, size):
    file = write_jsonl(tmp_path_factory.mktemp("any") / "a.jsonl", texts)
    assert read(Corpus((file,)), size) == [text for text in texts if text.strip()]


def test_gzip_and_another_field(tmp_path):
    plain = write_jsonl(tmp_path / "a.jsonl", TEXTS, key="content")
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(Corpus((packed,), key="content")) == TEXTS


def test_a_byte_order_mark_is_not_text(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "x"}\n')
    assert read(Corpus((file,))) == ["x"]


@pytest.mark.parametrize("group", [1, 3, 100])
@pytest.mark.parametrize(
    "kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int8(), "string")]
)
def test_parquet_columns_without_nulls_and_blanks(tmp_path, group, kind):
    values = pyarrow.array([*TEXTS, None, "  ", TEXTS[0]], pyarrow.string()).cast(kind)
    table = pyarrow.table({"id": range(len(values)), "text": values})
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, file, row_group_size=group)
    assert read(Corpus((file,))) == [*TEXTS, TEXTS[0]]


def test_pieces_are_small_and_stand_for_all_bytes(tmp_path):
    corpus = Corpus((write_jsonl(tmp_path / "a.jsonl", TEXTS * 100),))
    cut = list(pieces(corpus, 1000))
    assert max(len(piece.content) for piece in cut) < 1300
    assert sum(piece.stored for piece in cut) == corpus.total_bytes


def test_files_and_sorted_folders_in_the_order_given(tmp_path):
    for name in ("b.txt", "a.jsonl", "sub/c.parquet", "notes.md"):
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).touch()
    last = tmp_path / "0.txt"
    last.touch()
    found = find_files([tmp_path / "folder", last])
    assert [file.name for file in found] == ["a.jsonl", "b.txt", "c.parquet", "0.txt"]


def test_wrong_paths_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.txt: no such file"):
        find_files([tmp_path / "nowhere.txt"])
    (tmp_path / "a.pdf").touch()
    with pytest.raises(UserError, match=r"a\.pdf: .*\.parquet files"):
        find_files([tmp_path / "a.pdf"])
    with pytest.raises(UserError, match=r"no \.txt, \.jsonl"):
        find_files([tmp_path])


GOOD = json.dumps({"text": "fine"}).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok\nok\nbad \xff byte\n", r"a\.txt, line 3: not UTF-8"),
        ("a.jsonl", GOOD + b"\n\n{broken\n", r"a\.jsonl, line 3: not a JSON object"),
        ("a.jsonl", GOOD + b"\n[1]\n", r"line 2: .*field 'text'.*--json-key"),
        ("a.jsonl", GOOD + b'\n{"txt": "x"}\n', r"line 2: .*field 'text'.*--json-key"),
        ("a.jsonl", GOOD + b'\n{"text": 3}\n', r"line 2: field 'text' holds int, not text"),
        ("a.jsonl", GOOD + b'\n{"text": "\\ud800"}\n', r"line 2: .*surrogate"),
        ("a.jsonl", GOOD + b"\n\xc3\x28\n", r"line 2: not UTF-8"),
        ("a.jsonl.gz", b"not gzip", r"a\.jsonl\.gz: damaged"),
        ("a.jsonl.gz", gzip.compress(GOOD * 99)[:-9], r"a\.jsonl\.gz: damaged or cut off"),
        ("a.parquet", b"PAR1 not parquet", r"a\.parquet can't be read as a parquet file"),
    ],
)
@pytest.mark.parametrize("size", [1, 4096])
def test_bad_content_is_named_by_file_and_line(tmp_path, name, content, message, size):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(Corpus((file,)), size)


def test_a_parquet_column_must_be_there_and_be_text(tmp_path):
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2], "body": ["x", "y"]}), file)
    with pytest.raises(UserError, match=r"no column 'text' \(it has id, body\).*--json-key"):
        read(Corpus((file,)))
    with pytest.raises(UserError, match="column 'id' holds int64, not text"):
        read(Corpus((file,), key="id"))
