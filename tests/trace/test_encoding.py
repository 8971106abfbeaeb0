import numpy as np
import pytest
from tokenizers import processors

from layertracer.errors import UserError
from layertracer.trace.encoding import EncodedPrompt, encode_prompts, replacement_token
from layertracer.trace.prompts import Prompt
from tests.trace.conftest import byte_tokenizer


def encode(
    *texts: str, bos: bool = True, limit: int | None = None, truncate: bool = False, target=None
) -> list[EncodedPrompt]:
    prompts = [Prompt(text, "all", f"file:{i}", target) for i, text in enumerate(texts, 1)]
    return encode_prompts(
        prompts, byte_tokenizer(bos=bos), limit=limit, vocab_size=320, truncate=truncate
    )


def test_context_is_all_but_bos_and_the_last_token() -> None:
    (with_bos,), (without,) = encode("abcd"), encode("abcd", bos=False)
    assert len(with_bos) == 5 and with_bos.context.tolist() == [1, 2, 3]
    assert len(without) == 4 and without.context.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(with_bos.ids[1:], without.ids)


def test_a_prompt_of_one_token_has_no_context() -> None:
    assert encode("a", bos=False)[0].context.size == 0
    assert encode("a")[0].context.size == 0


def test_equal_prompts_are_counted() -> None:
    assert [p.occurrence for p in encode("a", "b", "a", "a")] == [0, 0, 1, 2]


def test_the_tokenizers_padding_side_plays_no_part() -> None:
    left = byte_tokenizer(bos=True, padding_side="left")
    prompts = [Prompt("abc", "all", "x"), Prompt("a", "all", "x")]
    one = encode_prompts(prompts, left, limit=None, vocab_size=320, truncate=False)
    two = encode("abc", "a")
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)


def test_too_long_prompts_are_refused_or_cut_at_their_beginning() -> None:
    with pytest.raises(UserError, match=r"prompt 2 \(file:2\) has 11 tokens, the model takes 6"):
        encode("abc", "0123456789", limit=6)
    cut = encode("0123456789", limit=6, truncate=True)[0]
    whole = encode("0123456789")[0]
    assert cut.ids[0] == whole.ids[0], "BOS stays"
    np.testing.assert_array_equal(cut.ids[1:], whole.ids[-5:])


def test_target_is_the_token_that_follows_the_prompt() -> None:
    tokenizer = byte_tokenizer(bos=True)
    assert encode("1+1=", target="2")[0].target == tokenizer("2")["input_ids"][1]
    assert encode("1+1=")[0].target is None


def test_empty_prompts_and_foreign_tokens_are_refused() -> None:
    with pytest.raises(UserError, match="has no token"):
        encode("", bos=False)
    with pytest.raises(UserError, match="outside the model's vocabulary of 50"):
        encode_prompts(
            [Prompt("zz", "all", "x")],
            byte_tokenizer(bos=True),
            limit=None,
            vocab_size=50,
            truncate=False,
        )


def test_masking_uses_mask_unk_pad_or_eos_whichever_exists_first() -> None:
    tokenizer = byte_tokenizer(bos=True)
    assert replacement_token(tokenizer) == (3, "mask")
    tokenizer.mask_token = None
    assert replacement_token(tokenizer) == (0, "unk")
    tokenizer.unk_token = None
    assert replacement_token(tokenizer) == (2, "pad")
    tokenizer.pad_token = None
    assert replacement_token(tokenizer) == (2, "eos")
    tokenizer.eos_token = None
    with pytest.raises(UserError, match="has no mask, unk, pad or eos token"):
        replacement_token(tokenizer)


def test_the_answer_position_is_before_what_a_tokenizer_appends() -> None:
    tokenizer = byte_tokenizer(bos=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert tokenizer("ab")["input_ids"][-1] == 2
    (made,) = encode_prompts(
        [Prompt("ab", "all", "x", "c")], tokenizer, limit=None, vocab_size=320, truncate=False
    )
    plain = encode("ab", target="c")[0]
    np.testing.assert_array_equal(made.ids, plain.ids)
    assert made.target == plain.target
