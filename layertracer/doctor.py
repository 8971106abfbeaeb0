"""What this machine has for tracing and training, and the remedy for what it lacks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from layertracer import __version__

MEGATRON_SERIES = "0.19."


class Finding(BaseModel):
    """One thing looked at. A finding with a ``remedy`` is a problem when ``required``."""

    name: str
    value: str
    remedy: str | None = None
    required: bool = False

    @property
    def is_problem(self) -> bool:
        """Whether the main job would fail because of it."""
        return self.required and self.remedy is not None


def examine() -> list[Finding]:
    """Look at the packages, the extension, the GPUs, the network and the disk."""
    checks: list[Callable[[], list[Finding]]] = [
        _python,
        _packages,
        _extension,
        _accelerators,
        _optional_packages,
        _network,
        _shared_memory,
    ]
    return [finding for check in checks for finding in check()]


def _python() -> list[Finding]:
    version = platform.python_version()
    remedy = None if version.startswith("3.12.") else "use Python 3.12 (.python-version holds it)"
    return [
        Finding(name="layertracer", value=__version__),
        Finding(name="python", value=version, remedy=remedy, required=True),
    ]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> list[Finding]:
    findings = []
    for package in ("torch", "megatron-core", "transformers", "lm-eval", "sentencepiece"):
        version = _version(package)
        remedy = None if version else f"{package} is not installed: run `make setup`"
        if package == "megatron-core" and version and not version.startswith(MEGATRON_SERIES):
            remedy = "the patches are written for megatron-core 0.19.x: install that series"
        findings.append(
            Finding(name=package, value=version or "missing", remedy=remedy, required=True)
        )
    return findings


def _extension() -> list[Finding]:
    found = importlib.util.find_spec("layertracer._C")
    if found is None:
        return [
            Finding(
                name="extension",
                value="missing",
                remedy="the extension is not built: run `make setup`",
                required=True,
            )
        ]
    return [Finding(name="extension", value=Path(found.origin or "").name)]


def _accelerators() -> list[Finding]:
    import torch

    built_for = Finding(name="CUDA of torch", value=torch.version.cuda or "none")
    if not torch.cuda.is_available():
        remedy = "no GPU is visible: everything runs on the CPU, with gloo"
        return [built_for, Finding(name="GPUs", value="none", remedy=remedy)]
    findings = [
        built_for,
        Finding(name="NCCL", value=".".join(map(str, torch.cuda.nccl.version()))),
    ]
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        value = (
            f"{device.name}, {device.total_memory / 2**30:.0f} GiB, sm_{device.major}{device.minor}"
        )
        findings.append(Finding(name=f"GPU {number}", value=value))
    return findings


def _optional_packages() -> list[Finding]:
    import torch

    wanted = torch.cuda.is_available()
    findings = []
    for package in ("transformer-engine", "apex"):
        version = _version(package)
        remedy = f"{package} speeds up training on GPUs: use the image of Dockerfile"
        findings.append(
            Finding(
                name=package,
                value=version or "not installed",
                remedy=remedy if wanted and not version else None,
            )
        )
    return findings


def _network() -> list[Finding]:
    import psutil

    up = sorted(name for name, state in psutil.net_if_stats().items() if state.isup)
    infiniband = Path("/sys/class/infiniband")
    adapters = sorted(entry.name for entry in infiniband.iterdir()) if infiniband.is_dir() else []
    chosen = os.environ.get("NCCL_SOCKET_IFNAME") or os.environ.get("GLOO_SOCKET_IFNAME")
    remedy = None
    if chosen and chosen.lstrip("^=").split(",")[0] not in up and not chosen.startswith("^"):
        remedy = f"NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names {chosen}, which is not up"
    return [
        Finding(name="network", value=", ".join(up) or "none", remedy=remedy, required=True),
        Finding(name="InfiniBand", value=", ".join(adapters) or "none"),
    ]


def _shared_memory() -> list[Finding]:
    place = Path("/dev/shm")
    if not place.is_dir():
        return []
    free = shutil.disk_usage(place).free / 2**30
    remedy = "less than 1 GiB of /dev/shm: start the container with --shm-size or --ipc=host"
    return [
        Finding(name="/dev/shm", value=f"{free:.1f} GiB free", remedy=remedy if free < 1 else None)
    ]
