"""Compiles the kernels for the CPU and calls them: the CPU ops, and the GPU's code emulated."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_POINTER = ctypes.c_void_p


class Chunk(ctypes.Structure):
    """``layertracer::Chunk``."""

    _fields_ = (
        ("data", _POINTER),
        ("reference", _POINTER),
        ("count", ctypes.c_int64),
        ("layer", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("reference_dtype", ctypes.c_int32),
        ("weight", ctypes.c_double),
    )


class Logits(ctypes.Structure):
    """``layertracer::Logits``."""

    _fields_ = (
        ("data", _POINTER),
        ("dtype", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


def compiler() -> str | None:
    """Return the C++ compiler, or None."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compile_harness(output: Path, flags: Sequence[str], csrc: Path = CSRC) -> None:
    """Compile the harness with the kernels in ``csrc``."""
    sources = [HERE / "harness.cpp", *sorted(csrc.glob("*_cpu.cpp"))]
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    command = [str(compiler()), "-std=c++20", *warnings, f"-I{HERE / 'shim'}", f"-I{csrc}", *flags]
    command += ["-x", "c++", *map(str, sources), "-o", str(output)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Harness:
    """The compiled harness; ``emulated`` calls run the GPU's code."""

    def __init__(self, folder: Path, csrc: Path = CSRC) -> None:
        library = folder / "harness.so"
        compile_harness(library, ["-O2", "-fPIC", "-shared"], csrc)
        self.library = ctypes.CDLL(str(library))

    def set_reverse(self, reverse: bool) -> None:
        """Run the threads of a block from the last to the first."""
        self.library.set_reverse(int(reverse))

    def set_target(self, target: int) -> bool:
        """Make the CPU ops use instruction set 0 to 2; return False if it is not here."""
        return bool(self.library.set_target(target))

    def _call(self, name: str, emulated: bool, *arguments: object) -> None:
        getattr(self.library, name + "_emulated" * emulated)(*arguments)

    def reduce(
        self,
        name: str,
        tensors: Sequence[Tensor],
        layers: Sequence[int],
        num_layers: int,
        weights: Sequence[float],
        references: Sequence[Tensor] | None = None,
        emulated: bool = True,
    ) -> Tensor:
        """Call ``layer_stats`` or ``drift``; return its rows, ``[layers, 3 or 4]``."""
        chunks = (Chunk * len(tensors))()
        for index, tensor in enumerate(tensors):
            chunk = chunks[index]
            chunk.data, chunk.count = tensor.data_ptr(), tensor.numel()
            chunk.layer, chunk.weight = layers[index], weights[index]
            chunk.dtype = DTYPES[tensor.dtype]
            if references is not None:
                chunk.reference = references[index].data_ptr()
                chunk.reference_dtype = DTYPES[references[index].dtype]
        out = torch.full((num_layers, 3 if references is None else 4), torch.nan).double()
        count, layer_count = ctypes.c_int64(len(tensors)), ctypes.c_int64(num_layers)
        self._call(name, emulated, chunks, count, layer_count, _POINTER(out.data_ptr()))
        return out

    def lens(
        self, logits: Tensor, targets: Tensor, state: Tensor, first: int = 0, emulated: bool = True
    ) -> Tensor:
        """Return the updated state."""
        updated = state.clone()
        pointers = [_POINTER(targets.data_ptr()), ctypes.c_int64(first)]
        self._call("lens", emulated, _described(logits), *pointers, _POINTER(updated.data_ptr()))
        return updated

    def divergence(
        self, p: Tensor, q: Tensor, p_sums: Tensor, q_sums: Tensor, emulated: bool = True
    ) -> Tensor:
        """Return the divergence of each row."""
        out = torch.full((len(p),), torch.nan).double()
        pointers = [_POINTER(tensor.data_ptr()) for tensor in (p_sums, q_sums, out)]
        self._call("divergence", emulated, _described(p), _described(q), *pointers)
        return out


def _described(logits: Tensor) -> object:
    rows, columns = logits.shape
    return ctypes.byref(Logits(logits.data_ptr(), DTYPES[logits.dtype], rows, columns))
