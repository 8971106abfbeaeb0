"""Speed and memory of converting, beside the naive way and a plain copy.

    python benchmarks/convert.py MODEL_DIR [--threads 2]

Each in a process of its own, on the same model:

- copy: the weight files copied and flushed to disk, the floor of anything that reads and writes.
- naive: every tensor loaded and fused, then saved by ``torch.distributed.checkpoint`` at once.
- to-megatron, to-hf: what ``layertracer convert`` does.

Memory is the peak of anonymous memory above what the imports took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

_STEPS = ("copy", "naive", "to-megatron", "to-hf")


def main(
    model: Path,
    threads: Annotated[int, typer.Option(help="Tensors in work at once.")] = 2,
    scratch: Annotated[Path | None, typer.Option(help="Folder on the disk to measure.")] = None,
    step: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Print a line for each."""
    if step:
        print(json.dumps(measured(step, model, scratch or Path(), threads)))
        return
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    print(f"{model}: {size / 1e9:.2f} GB")
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for name in _STEPS:
            command = [sys.executable, __file__, str(model), "--scratch", folder]
            command += ["--threads", str(threads), "--step", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            seconds, peak = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name:12} {seconds:7.2f} s  {size / seconds / 1e9:6.2f} GB/s  "
                f"{peak / 2**20:8.1f} MiB"
            )


def measured(step: str, model: Path, scratch: Path, threads: int) -> tuple[float, int]:
    """Run one step in this process; return its seconds and peak memory in bytes."""
    run = prepare(step, model, scratch, threads)
    start = anonymous_bytes()
    peak, done = [start], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, peak[0] - start


def prepare(step: str, model: Path, scratch: Path, threads: int) -> Callable[[], object]:
    """Import what the step needs and return it as a function."""
    import torch._dynamo  # noqa: F401  torch imports it at the first save

    from layertracer.checkpoint.to_hf import to_hf
    from layertracer.checkpoint.to_megatron import to_megatron

    steps: dict[str, Callable[[], object]] = {
        "copy": lambda: copy(model, scratch / "copy"),
        "naive": lambda: naive(model, scratch / "naive"),
        "to-megatron": lambda: to_megatron(model, scratch / "megatron", threads=threads),
        "to-hf": lambda: to_hf(scratch / "megatron", scratch / "hf", threads=threads),
    }
    return steps[step]


def copy(model: Path, out: Path) -> None:
    """Copy the weight files and wait for the disk."""
    out.mkdir()
    for file in model.glob("*.safetensors"):
        subprocess.run(
            ["dd", f"if={file}", f"of={out / file.name}", "bs=16M", "conv=fsync"],
            check=True,
            stderr=subprocess.DEVNULL,
        )


def naive(model: Path, out: Path) -> None:
    """Load every tensor, fuse them all, save them all."""
    import torch
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint import save as dcp_save

    from layertracer.checkpoint.hf_config import megatron_shape
    from layertracer.checkpoint.slots import slots
    from layertracer.model_folder import ModelFolder

    shape = megatron_shape(ModelFolder(model))
    tensors: dict[str, torch.Tensor] = {}
    for file in model.glob("*.safetensors"):
        tensors |= load_file(file)
    fused: dict[str, list[torch.Tensor]] = {}
    for slot in slots(shape):
        parts = [tensors[name] for name in slot.sources]
        fused.setdefault(slot.keys[0], []).append(slot.rule.fusion.join(parts, shape))
    stacked = {key: torch.stack(layers) for key, layers in fused.items()}
    dcp_save(stacked, storage_writer=FileSystemWriter(out), no_dist=True)


def anonymous_bytes() -> int:
    """Return this process's anonymous memory."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    typer.run(main)
