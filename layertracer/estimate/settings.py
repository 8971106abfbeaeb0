"""What an estimate is about: the model's shape and the parallel layout."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder, ParameterCounts
from layertracer.plan import Phase


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass.

    ``selective``: those of the feed-forward part (Megatron's ``--recompute-modules mlp``).
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True)
class Layout:
    """How the model is spread over ranks, and what one rank works on at a time."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    sequence_parallel: bool = False
    sequence_length: int = 4096
    micro_batch: int = 1
    micro_batches: int = 1
    distributed_optimizer: bool = True
    bf16: bool = True
    recompute: Recompute = Recompute.NONE


@dataclass(frozen=True)
class ModelShape:
    """Sizes that cost depends on. ``kv`` is the width of all key heads together."""

    counts: ParameterCounts
    hidden: int
    ffn: int
    heads: int
    kv: int
    query: int
    vocab: int
    tied: bool

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.counts.layers)

    def split_layer(self, layer: int) -> tuple[int, int]:
        """Return the parameters of ``layer`` that tensor parallelism splits, and those it copies.

        Norm weights are on every rank; every matrix is split.
        """
        copied = min(2 * self.hidden, self.counts.layers[layer])
        return self.counts.layers[layer] - copied, copied


def model_shape(folder: ModelFolder) -> ModelShape:
    """Read the sizes from ``config.json`` and the headers of the weights.

    Raises:
        UserError: a size is missing, so that no estimate can be made.
    """
    source = f"{folder.path}/config.json"
    return _shape(folder.text_config, folder.parameter_counts, folder.tied_embeddings, source)


def read_shape(path: Path) -> ModelShape:
    """Return the sizes of the model in folder ``path``, or that the config file ``path`` describes.

    Raises:
        UserError: there is no such model, or a size is missing.
    """
    if not path.is_file():
        return model_shape(ModelFolder(path))
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    return config_shape(config, str(path))


def config_shape(config: dict[str, Any], source: str) -> ModelShape:
    """Return the sizes of a Llama-like model that has a config but no weights yet.

    Args:
        config: what ``config.json`` holds.
        source: where it is from, for messages.

    Raises:
        UserError: a size is missing, so that no estimate can be made.
    """
    layers = _size(config, "num_hidden_layers", source)
    tied = bool(config.get("tie_word_embeddings", False))
    bare = _shape(config, ParameterCounts((), 0, 0, 0), tied, source)
    norms = 2 * bare.hidden
    if config.get("model_type", "").startswith("qwen3"):
        norms += 2 * bare.query // bare.heads  # of queries and keys
    biases = bare.query + 2 * bare.kv if config.get("model_type") == "qwen2" else 0
    attention = bare.hidden * (2 * bare.query + 2 * bare.kv)
    layer = attention + 3 * bare.hidden * bare.ffn + norms + biases
    matrix = bare.vocab * bare.hidden
    counts = ParameterCounts((layer,) * layers, matrix, bare.hidden, 0 if tied else matrix)
    return replace(bare, counts=counts)


def _size(config: dict[str, Any], name: str, source: str) -> int:
    if not isinstance(config.get(name), int):
        raise UserError(
            f"{source} has no {name!r}: estimates are for attention models with a gated "
            "feed-forward part"
        )
    return config[name]


def _shape(config: dict[str, Any], counts: ParameterCounts, tied: bool, source: str) -> ModelShape:
    hidden = _size(config, "hidden_size", source)
    heads = _size(config, "num_attention_heads", source)
    head_dim = config.get("head_dim") or hidden // heads
    return ModelShape(
        counts=counts,
        hidden=hidden,
        ffn=_size(config, "intermediate_size", source),
        heads=heads,
        kv=head_dim * (config.get("num_key_value_heads") or heads),
        query=head_dim * heads,
        vocab=_size(config, "vocab_size", source),
        tied=tied,
    )


def full_phase(shape: ModelShape) -> Phase:
    """Return the phase that trains everything."""
    layers = tuple(range(shape.num_layers))
    return Phase(layers=layers, embedding=True, final_norm=True, output_layer=True)


def equal_split(num_layers: int, stages: int) -> list[range]:
    """Return the layers of each pipeline stage as Megatron splits them without a layout.

    Raises:
        UserError: the layers don't divide.
    """
    if num_layers % stages:
        raise UserError(
            f"--pp {stages}: {num_layers} layers do not divide into {stages} equal stages; "
            "use the printed --pipeline-model-parallel-layout or another --pp"
        )
    width = num_layers // stages
    return [range(stage * width, (stage + 1) * width) for stage in range(stages)]
