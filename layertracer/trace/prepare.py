"""What to run through the model: settings to tokenized prompts, disturbance and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertracer.errors import UserError
from layertracer.trace.encoding import EncodedPrompt, encode_prompts, replacement_token
from layertracer.trace.files import TraceSettings
from layertracer.trace.perturbation import Disturbance, Perturbation
from layertracer.trace.prompts import Prompt, PromptChoice, load_prompts


@dataclass(frozen=True)
class Prepared:
    """Prompts and their disturbance; ``replacement`` names the token that masks, if any does."""

    prompts: list[EncodedPrompt]
    disturbance: Disturbance
    replacement: str | None

    def identity(self, settings: TraceSettings, fingerprint: str) -> dict[str, object]:
        """Return everything that decides the numbers of a trace."""
        return {
            "model": fingerprint,
            "settings": settings.model_dump(mode="json", exclude={"bootstrap"}),
            "prompts": [prompt.ids.tolist() for prompt in self.prompts],
        }


def choose_prompts(settings: TraceSettings) -> list[Prompt]:
    """Return the prompts that ``settings`` name.

    Raises:
        UserError: their source is unknown or damaged.
    """
    return load_prompts(
        PromptChoice(
            source=settings.prompts,
            count=settings.num_prompts,
            seed=settings.seed,
            shots=settings.shots,
            language=settings.language,
        )
    )


def prepare(
    prompts: list[Prompt],
    tokenizer: Any,
    settings: TraceSettings,
    *,
    limit: int | None,
    vocab_size: int,
) -> Prepared:
    """Tokenize ``prompts`` for a model of context length ``limit``.

    Raises:
        UserError: a prompt is empty, too long or without the asked-for target.
    """
    encoded = encode_prompts(
        prompts, tokenizer, limit=limit, vocab_size=vocab_size, truncate=settings.truncate
    )
    _check_targets(encoded, settings)
    return Prepared(encoded, *_disturbance(settings, tokenizer))


def _check_targets(encoded: list[EncodedPrompt], settings: TraceSettings) -> None:
    if settings.target == "given":
        for prompt in encoded:
            if prompt.target is None:
                raise UserError(
                    f"--target given: prompt {prompt.index + 1} ({prompt.prompt.source}) has no "
                    'target: add "target" to it, or use --target model'
                )


def _disturbance(settings: TraceSettings, tokenizer: Any) -> tuple[Disturbance, str | None]:
    token, name = 0, None
    if settings.perturbation is Perturbation.MASK:
        token, name = replacement_token(tokenizer)
    disturbance = Disturbance(
        settings.perturbation,
        settings.fraction,
        settings.seed,
        noise_scale=settings.noise_scale,
        replacement=token,
    )
    return disturbance, name


def load_tokenizer(path: Path, trust_code: bool = False) -> Any:
    """Load the tokenizer of a model folder.

    Raises:
        UserError: it has none that can be loaded.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            path, trust_remote_code=trust_code, local_files_only=True
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: its tokenizer can't be loaded: {reason}") from error


def batches(
    prompts: list[EncodedPrompt], variants: int, batch_tokens: int
) -> Iterator[list[EncodedPrompt]]:
    """Yield batches of prompts, longest first, of at most ``batch_tokens`` padded tokens each.

    A prompt longer than that is a batch of its own.
    """
    batch: list[EncodedPrompt] = []
    for prompt in sorted(prompts, key=len, reverse=True):
        if batch and (len(batch) + 1) * variants * len(batch[0]) > batch_tokens:
            yield batch
            batch = []
        batch.append(prompt)
    if batch:
        yield batch
