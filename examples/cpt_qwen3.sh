#!/usr/bin/env bash
""":"
# Continued pre-training of a Qwen3 model: cpt_llama.sh with Qwen3's sizes (SIZE=1.7b, 8b or 32b).
# The model's shape comes from the converted checkpoint in LOAD, so nothing else differs.
#
#   bash examples/cpt_qwen3.sh                              starts torchrun itself, one process a GPU
#   torchrun --nproc-per-node 2 examples/cpt_qwen3.sh       two processes
set -euo pipefail
export FAMILY=qwen3
# shellcheck source=examples/launch.sh
source "$(dirname "$0")/launch.sh"
launch "$0" "$@" || exit $?
exit 0
# shellcheck disable=SC2317  # Python, to bash a text that is never read
: <<'#END-OF-PYTHON'
":"""

import os
import runpy
from pathlib import Path

if __name__ == "__main__":  # not in the processes that saving starts, which read this file too
    os.environ["FAMILY"] = "qwen3"
    runpy.run_path(str(Path(__file__).with_name("cpt_llama.sh")), run_name="__main__")
#END-OF-PYTHON
