"""Reading and writing the weights of a Hugging Face folder, a tensor at a time."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from layertracer.errors import UserError
from layertracer.files import write_json
from layertracer.model_folder import ModelFolder

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.pt", "*.pth", "*.gguf")


class TensorSource:
    """The tensors of a model folder by name."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self._passed: set[str] = set()
        self._open: dict[Path, safe_open] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the stored shape of tensor ``name``.

        Raises:
            UserError: there is no such tensor.
        """
        if name not in self.folder.tensors:
            raise UserError(f"{self.folder.path}: tensor {name} is missing")
        return self.folder.tensors[name].shape

    def read(self, name: str) -> Tensor:
        """Return tensor ``name``, in its stored type."""
        file = self.folder.tensors[name].file
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file].get_tensor(name)

    def refuse_unused(self, used: set[str]) -> None:
        """Raise UserError when a stored tensor is not among ``used``: the model has more parts."""
        left = {name for name in self.folder.tensors if not name.endswith("rotary_emb.inv_freq")}
        left -= used | self._passed
        if left:
            raise UserError(
                f"{self.folder.path}: tensor {min(left)} has no place in Megatron's model"
                f" ({len(left)} such)"
            )

    def drop_tied_head(self, embedding: str, head: str) -> None:
        """Let a stored copy of the tied head pass if it equals the embedding.

        Raises:
            UserError: it differs: the config says tied, the weights say otherwise.
        """
        if head not in self.folder.tensors:
            return
        if not self.read(head).equal(self.read(embedding)):
            raise UserError(
                f"{self.folder.path}: config.json says tied embeddings, but {head} differs from "
                f"{embedding}: set tie_word_embeddings to false"
            )
        self._passed.add(head)


class ShardWriter:
    """Writes tensors into safetensors files of a limited size, with an index when several."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = 0
        self._shards: list[list[str]] = []
        self._total = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor; a full shard is written at once."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._pending_bytes + size > self.max_bytes:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._pending_bytes += size
        self._total += size

    def _flush(self) -> None:
        number = len(self._shards) + 1
        save_file(self._pending, self._part(number), metadata={"format": "pt"})
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.safetensors"

    def close(self) -> None:
        """Write the last shard, give the files their names, and write the index."""
        self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(1).rename(self.folder / "model.safetensors")
            return
        weight_map = {}
        for number, names in enumerate(self._shards, 1):
            name = f"model-{number:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(self.folder / name)
            weight_map |= dict.fromkeys(names, name)
        index = {"metadata": {"total_size": self._total}, "weight_map": weight_map}
        write_json(self.folder / "model.safetensors.index.json", index)


def copy_everything_but_weights(source: Path, target: Path) -> None:
    """Copy config, tokenizer, chat template and the like, byte for byte."""
    target.mkdir(parents=True, exist_ok=True)
    skipped = {file for pattern in _WEIGHTS for file in source.glob(pattern)}
    for file in sorted(source.iterdir()):
        if file.is_file() and file not in skipped and file.name != "made_by.json":
            shutil.copyfile(file, target / file.name)
