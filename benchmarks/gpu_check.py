"""One call on a machine with a GPU: build the extension, check every op, time them.

    python benchmarks/gpu_check.py [--no-build]

Checks: every op against float64, twice the same bits, no wait for the device inside an op. Times:
bytes read per second beside the copy bandwidth of the device, and ``torch._foreach_norm`` and the
fused norms of apex and Transformer Engine where they are installed. Exit code 1 if a check fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

ROOT = Path(__file__).parents[1]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Shapes of a block of a 1B-parameter model, of which there are 16; 112 tensors and an embedding.
HIDDEN, INNER, KEYS, LAYERS, VOCABULARY = 2048, 8192, 512, 16, 65536
ROWS, COLUMNS = 256, 65536
ROUNDS = 20


def build() -> None:
    """Compile the extension with its CUDA kernels for this GPU, in place."""
    major, minor = torch.cuda.get_device_capability()
    wanted = {"LAYERTRACER_CUDA": "1", "TORCH_CUDA_ARCH_LIST": f"{major}.{minor}"}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **wanted}, check=True)


class Checks:
    """Compares results and counts what differs."""

    def __init__(self) -> None:
        self.failed = 0

    def close(self, name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
        """Print the largest relative difference, and whether it is small enough."""
        difference = (found.cpu() - expected.cpu()).abs() / expected.cpu().abs().clamp(min=1e-12)
        largest = difference.max().item()
        self.say(f"{name}: {largest:.1e} from float64", largest <= tolerance)

    def say(self, what: str, right: bool) -> None:
        """Print a check's outcome."""
        self.failed += not right
        print(f"  {'ok   ' if right else 'WRONG'} {what}")


def without_waiting(call: Callable[[], Tensor]) -> Tensor:
    """Return ``call()``; an op that waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_reductions(checks: Checks, dtype: torch.dtype) -> None:
    """Check statistics and drift over sizes at and beside every edge, at odd addresses."""
    from layertracer import ops

    sizes = [1, 7, 8, 9, 255, 257, 65535, 65537, 3_000_001]
    tensors = [torch.randn(size + 1, device="cuda").to(dtype)[1:] for size in sizes]
    references = [tensor + torch.randn_like(tensor) for tensor in tensors]
    layers, weights = [index % 4 for index in range(len(sizes))], [1.0] * (len(sizes) - 1) + [0.0]
    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "layer_grad_stats": (
            lambda: ops.layer_grad_stats(tensors, layers, 4, weights),
            ops.layer_grad_stats_reference(tensors, layers, 4, weights),
        ),
        "activation_drift": (
            lambda: ops.activation_drift(tensors, references, layers, 4, weights),
            ops.activation_drift_reference(tensors, references, layers, 4, weights),
        ),
    }
    for name, (call, expected) in calls.items():
        found = without_waiting(lambda call=call: torch.stack(call()))
        checks.close(f"{name} {dtype}", found, torch.stack(expected), 1e-9)
        checks.say(f"{name} {dtype}: the same bits again", found.equal(torch.stack(call())))


def check_not_finite(checks: Checks, dtype: torch.dtype) -> None:
    """Check that what is not finite is counted and left out of the sums."""
    from layertracer import ops

    tensor = torch.ones(70000, dtype=dtype, device="cuda")
    tensor[[0, 65536, 69999]] = torch.nan
    found = torch.stack(ops.layer_grad_stats([tensor], [0], 1)).flatten().tolist()
    checks.say(f"layer_grad_stats {dtype}: NaN counted", found == [69997, 1, 3])


def check_lens(checks: Checks, dtype: torch.dtype) -> None:
    """Check the lens ops over a vocabulary in two pieces of odd width."""
    from layertracer import ops

    p = (torch.randn(40, 5003, device="cuda") * 20).to(dtype)
    q = (p + torch.randn_like(p)).to(dtype)
    targets = torch.randint(0, 5003, (40,), device="cuda")
    state = ops.lens_start(40, "cuda")
    for first, piece in ((0, p[:, :1001]), (1001, p[:, 1001:])):
        state = ops.lens_update(piece.contiguous(), targets, state, first)
    sums = [x.double().logsumexp(1) for x in (p, q)]
    checks.close(f"lens_update {dtype}", ops.log_sum_exp(state), sums[0], 1e-6)
    found = without_waiting(lambda: ops.js_divergence(p, q, *sums))
    expected = ops.js_divergence_reference(p, q, *sums)
    checks.close(f"js_divergence {dtype}", found, expected, 2e-5)


def seconds(call: Callable[[], object]) -> float:
    """Return the shortest of several runs, by the device's clock."""
    best = float("inf")
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def copy_bandwidth() -> float:
    """Return bytes read and written per second by a large copy on the device."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def fused_norms(tensors: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Return the fused norms that are installed, each over all ``tensors``."""
    overflow = torch.zeros(1, dtype=torch.int32, device="cuda")
    sources = {
        "apex l2norm": ("apex.multi_tensor_apply", "amp_C"),
        "Transformer Engine l2norm": ("transformer_engine.pytorch.optimizers",) * 2,
    }
    found: dict[str, Callable[[], object]] = {}
    for name, (applier, kernels) in sources.items():
        try:
            apply = import_module(applier).multi_tensor_applier
            norm = import_module(kernels).multi_tensor_l2norm
        except (ImportError, AttributeError):
            print(f"  {name}: not installed")
            continue
        found[name] = lambda apply=apply, norm=norm: apply(norm, overflow, [tensors], True)
    return found


def time_gradients(dtype: torch.dtype, copy: float) -> None:
    """Time the statistics of a 1B-parameter gradient set, and what else computes norms."""
    from layertracer import ops

    block = [(HIDDEN,)] * 2 + [(HIDDEN, HIDDEN)] * 2 + [(KEYS, HIDDEN)] * 2 + [(INNER, HIDDEN)] * 3
    shapes = [(layer, shape) for layer in range(LAYERS) for shape in block]
    shapes.append((LAYERS, (VOCABULARY, HIDDEN)))
    tensors = [torch.randn(shape, device="cuda").to(dtype) for _, shape in shapes]
    layers = [layer for layer, _ in shapes]
    size = sum(tensor.nbytes for tensor in tensors)
    calls: dict[str, Callable[[], object]] = {
        "layer_grad_stats": lambda: ops.layer_grad_stats(tensors, layers, LAYERS + 1),
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors),
        **fused_norms(tensors),
    }
    print(f"gradients, {len(tensors)} tensors, {size / 1e9:.1f} GB, {dtype}")
    for name, call in calls.items():
        report(name, size, seconds(call), copy)
    references = [tensor.clone() for tensor in tensors]
    drift = seconds(lambda: ops.activation_drift(tensors, references, layers, LAYERS + 1))
    report("activation_drift", 2 * size, drift, copy)


def time_lens(copy: float) -> None:
    """Time the lens ops over float32 logits."""
    from layertracer import ops

    p, q = torch.randn(ROWS, COLUMNS, device="cuda"), torch.randn(ROWS, COLUMNS, device="cuda")
    targets = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
    state = ops.lens_start(ROWS, "cuda")
    sums = [x.double().logsumexp(1) for x in (p, q)]
    print(f"logits, {ROWS} rows of {COLUMNS}, float32")
    report("lens_update", p.nbytes, seconds(lambda: ops.lens_update(p, targets, state)), copy)
    js = seconds(lambda: ops.js_divergence(p, q, *sums))
    report("js_divergence", 2 * p.nbytes, js, copy)


def report(name: str, size: int, taken: float, copy: float) -> None:
    """Print time, bytes per second and their share of the copy bandwidth."""
    speed = size / taken
    print(f"  {name:26} {taken * 1e3:8.3f} ms {speed / 1e9:7.0f} GB/s {speed / copy:6.1%} of copy")


def main(do_build: Annotated[bool, typer.Option("--build/--no-build")] = True) -> None:
    """Build, check, time."""
    if not torch.cuda.is_available():
        print("error: this machine has no GPU that torch can use", file=sys.stderr)
        raise typer.Exit(2)
    if do_build:
        build()
    sys.path.insert(0, str(ROOT))
    torch.manual_seed(0)
    print(torch.cuda.get_device_name())
    checks = Checks()
    for dtype in DTYPES:
        check_reductions(checks, dtype)
        check_not_finite(checks, dtype)
        check_lens(checks, dtype)
    copy = copy_bandwidth()
    print(f"copy: {copy / 1e9:.0f} GB/s, read and write together")
    for dtype in (torch.float32, torch.bfloat16):
        time_gradients(dtype, copy)
    time_lens(copy)
    if checks.failed:
        print(f"error: {checks.failed} checks failed", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
