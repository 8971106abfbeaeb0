#!/usr/bin/env bash
# Makes .venv with the pinned dependencies and builds the extension. Done work is not done again.
# Called by make; leaves one clear line when something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
uv_version=0.13.9
stamp=.venv/.installed

die() {
    echo "error: $*" >&2
    exit 2
}

find_python() {
    local candidate
    for candidate in python3.12 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.12 is missing: install it ('apt-get install python3.12 python3.12-venv', or 'pyenv install 3.12')"
}

check_compiler() {
    local compiler=${CXX:-g++}
    command -v "$compiler" >/dev/null ||
        die "the C++ compiler '$compiler' is missing: install it ('apt-get install g++')"
}

install_packages() {
    local python=$1 log=.venv/install.log
    "$python" -m venv .venv ||
        die "this Python 3.12 can't make a virtual environment: install its venv module ('apt-get install python3.12-venv')"
    echo "installing the pinned packages into .venv (about 5 GB, once; log in $log)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version" >"$log" 2>&1 ||
        die "the package index can't be reached: connect, or set PIP_INDEX_URL and UV_INDEX_URL to a mirror (details: $log)"
    # uv draws its own progress on a terminal.
    .venv/bin/uv pip install --python .venv/bin/python -r requirements/lock.txt ||
        die "the packages of requirements/lock.txt could not be installed: is the machine online? Set UV_INDEX_URL to use a mirror"
}

build_extension() {
    echo "building the extension"
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e . \
        >.venv/build.log 2>&1 ||
        { tail -n 20 .venv/build.log >&2; die "the extension did not build (whole log: .venv/build.log)"; }
}

sources_digest() {
    {
        cat scripts/setup.sh requirements/lock.txt setup.py pyproject.toml
        find csrc -type f | LC_ALL=C sort | xargs -r cat
    } | sha256sum | cut -d ' ' -f 1
}

main() {
    local packages_digest python
    if [[ -f $stamp && $(<"$stamp") == "$(sources_digest)" ]]; then
        return
    fi
    check_compiler
    packages_digest=$(sha256sum requirements/lock.txt | cut -d ' ' -f 1)
    if [[ ! -f .venv/.packages || $(<.venv/.packages) != "$packages_digest" ]]; then
        python=$(find_python)
        install_packages "$python"
        echo "$packages_digest" >.venv/.packages
    fi
    build_extension
    sources_digest >"$stamp"
}

main
