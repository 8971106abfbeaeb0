"""A Hugging Face model folder: what it is, checked before anything expensive starts.

Only ``config.json`` and the headers of the safetensors files are read; no weight is loaded.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from layertracer.errors import UserError

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True)
class TensorHeader:
    """Name, safetensors dtype, shape and file of one stored tensor; ``begin..end`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


class ModelFolder:
    """A folder with ``config.json`` and safetensors weights of a causal language model.

    Raises:
        UserError: the folder or its config is missing, or it holds no causal language model.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"{self.path}: no such model folder")
        config = self.path / "config.json"
        if not config.is_file():
            raise UserError(
                f"{self.path} has no config.json: it is not a Hugging Face model folder"
            )
        try:
            self.config: dict[str, Any] = json.loads(config.read_text("utf-8"))
        except ValueError as error:
            raise UserError(f"{config} is not valid JSON: {error}") from error
        self._check_causal_lm()

    def _check_causal_lm(self) -> None:
        classes = self.config.get("architectures") or []
        if not any("CausalLM" in name or "LMHeadModel" in name for name in classes):
            raise UserError(
                f"{self.path}: not a causal language model (architectures: "
                f"{', '.join(classes) or 'none named'} in config.json)"
            )

    @property
    def text_config(self) -> dict[str, Any]:
        """The part of the config that describes the language model."""
        return self.config.get("text_config") or self.config

    @property
    def model_type(self) -> str:
        """For example ``llama``."""
        return self.text_config.get("model_type", "")

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            if isinstance(self.text_config.get(key), int):
                return self.text_config[key]
        raise UserError(f"{self.path}/config.json does not say how many layers the model has")

    @cached_property
    def tied_embeddings(self) -> bool:
        """Whether the head is the embedding matrix, by the config or transformers' default."""
        if "tie_word_embeddings" in self.text_config:
            return bool(self.text_config["tie_word_embeddings"])
        from transformers import AutoConfig

        return bool(AutoConfig.from_pretrained(self.path).tie_word_embeddings)

    @cached_property
    def tensors(self) -> dict[str, TensorHeader]:
        """Every stored tensor by name, from the safetensors headers."""
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise UserError(f"{self.path} has no *.safetensors weights (pickled ones are not read)")
        found: dict[str, TensorHeader] = {}
        for file in files:
            found.update(read_headers(file))
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            missing = set(json.loads(index.read_text("utf-8"))["weight_map"]) - set(found)
            if missing:
                raise UserError(f"{self.path}: tensor {min(missing)} is in the index but no file")
        return found

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names, dtypes, shapes and a sample of every tensor's bytes.

        64 bytes from the start, middle and end of each tensor are hashed, so that a folder of any
        size takes a moment and training of any layer changes the result.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            with tensor.file.open("rb") as stream:
                last = max(tensor.begin, tensor.end - 64)
                for place in (tensor.begin, (tensor.begin + last) // 2, last):
                    stream.seek(place)
                    digest.update(stream.read(min(64, tensor.end - place)))
        return digest.hexdigest()

    @cached_property
    def parameter_counts(self) -> ParameterCounts:
        """Parameters per decoder block, and of the embedding, final norm and head."""
        layers = [0] * self.num_layers
        embedding = final_norm = output_layer = 0
        for name, tensor in self.tensors.items():
            block = _LAYER.search(name)
            if block:
                layers[int(block.group(1))] += tensor.numel
            elif name.startswith("lm_head") or "embed_out" in name:
                output_layer += tensor.numel
            elif "norm" in name or "ln_f" in name:
                final_norm += tensor.numel
            else:
                embedding += tensor.numel
        if self.tied_embeddings:
            output_layer = 0
        return ParameterCounts(tuple(layers), embedding, final_norm, output_layer)


@dataclass(frozen=True)
class ParameterCounts:
    """Number of parameters of each part; a tied head counts 0 (it is the embedding)."""

    layers: tuple[int, ...]
    embedding: int
    final_norm: int
    output_layer: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.layers) + self.embedding + self.final_norm + self.output_layer


def read_headers(file: Path) -> dict[str, TensorHeader]:
    """Read the header of one safetensors file.

    Raises:
        UserError: the file is truncated or not a safetensors file; the message names the tensor.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER_BYTES + 1
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise UserError(f"{file} is not a safetensors file, or is truncated")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise UserError(f"{file}: the safetensors header is damaged: {error}") from error
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if end > size:
            raise UserError(f"{file} is truncated: tensor {name} ends at byte {end} of {size}")
        tensors[name] = TensorHeader(name, entry["dtype"], tuple(entry["shape"]), file, begin, end)
    return tensors
