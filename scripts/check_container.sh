#!/usr/bin/env bash
# Runs every step of Dockerfile on this machine, in a scratch copy-on-write view of its file system
# with .venv's packages in the place of the base image's. Nothing outside the view is touched.
#
#   scripts/check_container.sh           .venv's packages count as installed: under a minute
#   scripts/check_container.sh --fresh   only torch counts; every other package is installed anew
#   scripts/check_container.sh --cuda    build the CUDA kernels too (needs nvcc)
#
# Exit code 0: every step passed; 1: a step failed; 3: this machine can't (needs root on Linux).
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ $(id -u) != 0 ]] || ! unshare --mount true 2>/dev/null; then
    echo "skipped: a private view of the file system needs root and mount namespaces" >&2
    exit 3
fi
exec unshare --mount --fork .venv/bin/python scripts/container_steps.py "$@"
