"""Reading the tensors of a Hugging Face folder one at a time, and copying its other files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder, TensorHeader

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf")


class TensorSource:
    """The tensors of a model folder by name. Safe to read from several threads."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder

    def header(self, name: str) -> TensorHeader:
        """Return what the file says about tensor ``name``.

        Raises:
            UserError: there is no such tensor, or it is damaged or quantised.
        """
        header = self.folder.tensors.get(name)
        if header is None:
            raise UserError(f"{self.folder.path}: tensor {name} is missing")
        if header.dtype not in DTYPES:
            raise UserError(
                f"{header.file}: tensor {name} is stored as {header.dtype}; only float32, "
                "bfloat16 and float16 can be converted: de-quantise the model first"
            )
        if header.end - header.begin != header.numel * DTYPES[header.dtype].itemsize:
            raise UserError(f"{header.file}: tensor {name} is damaged: its length is not its size")
        return header

    def check(self, name: str, size: tuple[int, ...]) -> None:
        """Raise UserError unless tensor ``name`` is there with ``size``."""
        found = self.header(name).shape
        if found != size:
            raise UserError(
                f"{self.folder.path}: tensor {name} has size {list(found)}, but config.json speaks "
                f"of {list(size)}"
            )

    def read(self, name: str) -> Tensor:
        """Return tensor ``name``, in its stored type.

        Raises:
            UserError: the file ends before the tensor does.
        """
        header = self.header(name)
        content = bytearray(header.end - header.begin)
        with header.file.open("rb", buffering=0) as stream:
            stream.seek(header.begin)
            view, filled = memoryview(content), 0
            while filled < len(content):
                count = stream.readinto(view[filled:])
                if not count:
                    raise UserError(f"{header.file} is truncated inside tensor {name}")
                filled += count
            os.posix_fadvise(stream.fileno(), header.begin, filled, os.POSIX_FADV_DONTNEED)
        if not content:
            return torch.empty(header.shape, dtype=DTYPES[header.dtype])
        return torch.frombuffer(content, dtype=DTYPES[header.dtype]).reshape(header.shape)

    def check_all_used(self, used: Iterable[str], *, tied: bool) -> None:
        """Raise UserError when a stored tensor is not among ``used``: the model has more parts.

        A copy of the embedding as the head of a tied model may be there; it is left out.
        """
        left = {name for name in self.folder.tensors if not name.endswith("rotary_emb.inv_freq")}
        left -= set(used)
        if tied and HEAD in left:
            if not self.read(HEAD).equal(self.read(EMBEDDING)):
                raise UserError(
                    f"{self.folder.path}: config.json says tied embeddings, but {HEAD} differs "
                    f"from {EMBEDDING}: set tie_word_embeddings to false"
                )
            left.remove(HEAD)
        if left:
            raise UserError(
                f"{self.folder.path}: tensor {min(left)} has no place in Megatron's model"
                f" ({len(left)} such)"
            )


def copy_everything_but_weights(source: Path, target: Path) -> None:
    """Copy config, tokenizer, chat template and the like, byte for byte."""
    target.mkdir(parents=True, exist_ok=True)
    skipped = {file for pattern in _WEIGHTS for file in source.glob(pattern)}
    for file in sorted(source.iterdir()):
        if file.is_file() and file not in skipped and file.name != "made_by.json":
            shutil.copyfile(file, target / file.name)
