"""Texts to tokens, as lm-eval's Hugging Face model does it, many at once."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import has_bos_prefix

from layertracer.errors import UserError
from layertracer.evaluate.packing import Tokens


def encode_pairs(lm: HFLM, pairs: Sequence[tuple[str, str]]) -> list[tuple[Tokens, Tokens]]:
    """Encode contexts and continuations as ``lm._encode_pair`` does.

    Raises:
        UserError: the tokenizer merges a context's end with its continuation.
    """
    split = []
    for context, continuation in pairs:
        bare = context.rstrip()  # a context's last space belongs to its continuation
        split.append((bare, context[len(bare) :] + continuation))
    texts = list(dict.fromkeys(text for bare, rest in split for text in (bare, bare + rest)))
    tokens = dict(zip(texts, encode(lm, texts), strict=True))
    encoded = []
    for bare, rest in split:
        context = tokens[bare]
        continuation = tokens[bare + rest][len(context) :]
        if not context or not continuation:
            raise UserError(
                f"this tokenizer makes one token of the end of a prompt and {rest!r}: "
                "choose the other --prompt"
            )
        encoded.append((context, continuation))
    return encoded


def encode(lm: HFLM, texts: Sequence[str]) -> list[Tokens]:
    """Encode as ``lm.tok_encode`` does: a text that begins with BOS gets no second one."""
    bos = lm.tokenizer.decode(lm.prefix_token_id)
    begun = [has_bos_prefix(text, bos) for text in texts]
    encoded: list[Tokens] = [()] * len(texts)
    for has_bos, options in ((False, {}), (True, {"add_special_tokens": False})):
        numbers = [number for number, has in enumerate(begun) if has == has_bos]
        if numbers:
            ids = lm.tokenizer([texts[number] for number in numbers], **options)["input_ids"]
            for number, tokens in zip(numbers, ids, strict=True):
                encoded[number] = tuple(tokens)
    return encoded
