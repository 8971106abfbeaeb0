"""What is missing for the set-up is said in one line, before anything is half made."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ["scripts/setup.sh", "requirements/lock.txt", "setup.py", "pyproject.toml"]
TOOLS = ["bash", "sh", "env", "cat", "sha256sum", "cut", "find", "sort", "dirname", "tail", "rm"]
TOOLS += ["mkdir", "touch", "grep", "sed", "head"]


@pytest.fixture
def checkout(tmp_path):
    """The files that the set-up reads, and a PATH of our own making."""
    for name in NEEDED:
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (tmp_path / "checkout" / "csrc").mkdir()
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path / "checkout"


def program(checkout: Path, name: str, text: str) -> None:
    """Put a small program on the PATH."""
    file = checkout.parent / "bin" / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def python_3_12(checkout: Path) -> None:
    """Put the real Python of this run on the PATH, outside its virtual environment."""
    real = Path(sys.base_prefix) / "bin" / "python3.12"
    program(checkout, "python3.12", f'exec "{real}" "$@"')


def set_up(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run the set-up with nothing but our PATH and ``variables``."""
    environment = {"PATH": str(checkout.parent / "bin"), "HOME": str(checkout.parent)}
    for name in ("TMPDIR", "LD_LIBRARY_PATH"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return subprocess.run(
        ["scripts/setup.sh"],
        cwd=checkout,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def only_line(done: subprocess.CompletedProcess) -> str:
    """Return the one line on stderr of a run that failed."""
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def test_without_python_3_12(checkout):
    program(checkout, "g++", "exit 0")
    program(checkout, "python3", "exit 1")  # another version
    line = only_line(set_up(checkout))
    assert "Python 3.12 is missing" in line
    assert "pyenv install 3.12" in line
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("variables", [{}, {"CXX": "clang++-99"}])
def test_without_a_compiler(checkout, variables):
    python_3_12(checkout)
    line = only_line(set_up(checkout, **variables))
    assert f"compiler '{variables.get('CXX', 'g++')}' is missing" in line
    assert "apt-get install g++" in line
    assert not (checkout / ".venv").exists()


OFFLINE = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}


def test_offline_at_first_and_at_the_second_try(checkout):
    program(checkout, "g++", "exit 0")
    python_3_12(checkout)
    for _ in range(2):
        line = only_line(set_up(checkout, **OFFLINE, PIP_RETRIES="0"))
        assert "package index can't be reached" in line
        assert "PIP_INDEX_URL" in line
    assert not (checkout / ".venv" / ".packages").exists()
    assert not (checkout / ".venv" / ".installed").exists()


def test_offline_after_the_installer_was_fetched(checkout, tmp_path):
    """pip finds uv in a local folder; uv then has no index and an empty cache."""
    program(checkout, "g++", "exit 0")
    python_3_12(checkout)
    wheel_of_uv(tmp_path / "wheels", version=uv_version(checkout))
    done = set_up(
        checkout,
        PIP_CONFIG_FILE="/dev/null",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(tmp_path / "wheels"),
        UV_OFFLINE="1",
        UV_NO_CONFIG="1",
        UV_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: the packages of requirements/lock.txt could not be installed")
    assert "is the machine online? Set UV_INDEX_URL" in last
    assert not (checkout / ".venv" / ".packages").exists()


def uv_version(checkout: Path) -> str:
    """Return the version of uv that the set-up pins."""
    return re.search(r"^uv_version=(.*)$", (checkout / NEEDED[0]).read_text(), re.M)[1]


def wheel_of_uv(folder: Path, version: str) -> None:
    """Write a wheel whose only file is a script that starts the uv of this environment."""
    folder.mkdir()
    name, real = f"uv-{version}", Path(sys.executable).with_name("uv")
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.data/scripts/uv", f'#!/bin/sh\nexec "{real}" "$@"\n')
        info = f"{name}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
