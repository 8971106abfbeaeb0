"""Carry out a Dockerfile's steps in a copy-on-write view of this machine's file system.

Called by scripts/check_container.sh, inside a mount namespace of its own.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CANNOT = 3
# Where the base image's Python and packages stand in the view.
BASE = Path("/opt/base")
NETWORK_SETTINGS = re.compile(r"^(PIP_(?!CONSTRAINT)|SSL_|REQUESTS_|https?_proxy|no_proxy)", re.I)


def steps(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield instruction and argument of every step, continued lines joined."""
    lines = [line for line in dockerfile.read_text("utf-8").splitlines() if line.strip()]
    kept = [line for line in lines if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(kept)).splitlines():
        instruction, argument = line.split(maxsplit=1)
        yield instruction.upper(), argument.strip()


@dataclass
class Ignore:
    """``.dockerignore``: the last pattern that fits a path or a folder above it decides."""

    patterns: list[str]

    @classmethod
    def read(cls, file: Path) -> Ignore:
        """Read the patterns of ``file``."""
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
        return cls([line for line in lines if line and not line.startswith("#")])

    def ignores(self, path: str) -> bool:
        """Whether ``path``, relative to the build context, stays out of it."""
        names = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        ignored = False
        for pattern in self.patterns:
            plain = pattern.removeprefix("!")
            if any(self._fits(name, plain) for name in names):
                ignored = not pattern.startswith("!")
        return ignored

    @staticmethod
    def _fits(name: str, pattern: str) -> bool:
        if pattern.startswith("**/"):
            return fnmatch.fnmatchcase(Path(name).name, pattern[3:])
        return fnmatch.fnmatchcase(name, pattern)


@dataclass
class View:
    """The scratch file system, and what the steps so far have set in it."""

    root: Path
    environment: dict[str, str]
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    folder: str = "/"
    user: str = "0"
    command: list[str] = field(default_factory=list)

    def path(self, inside: str | Path) -> Path:
        """Return where ``inside`` (relative to the working folder, or absolute) really lies."""
        return self.root / str(Path(self.folder) / inside).lstrip("/")

    def run(self, command: list[str]) -> None:
        """Run ``command`` in the view, as its user and in its folder.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        inside = ["chroot", f"--userspec={self.user}:{self.user}", str(self.root)]
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        there = ["/usr/bin/env", "-i", "-C", self.folder, *settings, *command]
        subprocess.run([*inside, *there], check=True)

    def copy(self, argument: str, ignore: Ignore) -> None:
        """Copy files of the build context, as COPY does."""
        *sources, target = shlex.split(argument)
        into_folder = target.endswith("/") or len(sources) > 1
        for source in sources:
            if ignore.ignores(source):
                raise SystemExit(f"error: COPY {source}: .dockerignore keeps it out")
            place = self.path(target) / Path(source).name if into_folder else self.path(target)
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                _copy_folder(ROOT / source, place, ignore)
            else:
                shutil.copy2(ROOT / source, place)


def _copy_folder(source: Path, place: Path, ignore: Ignore) -> None:
    def left_out(folder: str, names: list[str]) -> list[str]:
        inside = Path(folder).relative_to(ROOT)
        return [name for name in names if ignore.ignores(str(inside / name))]

    shutil.copytree(source, place, ignore=left_out, dirs_exist_ok=True)


def _overlay(below: Path, place: Path, scratch: Path) -> None:
    """Mount a copy-on-write view of folder ``below`` at ``place``."""
    upper, work = scratch / "upper", scratch / "work"
    for folder in (place, upper, work):
        folder.mkdir(parents=True)
    options = f"lowerdir={below},upperdir={upper},workdir={work}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(place)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def open_view(scratch: Path) -> View:
    """Mount a copy-on-write view of ``/`` under ``scratch`` (of this mount namespace only)."""
    mounts = [
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "tmpfs", str(scratch)],
    ]
    root, upper, work = scratch / "root", scratch / "upper", scratch / "work"
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    mounts += [
        ["mkdir", str(root), str(upper), str(work)],
        ["mount", "-t", "overlay", "overlay", "-o", options, str(root)],
        *(["mount", "--rbind", f"/{name}", f"{root}/{name}"] for name in ("proc", "dev", "sys")),
        ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/tmp"],
    ]
    try:
        for mount in mounts:
            subprocess.run(mount, check=True, capture_output=True, text=True)
        if Path(sys.prefix).is_relative_to("/tmp"):  # hidden by the view's own /tmp
            _overlay(Path(sys.prefix), root / sys.prefix.lstrip("/"), scratch / "prefix")
    except subprocess.CalledProcessError as error:
        print(f"skipped: {error.stderr.strip() or error}", file=sys.stderr)
        raise SystemExit(CANNOT) from None
    kept = {name: value for name, value in os.environ.items() if NETWORK_SETTINGS.match(name)}
    path = f"{BASE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return View(root, {**kept, "PATH": path, "HOME": "/root", "LANG": "C.UTF-8"})


def install_base(view: View, *, fresh: bool) -> None:
    """Make the stand-in of the base image: a Python that sees the packages of ``.venv``.

    With ``fresh`` it sees torch and numpy, and what they need, only.
    """
    view.run([sys.executable, "-m", "venv", str(BASE)])
    packages = Path(sys.prefix) / "lib" / "python3.12" / "site-packages"
    seen = packages
    if fresh:
        seen = BASE / "packages"
        view.path(seen).mkdir(parents=True)
        for pattern in ("torch*", "numpy*", "triton*", "nvidia*", "cuda*"):
            for found in packages.glob(pattern):
                (view.path(seen) / found.name).symlink_to(found)
        needed = [
            "filelock",
            "typing_extensions",
            "sympy",
            "networkx",
            "jinja2",
            "fsspec",
            "mpmath",
        ]
        view.run([str(BASE / "bin/python"), "-m", "pip", "install", "--quiet", *needed])
    else:
        # As in the image: LayerTracer itself is not there before the step that installs it.
        for found in packages.glob("*layertracer*"):
            inside = view.path(found)
            shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
    pth = BASE / "lib" / "python3.12" / "site-packages" / "image.pth"
    view.path(pth).write_text(f"{seen}\n", "utf-8")
    # Another user than root must reach the interpreter and the packages.
    for place in (Path(sys.executable).resolve(), packages):
        for parent in place.parents:
            inside = view.path(parent)
            inside.chmod(inside.stat().st_mode | 0o055)


def carry_out(view: View, instruction: str, argument: str, ignore: Ignore) -> None:
    """Do one step as Docker would."""
    if instruction == "SHELL":
        view.shell = [word.strip(' "') for word in argument.strip("[]").split(",")]
    elif instruction == "ENV":
        view.environment |= dict(pair.split("=", 1) for pair in shlex.split(argument))
    elif instruction == "WORKDIR":
        view.folder = argument
        view.path(".").mkdir(parents=True, exist_ok=True)
    elif instruction == "COPY":
        view.copy(argument, ignore)
    elif instruction == "RUN":
        view.run([*view.shell, argument])
    elif instruction == "USER":
        view.user = argument
        view.environment["HOME"] = "/tmp"
    elif instruction in ("CMD", "HEALTHCHECK"):
        words = argument[argument.index("[") :]
        view.run([word.strip(' "') for word in words.strip("[]").split(",")])
    elif instruction not in ("ARG", "FROM", "LABEL"):
        raise SystemExit(f"error: container_steps.py does not know the instruction {instruction}")


def main() -> None:
    """Carry out all steps, each with its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="install every package anew")
    parser.add_argument("--cuda", action="store_true", help="build the CUDA kernels too")
    parser.add_argument("--dockerfile", type=Path, default=ROOT / "Dockerfile")
    options = parser.parse_args()
    scratch = Path("/mnt")
    view = open_view(scratch)
    install_base(view, fresh=options.fresh)
    ignore = Ignore.read(ROOT / ".dockerignore")
    for instruction, argument in steps(options.dockerfile):
        began = time.monotonic()
        print(f"--- {instruction} {' '.join(argument.split())}", flush=True)
        try:
            carry_out(view, instruction, argument, ignore)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"error: {instruction} ended with code {error.returncode}") from None
        if instruction == "ENV" and not options.cuda:
            view.environment["LAYERTRACER_CUDA"] = "0"
        print(f"    {time.monotonic() - began:.1f} s", flush=True)
    print("every step passed")


if __name__ == "__main__":
    main()
