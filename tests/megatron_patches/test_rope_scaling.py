"""``--rope-scaling-factor``, which Megatron 0.19 parses and leaves out, reaches the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD = """
import sys
import megatron_patches
megatron_patches.apply()
from megatron.training import argument_utils, arguments
from megatron_patches.arguments import CPU_FLAGS
sys.argv = [
    "x", *CPU_FLAGS, "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4",
    "--seq-length", "32", "--max-position-embeddings", "32", "--micro-batch-size", "1",
    "--vocab-size", "128", "--position-embedding-type", "rope",
    "--use-rope-scaling", "--rope-scaling-factor", "32",
]
args = arguments.parse_args()
args.params_dtype = __import__("torch").float32
args.padded_vocab_size = 128
print("FACTOR", argument_utils.gpt_config_from_args(args).rope_scaling_factor)
"""


def test_factor_reaches_the_model_config() -> None:
    """In a Python of its own: patches stay applied."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "FACTOR 32.0" in done.stdout, done.stderr[-2000:]
