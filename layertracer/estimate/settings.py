"""What an estimate is about: the model's shape and the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder, ParameterCounts


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
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
    config = folder.text_config
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        ffn, vocab = config["intermediate_size"], config["vocab_size"]
    except KeyError as error:
        raise UserError(
            f"{folder.path}/config.json has no {error}: estimates are for attention models with "
            "a gated feed-forward part"
        ) from error
    head_dim = config.get("head_dim") or hidden // heads
    return ModelShape(
        counts=folder.parameter_counts,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv=head_dim * (config.get("num_key_value_heads") or heads),
        query=head_dim * heads,
        vocab=vocab,
        tied=folder.tied_embeddings,
    )


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
