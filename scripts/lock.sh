#!/usr/bin/env bash
# Writes requirements/lock.txt anew from requirements/dev.in, and requirements/container.txt from
# runtime.in: the same versions without what the base image of Dockerfile brings.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/lock.txt
container=requirements/container.txt

compile() {
    .venv/bin/uv pip compile --quiet --python .venv/bin/python --no-annotate --no-header "$@"
}

compile requirements/dev.in -o "$lock"
sed -i '1i # Made by scripts/lock.sh from dev.in: every package that the development environment installs.' "$lock"
# torch and what belongs to its CUDA stay the image's; so does numpy, which its torch is built on.
compile requirements/runtime.in -c "$lock" | grep -vE '^(torch|triton|nvidia-|cuda-|numpy)' >"$container.new"
sed -i '1i # Made by scripts/lock.sh from runtime.in: what the container installs on top of its base image.' "$container.new"
mv "$container.new" "$container"
