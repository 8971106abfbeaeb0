"""Builds LayerTracer and its extension.

Switches (environment):
  LAYERTRACER_CUDA=0|1   force the CUDA kernels off or on; default: on when this torch has CUDA and
                         nvcc is found
  TORCH_CUDA_ARCH_LIST   GPU architectures, default "8.0;9.0;10.0"
  MAX_JOBS               parallel compile jobs of ninja
"""

import os
import shutil
from pathlib import Path

import torch
from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def cuda_home() -> Path | None:
    """Return the CUDA toolkit: by CUDA_HOME, beside nvcc, or in its usual place."""
    nvcc = shutil.which("nvcc")
    candidates = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parent.parent]
    for candidate in [*candidates, "/usr/local/cuda"]:
        if candidate and (Path(candidate) / "include" / "cuda_runtime.h").is_file():
            return Path(candidate)
    return None


if home := cuda_home():
    os.environ["CUDA_HOME"] = str(home)  # read by torch when the next line is run
from torch.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension  # noqa: E402

SOURCES = [
    *("csrc/bindings.cpp", "csrc/bindings_lens.cpp"),
    *("csrc/layer_stats_cpu.cpp", "csrc/drift_cpu.cpp", "csrc/lens_cpu.cpp"),
]
CUDA_SOURCES = ["csrc/layer_stats.cu", "csrc/drift.cu", "csrc/lens.cu"]
CXX_FLAGS = ["-O3", "-std=c++20", "-Wall"]


def with_cuda() -> bool:
    """Whether to build the CUDA kernels."""
    asked = os.environ.get("LAYERTRACER_CUDA")
    if asked is not None:
        return asked == "1"
    return torch.version.cuda is not None and home is not None and bool(shutil.which("nvcc"))


def extension() -> CppExtension:
    """Describe the extension ``layertracer._C``."""
    if not with_cuda():
        return CppExtension("layertracer._C", SOURCES, extra_compile_args={"cxx": CXX_FLAGS})
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0;10.0")
    defined = "-DLAYERTRACER_CUDA"
    return CUDAExtension(
        "layertracer._C",
        SOURCES + CUDA_SOURCES,
        extra_compile_args={"cxx": [*CXX_FLAGS, defined], "nvcc": ["-O3", "-std=c++20", defined]},
    )


def requirements() -> list[str]:
    """Return the direct runtime requirements, without the comments."""
    lines = (ROOT / "requirements" / "runtime.in").read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


setup(
    name="layertracer",
    version="0.1.0",
    description="Find the layers worth training, train only those in Megatron, prove what it did",
    python_requires=">=3.12",
    packages=find_packages(include=["layertracer*", "megatron_patches*"]),
    package_data={"layertracer": ["**/*.json", "**/*.yaml", "**/*.csv", "**/*.j2", "**/*.jsonl"]},
    install_requires=requirements(),
    extras_require={"gpu": ["transformer-engine[pytorch]", "apex"]},
    entry_points={"console_scripts": ["layertracer=layertracer.cli:main"]},
    ext_modules=[extension()],
    cmdclass={"build_ext": BuildExtension},
)
