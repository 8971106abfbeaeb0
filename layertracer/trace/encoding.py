"""Prompts to tokens: answer position, context positions, length limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layertracer.errors import UserError
from layertracer.trace.prompts import Prompt


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as token ids; the answer position is the last token.

    Attributes:
        index: place of the prompt in the trace.
        ids: ``[tokens]``.
        context: ``[k]`` positions that a perturbation may touch: every token but the last one and
            the special ones that the tokenizer puts in front.
        target: token id of the first token of the given target, None without one.
        occurrence: how many equal prompts came before it.
    """

    index: int
    prompt: Prompt
    ids: NDArray[np.int64]
    context: NDArray[np.int64]
    target: int | None
    occurrence: int

    def __len__(self) -> int:
        return len(self.ids)


def encode_prompts(
    prompts: list[Prompt], tokenizer: Any, *, limit: int | None, vocab_size: int, truncate: bool
) -> list[EncodedPrompt]:
    """Tokenize ``prompts``; the tokenizer's own padding and truncation settings play no part.

    Args:
        limit: the model's context length in tokens, None for no limit.
        truncate: cut too long prompts from the left, behind the leading special tokens.

    Raises:
        UserError: a prompt is empty or too long, or a token is outside the model's vocabulary.
    """
    seen: dict[str, int] = {}
    encoded = []
    for index, prompt in enumerate(prompts):
        where = f"prompt {index + 1} ({prompt.source})"
        ids = _until_last_token(prompt.text, tokenizer)
        if not ids:
            raise UserError(f"{where} has no token: remove it")
        if max(ids) >= vocab_size:
            raise UserError(
                f"{where}: token {max(ids)} is outside the model's vocabulary of {vocab_size}: "
                "the tokenizer is another model's"
            )
        leading = _leading_specials(ids, tokenizer)
        target = _target_token(prompt, ids, tokenizer)
        if limit is not None and len(ids) > limit:
            if not truncate:
                raise UserError(
                    f"{where} has {len(ids)} tokens, the model takes {limit}: "
                    "shorten it or pass --truncate (keeps its end)"
                )
            ids = ids[:leading] + ids[len(ids) - limit + leading :]
        occurrence = seen.get(prompt.text, 0)
        seen[prompt.text] = occurrence + 1
        context = np.arange(leading, len(ids) - 1)
        encoded.append(EncodedPrompt(index, prompt, np.array(ids), context, target, occurrence))
    return encoded


def _until_last_token(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of ``text`` without what the tokenizer puts behind it (EOS, SEP)."""
    ids = tokenizer(text)["input_ids"]
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    for start in range(len(ids) - len(bare) + 1):
        if ids[start : start + len(bare)] == bare:
            return ids[: start + len(bare)]
    return ids


def _leading_specials(ids: list[int], tokenizer: Any) -> int:
    """Number of special tokens in front (BOS); at least one token stays an ordinary one."""
    special = set(tokenizer.all_special_ids)
    leading = 0
    while leading < len(ids) - 1 and ids[leading] in special:
        leading += 1
    return leading


def _target_token(prompt: Prompt, ids: list[int], tokenizer: Any) -> int | None:
    """First token of the target where it follows the prompt."""
    if not prompt.target:
        return None
    together = tokenizer(prompt.text + prompt.target)["input_ids"]
    if together[: len(ids)] == ids and len(together) > len(ids):
        return together[len(ids)]
    alone = tokenizer(prompt.target, add_special_tokens=False)["input_ids"]
    return alone[0] if alone else None


def replacement_token(tokenizer: Any) -> tuple[int, str]:
    """Return the token that replaces masked ones: mask, unk, pad or eos, the first that exists.

    Raises:
        UserError: the tokenizer has none of them.
    """
    for name in ("mask", "unk", "pad", "eos"):
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None:
            return token, name
    raise UserError(
        "--perturbation mask: the tokenizer has no mask, unk, pad or eos token; "
        "use --perturbation drop or noise"
    )
