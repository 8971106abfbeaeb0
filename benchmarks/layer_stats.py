"""How fast statistics by layer are on a CPU, beside a plain read and ``torch._foreach_norm``.

    python benchmarks/layer_stats.py [--threads N] [--rounds 15]

The gradients of a model of 135M parameters (the shapes of SmolLM2-135M, 272 tensors) in float32 and
bfloat16. All are timed in turns and the best round of each counts, so that other work on the
machine does not decide the ratios. The plain read is a loop compiled here that adds up 64-bit words
of the same bytes with as many threads.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer
from torch import Tensor

from layertracer.ops import layer_grad_stats

READ = """
#include <cstdint>
extern "C" uint64_t plain_read(const uint64_t* const* tensors, const int64_t* words, int64_t count,
                               int threads) {
  uint64_t sum = 0;
  #pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(dynamic, 1)
  for (int64_t tensor = 0; tensor < count; ++tensor) {
    for (int64_t i = 0; i < words[tensor]; ++i) sum += tensors[tensor][i];
  }
  return sum;
}
"""
HIDDEN, INNER, KEYS, LAYERS, VOCABULARY = 576, 1536, 192, 30, 49152
PIECE = 1 << 18  # elements: the plain read is split so that threads share large tensors


def gradients(dtype: torch.dtype) -> tuple[list[Tensor], list[int]]:
    """Return gradients and the layer of each; the embedding and final norm are layer 30."""
    block = [(HIDDEN,)] * 2 + [(HIDDEN, HIDDEN)] * 2 + [(KEYS, HIDDEN)] * 2 + [(INNER, HIDDEN)] * 3
    shapes = [(layer, shape) for layer in range(LAYERS) for shape in block]
    shapes += [(LAYERS, (VOCABULARY, HIDDEN)), (LAYERS, (HIDDEN,))]
    tensors = [torch.randn(shape).mul_(1e-3).to(dtype) for _, shape in shapes]
    return tensors, [layer for layer, _ in shapes]


def plain_reader(tensors: list[Tensor], threads: int) -> Callable[[], int]:
    """Return a function that reads every byte of ``tensors`` once."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "read.cpp", Path(folder) / "read.so"
        source.write_text(READ)
        flags = ["-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"]
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
        read = ctypes.CDLL(str(library)).plain_read
    read.restype = ctypes.c_uint64
    pieces = [piece for tensor in tensors for piece in tensor.view(-1).split(PIECE)]
    addresses = (ctypes.c_void_p * len(pieces))(*(piece.data_ptr() for piece in pieces))
    words = [piece.numel() * piece.element_size() // 8 for piece in pieces]
    counts = (ctypes.c_int64 * len(words))(*words)
    return lambda: read(addresses, counts, ctypes.c_int64(len(pieces)), threads)


def best_times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the shortest time of each call in seconds, all called in turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main(threads: int = torch.get_num_threads(), rounds: int = 15) -> None:
    """Print times and ratios."""
    torch.set_num_threads(threads)
    for dtype in (torch.float32, torch.bfloat16):
        tensors, layers = gradients(dtype)
        elements = sum(tensor.numel() for tensor in tensors)
        size = elements * tensors[0].element_size()
        calls: dict[str, Callable[[], object]] = {
            "plain read": plain_reader(tensors, threads),
            "layer_grad_stats": lambda t=tensors, at=layers: layer_grad_stats(t, at, LAYERS + 1),
            "_foreach_norm": lambda t=tensors: torch._foreach_norm(t),
        }
        best = best_times(calls, rounds)
        print(f"{str(dtype)[6:]}: {elements / 1e6:.0f}M elements, {threads} threads")
        for name, seconds in best.items():
            speed, ratio = size / seconds / 1e9, seconds / best["plain read"]
            print(f"  {name:18} {seconds * 1e3:8.1f} ms {speed:6.1f} GB/s {ratio:5.2f} x")


if __name__ == "__main__":
    typer.run(main)
