"""A model several times larger than the memory allowed goes both ways; an interrupt leaves nothing.

The model is a sparse file of zeros, made at once and taking no room.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HIDDEN, FEED_FORWARD, LAYERS, VOCABULARY = 512, 2048, 40, 2048
ALLOWED = 80 * 2**20

CONVERT = """
import resource, sys
from pathlib import Path
import torch
from layertracer.checkpoint.to_hf import to_hf
from layertracer.checkpoint.to_megatron import to_megatron
import layertracer.checkpoint.verify, torch._dynamo

model, out, allowed, size = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
status = Path("/proc/self/status").read_text()
used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + allowed, resource.RLIM_INFINITY))
try:
    torch.empty(size, dtype=torch.uint8)
    sys.exit("the limit does not hold")
except RuntimeError:
    pass
to_megatron(model, out / "megatron", threads=1)
to_hf(out / "megatron", out / "hf", threads=1, max_shard_bytes=10**9)
"""


def sparse_model(folder: Path) -> int:
    """Write a Llama of zeros in bfloat16; return its bytes."""
    sizes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        path = f"model.layers.{layer}"
        sizes |= {f"{path}.self_attn.{x}_proj.weight": (HIDDEN, HIDDEN) for x in "qkvo"}
        sizes |= {f"{path}.mlp.{x}_proj.weight": (FEED_FORWARD, HIDDEN) for x in ("gate", "up")}
        sizes[f"{path}.mlp.down_proj.weight"] = (HIDDEN, FEED_FORWARD)
        sizes[f"{path}.input_layernorm.weight"] = (HIDDEN,)
        sizes[f"{path}.post_attention_layernorm.weight"] = (HIDDEN,)
    header, end = {}, 0
    for name, size in sizes.items():
        begin, end = end, end + 2 * size[0] * (size[1] if len(size) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": size, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        stream.truncate(8 + len(encoded) + end)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return end


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    model = tmp_path / "model"
    yield model, sparse_model(model)
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_memory_is_bounded_by_one_tensor(large: tuple[Path, int], tmp_path: Path) -> None:
    model, size = large
    assert size > 4 * ALLOWED
    command = [sys.executable, "-c", CONVERT, model, tmp_path / "out", ALLOWED, size]
    # Threads take address space for their stacks, which the limit counts too.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    written = (tmp_path / "out" / "hf" / "model.safetensors").stat().st_size
    assert abs(written - size) < 100_000


def test_interrupt_leaves_nothing(large: tuple[Path, int], tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from layertracer.checkpoint.to_megatron import to_megatron\n"
        "to_megatron(Path(sys.argv[1]), Path(sys.argv[2]), threads=2)\n"
    )
    out = tmp_path / "megatron"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(large[0]), str(out)], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".megatron.tmp-*/release/*.distcp")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
