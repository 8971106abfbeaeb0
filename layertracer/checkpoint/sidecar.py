"""``megatron_args.json``: the model's shape, beside a Megatron checkpoint.

Megatron's own ``--use-checkpoint-args`` loses the norm epsilon, q/k norm, rope scaling and window,
so a converted checkpoint carries its whole shape here, and the training entry turns it into flags.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from layertracer.errors import UserError
from layertracer.files import read_model, write_json

FILE = "megatron_args.json"
SOURCE = "source"
_Positive = Annotated[int, Field(ge=1)]


class Experts(BaseModel):
    """The mixture-of-experts part of every layer.

    ``stacked``: the Hugging Face folder holds all experts of a layer in one tensor.
    ``softmax_first``: probabilities over all experts, without renormalising over the chosen ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_experts: _Positive
    top_k: _Positive
    ffn_hidden_size: _Positive
    stacked: bool = False
    softmax_first: bool = False


class MegatronShape(BaseModel):
    """Everything that Megatron must be told to build the model that the checkpoint holds.

    ``num_attention_heads`` and ``num_query_groups`` are Megatron's; ``padded_query_groups`` of the
    groups are zeros that conversion added so that tensor parallelism divides the heads.
    ``rope_scaling_factor`` is Llama 3's kind of scaling, ``rope_interpolation_factor`` the linear
    kind. ``dtype`` is the type of the Hugging Face weights; ``other_dtypes`` names the tensors that
    have another.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["layertracer.megatron_args"] = "layertracer.megatron_args"
    version: Literal[1] = 1
    family: str
    architecture: str
    num_layers: _Positive
    hidden_size: _Positive
    ffn_hidden_size: _Positive
    num_attention_heads: _Positive
    num_query_groups: _Positive
    padded_query_groups: Annotated[int, Field(ge=0)] = 0
    kv_channels: _Positive
    vocab_size: _Positive
    max_position_embeddings: _Positive
    norm_epsilon: float
    rotary_base: _Positive
    rope_scaling_factor: float | None = None
    rope_interpolation_factor: _Positive | None = None
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_layernorm: bool = False
    window: _Positive | None = None
    experts: Experts | None = None
    dtype: str
    other_dtypes: dict[str, str] = {}
    source_fingerprint: str

    def flags(self) -> dict[str, str | None]:
        """Return Megatron's flags and their values (None: a switch), for 0.19.x."""
        flags: dict[str, str | None] = {
            "--num-layers": str(self.num_layers),
            "--hidden-size": str(self.hidden_size),
            "--ffn-hidden-size": str(self.ffn_hidden_size),
            "--num-attention-heads": str(self.num_attention_heads),
            "--group-query-attention": None,
            "--num-query-groups": str(self.num_query_groups),
            "--kv-channels": str(self.kv_channels),
            "--vocab-size": str(self.vocab_size),
            "--max-position-embeddings": str(self.max_position_embeddings),
            "--normalization": "RMSNorm",
            "--norm-epsilon": repr(self.norm_epsilon),
            "--position-embedding-type": "rope",
            "--rotary-base": str(self.rotary_base),
            "--rotary-percent": "1.0",
            "--swiglu": None,
            "--disable-bias-linear": None,
            "--attention-dropout": "0.0",
            "--hidden-dropout": "0.0",
        }
        if not self.tied_embeddings:
            flags["--untie-embeddings-and-output-weights"] = None
        if self.qkv_bias:
            flags["--add-qkv-bias"] = None
        if self.qk_layernorm:
            flags["--qk-layernorm"] = None
        if self.rope_scaling_factor is not None:
            flags["--use-rope-scaling"] = None
            flags["--rope-scaling-factor"] = repr(self.rope_scaling_factor)
        if self.rope_interpolation_factor is not None:
            flags["--rotary-seq-len-interpolation-factor"] = str(self.rope_interpolation_factor)
        if self.window is not None:
            # Megatron counts the tokens to the left; the model's own counts the token itself too.
            flags["--window-size"] = f"({self.window - 1},0)"
        return flags | self._expert_flags()

    def _expert_flags(self) -> dict[str, str | None]:
        if self.experts is None:
            return {}
        flags: dict[str, str | None] = {
            "--num-experts": str(self.experts.num_experts),
            "--moe-router-topk": str(self.experts.top_k),
            "--moe-ffn-hidden-size": str(self.experts.ffn_hidden_size),
        }
        if self.experts.softmax_first:
            flags["--moe-router-pre-softmax"] = None
        return flags

    def megatron_flags(self) -> list[str]:
        """Return the flags as a command line."""
        line = []
        for flag, value in self.flags().items():
            line += [flag] if value is None else [flag, value]
        return line

    def save(self, folder: Path) -> None:
        """Write ``folder/megatron_args.json``."""
        write_json(folder / FILE, self.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> MegatronShape:
        """Read ``folder/megatron_args.json``.

        Raises:
            UserError: it is missing or not valid.
        """
        file = folder / FILE
        if not folder.is_dir():
            raise UserError(f"{folder}: no such checkpoint folder")
        if not file.is_file():
            raise UserError(
                f"{folder} has no {FILE}: make the checkpoint with "
                "`layertracer convert to-megatron`"
            )
        return read_model(cls, file)


def copy_sidecar(source: Path, target: Path) -> None:
    """Copy the shape and the Hugging Face files of checkpoint ``source`` to ``target``."""
    target.mkdir(parents=True, exist_ok=True)
    if (source / SOURCE).is_dir() and not (target / SOURCE).exists():
        temporary = target / f".{SOURCE}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source / SOURCE, temporary)
        temporary.rename(target / SOURCE)
    MegatronShape.load(source).save(target)
