"""Small tokenizers of each kind, and a way to read a dataset back with Megatron's own reader."""

import io
import json
from pathlib import Path

import pytest

TEXTS = [
    "Hello world, this is a test of the tokenizer.",
    "汉字测试：你好，世界。",
    "第二篇文章\n有两行。",
    "naïve café — ünïcödé  with  spaces",
]


def save_bpe(folder: Path, *, eos: str | None = "<|end|>", texts: list[str] = TEXTS) -> Path:
    """Train a byte-level BPE tokenizer and save it as a Hugging Face folder."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    special = [eos] if eos else []
    trained.train_from_iterator(texts, vocab_size=320, special_tokens=special)
    PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token=eos).save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="session")
def bpe(tmp_path_factory) -> Path:
    return save_bpe(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory) -> Path:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    file = tmp_path_factory.mktemp("pieces") / "small.model"
    file.write_bytes(model.getvalue())
    return file


@pytest.fixture
def read_back():
    """Return a function from a prefix to its documents, each a list of ids, by Megatron."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.indexed_dataset import IndexedDataset

    def read(prefix: Path) -> list[list[int]]:
        dataset = IndexedDataset(str(prefix))
        bounds = dataset.document_indices
        assert list(bounds) == list(range(len(dataset) + 1))
        return [dataset[i].tolist() for i in range(len(dataset))]

    return read


def write_jsonl(file: Path, texts: list[str], key: str = "text") -> Path:
    """Write a JSON-lines file."""
    lines = [json.dumps({key: text, "id": i}, ensure_ascii=False) for i, text in enumerate(texts)]
    file.write_text("".join(line + "\n" for line in lines), "utf-8")
    return file
