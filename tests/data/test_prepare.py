"""Text comes out of prepare-data as Megatron reads it, the same for any number of workers."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.data.documents import Corpus
from layertracer.data.prepare import prepare
from layertracer.data.tokenizers import load_tokenizer
from layertracer.errors import UserError
from tests.data.conftest import TEXTS, save_bpe, write_jsonl


def expected(tokenizer, texts=TEXTS):
    loaded = load_tokenizer(tokenizer)
    return [[*ids, loaded.eod] for ids in loaded.encode(texts)]


@pytest.fixture
def corpus(tmp_path):
    return Corpus((write_jsonl(tmp_path / "corpus.jsonl", TEXTS),))


@pytest.mark.parametrize("tokenizer", ["bpe", "sentencepiece_model"])
def test_every_document_comes_back_with_its_end(tmp_path, request, tokenizer, corpus, read_back):
    path = request.getfixturevalue(tokenizer)
    written = prepare(corpus, tmp_path / "out" / "zh", path)
    assert read_back(tmp_path / "out" / "zh") == expected(path)
    assert written.documents == len(TEXTS)
    assert written.tokens == sum(map(len, expected(path)))


def test_all_kinds_of_files_in_one_corpus(tmp_path, bpe, read_back):
    texts = [f"{kind} {text}" for kind in ("plain", "lines", "packed", "rows") for text in TEXTS]
    four = [texts[i : i + 4] for i in range(0, 16, 4)]
    (tmp_path / "1.txt").write_text("\n\n".join(four[0]), "utf-8")
    write_jsonl(tmp_path / "2.jsonl", four[1])
    packed = write_jsonl(tmp_path / "unpacked", four[2])
    (tmp_path / "3.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    pyarrow.parquet.write_table(pyarrow.table({"text": four[3]}), tmp_path / "4.parquet")
    run = ["prepare-data", str(tmp_path), "--out", str(tmp_path / "all"), "--tokenizer", str(bpe)]
    done = CliRunner().invoke(app, [*run, "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "16 documents" in done.output
    assert read_back(tmp_path / "all") == expected(bpe, texts)


def test_the_number_of_workers_changes_nothing(tmp_path, bpe, monkeypatch, read_back):
    monkeypatch.setattr("layertracer.data.pieces.pieces.__defaults__", (700,))
    texts = [f"{text} {i}" for i in range(150) for text in TEXTS]
    corpus = Corpus((write_jsonl(tmp_path / "corpus.jsonl", texts),))
    for workers in (1, 3):
        prepare(corpus, tmp_path / f"by{workers}", bpe, workers=workers)
    for suffix in (".bin", ".idx"):
        one, three = (tmp_path / f"by{workers}{suffix}" for workers in (1, 3))
        assert one.read_bytes() == three.read_bytes()
    assert read_back(tmp_path / "by3") == expected(bpe, texts)


def test_the_end_of_a_document_can_be_another_token_or_none(tmp_path, bpe, corpus, read_back):
    loaded = load_tokenizer(bpe)
    plain = loaded.encode(TEXTS)
    prepare(corpus, tmp_path / "none", bpe, append_eod=False)
    assert read_back(tmp_path / "none") == plain
    prepare(corpus, tmp_path / "a", bpe, eod_token="a")
    assert read_back(tmp_path / "a") == [[*ids, loaded.id_of("a")] for ids in plain]
    with pytest.raises(UserError, match=r"--eod-token <eot>: .* has no such token"):
        prepare(corpus, tmp_path / "x", bpe, eod_token="<eot>")


def test_without_an_end_token_one_must_be_chosen(tmp_path, corpus, read_back):
    tokenizer = save_bpe(tmp_path / "endless", eos=None)
    with pytest.raises(UserError, match=r"no end-of-sequence token.*--no-append-eod"):
        prepare(corpus, tmp_path / "out", tokenizer)
    assert not list(tmp_path.glob("*out*"))
    prepare(corpus, tmp_path / "out", tokenizer, append_eod=False)
    assert len(read_back(tmp_path / "out")) == len(TEXTS)


def test_a_vocabulary_beyond_16_bits_keeps_its_large_ids(tmp_path, read_back):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(70_000)} | {"<eos>": 70_000}
    model = Tokenizer(models.WordLevel(words, unk_token="w0"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>").save_pretrained(
        tmp_path / "large"
    )
    corpus = Corpus((write_jsonl(tmp_path / "a.jsonl", ["w65535 w65536 w69999"]),))
    prepare(corpus, tmp_path / "out", tmp_path / "large")
    assert read_back(tmp_path / "out") == [[65535, 65536, 69999, 70000]]
    assert (tmp_path / "out.bin").stat().st_size == 4 * np.dtype(np.int32).itemsize


def test_what_made_the_data_lies_beside_it(tmp_path, bpe, corpus):
    written = prepare(corpus, tmp_path / "out", bpe)
    facts = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert facts["inputs"] == {"files": str(corpus.files[0]), "tokenizer": str(bpe)}
    assert facts["documents"] == written.documents
    assert facts["tokens"] == written.tokens
    assert facts["dtype"] == "uint16"
    assert facts["input_bytes"] == corpus.files[0].stat().st_size


@pytest.mark.parametrize("content", ["", "\n \n\n"])
def test_an_empty_corpus_is_an_error_and_leaves_nothing(tmp_path, bpe, content):
    (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(UserError, match="corpus is empty"):
        prepare(Corpus((tmp_path / "empty.txt",)), tmp_path / "out" / "a", bpe)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_text_is_one_line_and_leaves_the_old_data(tmp_path, bpe, corpus, workers, read_back):
    prepare(corpus, tmp_path / "out" / "a", bpe)
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\n\nbad \xff\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 3: not UTF-8"):
        prepare(Corpus((bad,)), tmp_path / "out" / "a", bpe, workers=workers, overwrite=True)
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["a.bin", "a.idx", "a.json"]
    assert read_back(tmp_path / "out" / "a") == expected(bpe)


def test_existing_data_is_not_replaced_unasked(tmp_path, bpe, corpus, read_back):
    prepare(corpus, tmp_path / "a", bpe)
    with pytest.raises(UserError, match=r"a\.bin exists already.*--overwrite"):
        prepare(corpus, tmp_path / "a", bpe)
    other = Corpus((write_jsonl(tmp_path / "other.jsonl", ["other"]),))
    prepare(other, tmp_path / "a", bpe, overwrite=True)
    assert read_back(tmp_path / "a") == expected(bpe, ["other"])


def test_bad_input_on_the_command_line_is_one_line(tmp_path, bpe):
    command = [sys.executable, "-m", "layertracer", "prepare-data", str(tmp_path / "nowhere.txt")]
    command += ["--out", str(tmp_path / "out"), "--tokenizer", str(bpe)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path}/nowhere.txt: no such file or folder\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("victim", ["worker", "all"])
def test_a_killed_worker_or_ctrl_c_leaves_nothing_behind(tmp_path, bpe, victim):
    texts = [" ".join(TEXTS) * 40] * 20_000
    corpus = write_jsonl(tmp_path / "corpus.jsonl", texts)
    command = [sys.executable, "-m", "layertracer", "prepare-data", str(corpus), "--workers", "2"]
    command += ["--out", str(tmp_path / "out" / "a"), "--tokenizer", str(bpe)]
    started = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    workers = _workers_at_work(started, tmp_path / "out" / ".a.bin.tmp-")
    if victim == "worker":
        os.kill(workers[0], signal.SIGKILL)
    else:
        os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode == (2 if victim == "worker" else 130), errors
    assert "Traceback" not in errors
    if victim == "worker":
        assert errors.startswith("error: a tokenizing process was killed")
    assert list((tmp_path / "out").iterdir()) == []
    assert len(workers) == 2
    assert not any(psutil.pid_exists(worker) for worker in workers)


def _workers_at_work(started, tokens):
    """Wait until tokens were written; return the ids of the tokenizing processes."""
    file = tokens.with_name(f"{tokens.name}{started.pid}")
    until = time.monotonic() + 60
    while not (file.is_file() and file.stat().st_size):
        assert started.poll() is None, started.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    children = psutil.Process(started.pid).children()
    return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
