"""Megatron on a machine without a GPU; and nothing at all where a GPU is."""

import subprocess
import sys

import pytest
import torch

from megatron_patches import cpu


def python(code: str) -> str:
    """Run ``code`` in a process of its own: the patch changes torch for good."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not cpu.needed(), reason="this machine has a GPU")
def test_what_names_cuda_lives_on_the_cpu():
    python("""
import megatron_patches, torch
megatron_patches.apply()
megatron_patches.apply()  # a second time does nothing
assert torch.zeros(2, device="cuda").device.type == "cpu"
assert torch.tensor([1.0], device=torch.device("cuda:0")).device.type == "cpu"
assert torch.empty(2, device=torch.cuda.current_device()).device.type == "cpu"
assert torch.zeros(2).new_ones(3, device="cuda").device.type == "cpu"
assert torch.zeros(2).to("cuda").cuda().device.type == "cpu"
assert torch.nn.Linear(2, 2).to("cuda").cuda().weight.device.type == "cpu"
assert torch.zeros(2).to(torch.bfloat16).dtype is torch.bfloat16
assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
assert torch.zeros(1).type(torch.float64).dtype is torch.float64
""")


@pytest.mark.skipif(not cpu.needed(), reason="this machine has a GPU")
def test_random_states_are_kept_and_set_back():
    python("""
import megatron_patches, torch
megatron_patches.apply()
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
torch.cuda.manual_seed(1)
tracker = CudaRNGStatesTracker()
tracker.add("other", 2)
before = torch.cuda.get_rng_state()
with tracker.fork("other"):
    first = torch.rand(3)
assert torch.cuda.get_rng_state().equal(before)
torch.manual_seed(2)
assert torch.rand(3).equal(first)
""")


@pytest.mark.skipif(not cpu.needed(), reason="this machine has a GPU")
def test_the_norm_is_marked_for_sequence_parallelism():
    python("""
import megatron_patches
megatron_patches.apply()
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.torch_norm import WrappedTorchNorm
shape = dict(num_layers=1, hidden_size=8, num_attention_heads=2, normalization="RMSNorm")
config = TransformerConfig(**shape, tensor_model_parallel_size=2, sequence_parallel=True)
assert WrappedTorchNorm(config, 8).weight.sequence_parallel
assert config.sequence_parallel
config.sequence_parallel = False
assert not WrappedTorchNorm(config, 8).weight.sequence_parallel
""")


def test_where_a_gpu_is_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    kept = (torch.zeros, torch.Tensor.cuda, torch.Tensor.type, torch.cuda.current_device)
    cpu.apply()
    assert kept == (torch.zeros, torch.Tensor.cuda, torch.Tensor.type, torch.cuda.current_device)
