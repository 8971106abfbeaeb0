"""Megatron computes what Hugging Face does from a converted checkpoint, and trains it further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from layertracer.checkpoint.to_hf import to_hf
from layertracer.checkpoint.to_megatron import to_megatron
from layertracer.checkpoint.verify import OutputReport, compare_weights, compare_with_hf, load_hf
from tests.checkpoint.tiny import CASES, VOCABULARY, save_tiny
from tests.distributed.session import torchrun

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-4
LONG = ("llama-tied", "llama3", "llama-linear", "mistral-window")
SHORT_TOKENS, LONG_TOKENS = 200, 4096
# (case, layout): tensor parallel for all that differ in a layer, the pipeline for its two ends.
SPLIT = [(case, "tp2") for case in CASES if case not in ("llama-linear", "mistral")]
SPLIT += [(case, "pp2") for case in ("llama", "llama-tied", "qwen3-moe")]
SPLIT += [(case, "ep2") for case in ("qwen3-moe", "mixtral")]


def tokens(count: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(count))


def make_models(folder: Path) -> None:
    for case in CASES:
        save_tiny(folder / case / "hf", case)
        to_megatron(folder / case / "hf", folder / case / "megatron")
    torch.save(tokens(SHORT_TOKENS), folder / "short.pt")
    torch.save(tokens(LONG_TOKENS), folder / "long.pt")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    make_models(folder)
    torchrun("convert_scenarios:one_process", folder, 1)
    return folder


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    make_models(folder)
    save_tiny(folder / "half" / "hf", "llama-tied", dtype=torch.bfloat16)
    to_megatron(folder / "half" / "hf", folder / "half" / "start")
    torchrun("convert_scenarios:two_processes", folder, 2)
    return folder


def report(model: Path, outputs: Path, count: int) -> OutputReport:
    return compare_with_hf(load_hf(model), tokens(count), outputs)


def same(found: OutputReport) -> bool:
    assert len(found.places) == 4  # embedding, two layers, logits
    return found.logits.difference <= TOLERANCE and found.first_beyond(1e-5) is None


@pytest.mark.parametrize("case", CASES)
def test_every_family_gives_the_logits_of_hugging_face(one_process: Path, case: str) -> None:
    assert same(report(one_process / case / "hf", one_process / case / "one", SHORT_TOKENS))


@pytest.mark.parametrize("case", LONG)
def test_also_at_4096_tokens_where_positions_differ(one_process: Path, case: str) -> None:
    assert same(report(one_process / case / "hf", one_process / case / "long", LONG_TOKENS))


def test_rope_scaling_lost_would_be_seen_at_4096_tokens(one_process: Path, tmp_path: Path) -> None:
    """The comparison is able to fail: the same weights under another factor are told apart."""
    rope: dict[str, Any] = {**CASES["llama3"][1]["rope_parameters"], "factor": 8.0}
    other = save_tiny(tmp_path / "other", "llama3", rope_parameters=rope)
    found = report(other, one_process / "llama3" / "long", LONG_TOKENS)
    first = found.first_beyond(1e-5)
    assert found.logits.difference > TOLERANCE
    assert first is not None and first.place == "layer 0"


@pytest.mark.parametrize(("case", "layout"), SPLIT)
def test_split_over_two_ranks(two_processes: Path, case: str, layout: str) -> None:
    folder = two_processes / case
    assert same(report(folder / "hf", folder / layout, SHORT_TOKENS))


@pytest.mark.parametrize("run", ["trained-tp2", "trained-pp2", "frozen-dp2"])
def test_trained_checkpoint_comes_back_as_what_megatron_computes(
    two_processes: Path, tmp_path: Path, run: str
) -> None:
    """With optimizer state in it, and layers one by one as the entry stores them."""
    saved, start = two_processes / run / "saved", two_processes / "llama-tied" / "hf"
    to_hf(saved, tmp_path / "hf")
    assert same(report(tmp_path / "hf", two_processes / run / "one", SHORT_TOKENS))
    assert not compare_weights(tmp_path / "hf", saved).different
    moved = compare_weights(start, saved).different
    frozen = {name for name in moved if name.startswith("model.layers.1.")}
    assert moved and bool(frozen) == run.startswith("trained")


def test_a_step_without_learning_rate_leaves_every_bit(two_processes: Path) -> None:
    """bfloat16 with float32 main weights: they are made from the loaded weights, not before."""
    report = compare_weights(two_processes / "half" / "hf", two_processes / "still" / "saved")
    assert report.tensors > 0 and not report.different
