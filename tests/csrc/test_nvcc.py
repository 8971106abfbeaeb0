"""The kernels compile for every GPU without warnings, spilled registers or local memory."""

import re
import shutil
import subprocess

import pytest

from tests.csrc.harness import CSRC

ARCHITECTURES = ("80", "90", "100")
KERNELS = {
    "layer_stats.cu": {"reduce_chunks", "reduce_layers"},
    "drift.cu": {"reduce_pairs", "reduce_layers"},
    "lens.cu": {"lens_rows", "js_rows"},
}
pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def compile_for_gpus(source: str, folder) -> str:
    """Return what ptxas reports."""
    command = ["nvcc", "-O3", "-std=c++20", "-c", str(CSRC / source), "-o", str(folder / "out.o")]
    command += ["-Xcompiler=-Wall,-Wextra,-Werror", "-Werror=all-warnings", "-Xptxas=-v"]
    command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_kernel_file_is_covered():
    assert {file.name for file in CSRC.glob("*.cu")} == set(KERNELS)


@pytest.mark.parametrize("source", KERNELS)
def test_resources(source, tmp_path):
    report = compile_for_gpus(source, tmp_path)
    memory = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report
    )
    assert len(memory) == len(ARCHITECTURES) * len(KERNELS[source])
    assert set(memory) == {("0", "0", "0")}
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", report)]
    assert len(registers) == len(memory)
    # 256 threads a block: up to 64 registers four blocks fit on a multiprocessor.
    assert max(registers) <= 64
    for kernel in KERNELS[source]:
        assert report.count(kernel) >= len(ARCHITECTURES)
