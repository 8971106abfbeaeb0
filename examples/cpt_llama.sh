#!/usr/bin/env bash
""":"
# Continued pre-training of a Llama-like model with a plan of what trains. Any of these:
#
#   bash examples/cpt_llama.sh                              starts torchrun itself, one process a GPU
#   torchrun examples/cpt_llama.sh                          one process
#   torchrun --nproc-per-node 2 examples/cpt_llama.sh       two
#
# Every setting below can be given as an environment variable; arguments go to Megatron as they are.
# A run that was stopped goes on from the last checkpoint in SAVE.
#
# The file is both: to bash the second half is a here-document behind the exec, to Python the first
# half is a text in quotes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tools="$here/../.venv/bin"
[[ -x "$tools/torchrun" ]] && PATH="$tools:$PATH"
command -v torchrun >/dev/null || { echo "error: torchrun is missing: run make setup first" >&2; exit 2; }
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
exec torchrun --nproc-per-node "${NPROC:-$((gpus > 0 ? gpus : 2))}" ${TORCHRUN_ARGS:-} "$0" "$@"
: <<'#END-OF-PYTHON'
":"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from megatron_patches.pretrain import main  # noqa: E402

ON_GPU = torch.cuda.is_available()
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
DEMO = ROOT / "demo"


def setting(name: str, default: object) -> str:
    """Return the environment variable ``name``, or ``default`` when it is unset or empty."""
    return os.environ.get(name) or str(default)


def command_line() -> list[str]:
    """Return Megatron's arguments for the settings in the environment."""
    steps = int(setting("STEPS", 2000 if ON_GPU else 24))
    # The demo's model was converted for tensor parallelism 2; on a GPU a small model needs none.
    tp = int(setting("TP", 1 if ON_GPU or WORLD % 2 else 2))
    pp = int(setting("PP", 1))
    dp = max(1, WORLD // (tp * pp))
    demo = Path(setting("DEMO", DEMO))
    settings = {
        "--load": setting("LOAD", demo / "megatron"),
        "--save": setting("SAVE", demo / "cpt"),
        "--data-path": setting("DATA", demo / "data" / "news"),
        "--split": setting("SPLIT", "99,1,0"),
        "--tensor-model-parallel-size": tp,
        "--pipeline-model-parallel-size": pp,
        "--seq-length": setting("SEQ_LENGTH", 4096 if ON_GPU else 256),
        "--micro-batch-size": setting("MICRO_BATCH", 4 if ON_GPU else 1),
        "--global-batch-size": setting("GLOBAL_BATCH", 64 if ON_GPU else 2 * dp),
        "--train-iters": steps,
        "--lr": setting("LR", "3e-5"),
        "--min-lr": setting("MIN_LR", "3e-6"),
        "--lr-decay-style": "cosine",
        "--lr-warmup-iters": setting("WARMUP", max(1, steps // 10)),
        "--weight-decay": setting("WEIGHT_DECAY", "0.1"),
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--clip-grad": "1.0",
        "--save-interval": setting("SAVE_INTERVAL", 500 if ON_GPU else 12),
        "--layer-stats-interval": setting("LAYER_STATS_INTERVAL", 10 if ON_GPU else 2),
        "--seed": setting("SEED", 1234),
    }
    plan = setting("PLAN", demo / "plan.json")
    if plan != "none":  # PLAN=none trains every layer
        settings["--freeze-plan"] = plan
    switches = []
    if ON_GPU:
        switches += ["--bf16", "--overlap-grad-reduce", "--overlap-param-gather"]
        switches += ["--sequence-parallel"] if tp > 1 else []
    return [*(str(part) for pair in settings.items() for part in pair), *switches]


if __name__ == "__main__":  # saving starts processes that read this file again
    main([*command_line(), *sys.argv[1:]])
#END-OF-PYTHON
