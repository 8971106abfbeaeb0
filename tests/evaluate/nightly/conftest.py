"""A training run's save folder with tiny checkpoints that the job can find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.evaluate.files import EvalSettings
from layertracer.evaluate.nightly.settings import Nightly

TRACKER = "latest_checkpointed_iteration.txt"


class Run:
    """A save folder; ``save`` adds a checkpoint whose weights are disturbed by ``amount``."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.watch = folder / "cpt"
        self._folder = folder

    def save(self, step: int, amount: float = 0.0) -> Path:
        """Write the checkpoint of ``step`` as Megatron lays it out."""
        source = self._folder / f"hf-{step}"
        shutil.copytree(self.model, source)
        if amount:
            model = AutoModelForCausalLM.from_pretrained(source)
            torch.manual_seed(step)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * amount)
            model.save_pretrained(source)
        converted = self._folder / f"megatron-{step}"
        to_megatron(source, converted)
        if not self.watch.exists():
            shutil.copytree(converted, self.watch, ignore=shutil.ignore_patterns("release"))
        target = self.watch / f"iter_{step:07d}"
        shutil.move(converted / "release", target)
        (self.watch / TRACKER).write_text(str(step), "utf-8")
        return target

    def job(self, **options: object) -> Nightly:
        """Return a job on this run, small and without the noise floor."""
        chosen = {
            "watch": self.watch,
            "history": self._folder / "nightly" / "history.sqlite",
            "out": self._folder / "nightly",
            "settings": EvalSettings(limit=1),
            "noise": False,
        }
        return Nightly(**{**chosen, **options})


@pytest.fixture
def run(model_folder: Path, tmp_path: Path) -> Run:
    return Run(model_folder, tmp_path)
