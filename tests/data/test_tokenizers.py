"""Tokenizers of both kinds give the ids of their own library, without special tokens."""

import json
import pickle

import pytest

from layertracer.data.tokenizers import load_tokenizer
from layertracer.errors import UserError
from tests.data.conftest import TEXTS, save_bpe


def test_hugging_face_ids_are_those_of_transformers(bpe):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(bpe)(TEXTS, add_special_tokens=False)["input_ids"]
    loaded = load_tokenizer(bpe)
    assert loaded.encode(TEXTS) == expected
    assert loaded.vocab_size == len(AutoTokenizer.from_pretrained(bpe))
    assert loaded.eod == loaded.id_of("<|end|>")
    assert loaded.id_of("<|nothing|>") is None


def test_no_beginning_of_sequence_is_added(tmp_path):
    from tokenizers import processors
    from transformers import AutoTokenizer

    folder = save_bpe(tmp_path / "t")
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 0)]
    )
    loaded.save_pretrained(folder)
    plain, special = loaded("x", add_special_tokens=False), loaded("x")
    assert plain["input_ids"] != special["input_ids"]
    assert load_tokenizer(folder).encode(["x"]) == [plain["input_ids"]]


def test_stored_truncation_does_not_cut_documents(tmp_path):
    from transformers import AutoTokenizer

    folder = save_bpe(tmp_path / "t")
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.backend_tokenizer.enable_truncation(4)
    loaded.backend_tokenizer.enable_padding(length=6)
    loaded.save_pretrained(folder)
    first, second = load_tokenizer(folder).encode([TEXTS[0] * 50, "x"])
    assert len(first) > 200
    assert len(second) == 1


def test_sentencepiece_ids_are_those_of_its_library(sentencepiece_model):
    import sentencepiece

    library = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    loaded = load_tokenizer(sentencepiece_model)
    assert loaded.encode(TEXTS) == [library.encode(text) for text in TEXTS]
    assert (loaded.vocab_size, loaded.eod) == (library.vocab_size(), library.eos_id())
    assert loaded.id_of("</s>") == library.eos_id()
    assert loaded.id_of("no such piece") is None


def test_the_vocabulary_reaches_to_its_largest_id(tmp_path):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = models.WordLevel({"a": 0, "b": 70_000, "<unk>": 1}, unk_token="<unk>")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(tmp_path / "t")
    assert load_tokenizer(tmp_path / "t").vocab_size == 70_001


@pytest.mark.parametrize("name", ["bpe", "sentencepiece_model"])
def test_a_tokenizer_travels_to_other_processes(name, request):
    loaded = load_tokenizer(request.getfixturevalue(name))
    assert pickle.loads(pickle.dumps(loaded.encode))(TEXTS) == loaded.encode(TEXTS)


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path, bpe):
    with pytest.raises(UserError, match=r"--tokenizer .*nowhere: neither a folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match="neither a folder"):
        load_tokenizer(tmp_path)
    (tmp_path / "bad.model").write_bytes(b"junk")
    with pytest.raises(UserError, match=r"bad\.model is not a SentencePiece model"):
        load_tokenizer(tmp_path / "bad.model")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "tokenizer.json").write_text("{broken")
    with pytest.raises(UserError, match=r"--tokenizer .*hf can't be loaded"):
        load_tokenizer(tmp_path / "hf")


def test_code_of_a_tokenizer_is_not_run_unasked(tmp_path):
    folder = save_bpe(tmp_path / "t")
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text("utf-8"))
    settings["auto_map"] = {"AutoTokenizer": ["evil.Evil", None]}
    settings["tokenizer_class"] = "Evil"
    config.write_text(json.dumps(settings), "utf-8")
    (folder / "evil.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "class Evil(PreTrainedTokenizerFast):\n    pass\n"
    )
    with pytest.raises(UserError, match=r"--tokenizer .* brings its own code.*--trust-remote-code"):
        load_tokenizer(folder)
    assert not (tmp_path / "ran").exists()
    load_tokenizer(folder, trust_code=True)
    assert (tmp_path / "ran").exists()
