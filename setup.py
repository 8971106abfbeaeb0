"""Builds LayerTracer and its extension.

Switches (environment):
  LAYERTRACER_CUDA=0|1   force the CUDA kernels off or on; default: on when this torch has CUDA and
                         nvcc is found
  TORCH_CUDA_ARCH_LIST   GPU architectures, default "8.0;9.0;10.0"
  MAX_JOBS               parallel compile jobs of ninja
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


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
)
