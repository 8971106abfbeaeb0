#!/usr/bin/env bash
# Runs the kernels (CPU, and GPU code emulated) under AddressSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${CXX:-g++}" -std=c++20 -O1 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all -Icsrc -Itests/csrc/shim \
    -x c++ tests/csrc/sanitize.cpp csrc/*_cpu.cpp -o "$folder/sanitize"
ASAN_OPTIONS=detect_stack_use_after_return=0 "$folder/sanitize"
