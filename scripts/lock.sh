#!/usr/bin/env bash
# Writes requirements/lock.txt anew from requirements/dev.in.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements/lock.txt
.venv/bin/uv pip compile --quiet --python .venv/bin/python --no-annotate --no-header \
    requirements/dev.in -o "$lock"
sed -i '1i # Made by scripts/lock.sh from dev.in: every package that the development environment installs.' "$lock"
