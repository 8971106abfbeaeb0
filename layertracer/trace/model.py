"""A causal LM loaded for tracing, checked to be readable through its own head."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layertracer.errors import UserError
from layertracer.model_folder import ModelFolder
from layertracer.trace.lens import Lens, LensError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Largest allowed |replayed - own| logit, relative to the largest own logit (at least 1).
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass
class TracedModel:
    """A model, its lens, and how exactly the lens reproduces the model's own logits."""

    model: nn.Module
    lens: Lens
    layer_kinds: list[str]
    logit_difference: float

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return self.lens.num_layers

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the embedding knows."""
        return self.model.get_input_embeddings().num_embeddings

    @property
    def context_length(self) -> int | None:
        """Longest sequence the config allows, None where it says nothing."""
        config = self.model.config.get_text_config(decoder=True)
        return getattr(config, "max_position_embeddings", None)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.get_input_embeddings().weight.device


def trace_model(model: nn.Module, name: str) -> TracedModel:
    """Wrap ``model`` after checking that its lens is exact.

    Raises:
        UserError: the model can't be read through its own head; says why.
    """
    model.eval()
    try:
        lens = Lens(model)
        difference = check_lens(lens)
    except Exception as error:
        reason = error if isinstance(error, LensError) else f"{type(error).__name__}: {error}"
        raise UserError(
            f"{name}: {type(model).__name__} can't be traced: {' '.join(str(reason).split())}. "
            "The trace needs decoder layers that hand one hidden state to the next, and a head "
            "that depends on the last one alone (see docs/trace_coverage.md)"
        ) from error
    return TracedModel(model, lens, layer_kinds(model, lens.num_layers), difference)


def check_lens(lens: Lens) -> float:
    """Return the largest relative difference of replayed and own logits on random tokens.

    Raises:
        LensError: it is above the tolerance, or the last state doesn't decide the logits, or
            a later token changes an earlier state.
    """
    device = lens.model.get_input_embeddings().weight.device
    ids = _probe_tokens(lens.model, rows=2, length=7).to(device)
    last, own = lens.probe({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    if last.shape[:2] != ids.shape or last.dim() != 3:
        raise LensError(f"its states have the shape {tuple(last.shape)}, not [batch, token, width]")
    flat = own.flatten(0, 1).float()
    replayed = lens.decode(last.flatten(0, 1))
    scale = max(1.0, flat.abs().max().item())
    difference = (replayed - flat).abs().max().item() / scale
    tolerance = TOLERANCE[last.dtype]
    if not difference <= tolerance:
        raise LensError(
            f"decoding its last state differs from its own logits by {difference:.1e} "
            f"(allowed: {tolerance:.0e})"
        )
    other = lens.decode(last.flatten(0, 1), dummy_token=int(ids[0, 0]))
    if (other - replayed).abs().max().item() / scale > tolerance:
        raise LensError("its logits depend on more than the last state")
    _check_causal(lens, ids, tolerance)
    return difference


def _check_causal(lens: Lens, ids: Tensor, tolerance: float) -> None:
    """A row must read the same with tokens or padding behind it, or batches change the numbers."""
    short = ids[:1, :4]
    longer = ids[:1].expand(2, -1)
    mask = torch.ones_like(longer)
    mask[1, 4:] = 0
    positions = torch.tensor([3, 3], device=ids.device)
    alone = lens.read({"input_ids": short, "attention_mask": torch.ones_like(short)}, positions[:1])
    followed = lens.read({"input_ids": longer, "attention_mask": mask}, positions)
    scale = max(1.0, alone.abs().max().item())
    if not (alone - followed).abs().max().item() / scale <= 10 * tolerance:
        raise LensError("a later token changes an earlier state: it isn't causal")


def _probe_tokens(model: nn.Module, rows: int, length: int) -> Tensor:
    config = model.config.get_text_config(decoder=True)
    named = (getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos"))
    avoid = {token for token in named if isinstance(token, int)}
    usable = [i for i in range(min(config.vocab_size, 1000)) if i not in avoid]
    chosen = random.Random(0).choices(usable, k=rows * length)
    return torch.tensor(chosen).view(rows, length)


def layer_kinds(model: nn.Module, count: int) -> list[str]:
    """Return what each block is, as the config says it (``full_attention``, ``mamba``, ...)."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if kinds and len(kinds) == count:
        return [str(kind) for kind in kinds]
    recurrent = not hasattr(config, "num_attention_heads") or "mamba" in config.model_type
    return ["mamba" if recurrent else "attention"] * count


def load_model(
    path: Path | str, *, dtype: str = "float32", device: str = "auto", trust_code: bool = False
) -> TracedModel:
    """Load a Hugging Face folder for tracing, from safetensors weights.

    Raises:
        UserError: the folder is no causal LM, can't be loaded, or can't be traced.
    """
    folder = ModelFolder(path)
    folder.fingerprint  # noqa: B018  missing or damaged weights are reported before loading
    model = _from_pretrained(folder, DTYPES[dtype], trust_code)
    return trace_model(model.to(pick_device(device)), str(path))


def _from_pretrained(folder: ModelFolder, dtype: torch.dtype, trust_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            folder.path,
            dtype=dtype,
            trust_remote_code=trust_code,
            use_safetensors=True,
            local_files_only=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{folder.path}: transformers can't load it: {reason}") from error


def pick_device(device: str) -> torch.device:
    """Return the device named, or the GPU when there is one for ``auto``."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        picked = torch.device(device)
        torch.empty(1, device=picked)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {device}: not available on this machine") from error
    if picked.type == "cuda" and not _has_cuda_ops():
        raise UserError(
            "the extension was built without its CUDA kernels: build it again with "
            "`LAYERTRACER_CUDA=1 make setup`, or pass --device cpu"
        )
    return picked


def _has_cuda_ops() -> bool:
    from layertracer import ops  # noqa: F401  (loading it registers them)

    return torch._C._dispatch_has_kernel_for_dispatch_key("layertracer::js_divergence", "CUDA")
