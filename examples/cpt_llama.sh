#!/usr/bin/env bash
""":"
# Continued pre-training of a Llama-like model with a plan of what trains. Any of these:
#
#   bash examples/cpt_llama.sh                              starts torchrun itself, one process a GPU
#   torchrun examples/cpt_llama.sh                          one process
#   torchrun --nproc-per-node 2 examples/cpt_llama.sh       two
#
# Every setting below can be given as an environment variable; arguments go to Megatron as they are.
# SIZE=1b, 8b or 70b sets those that suit the size on H100 GPUs (examples/sizes); --dry-run prints
# the commands and starts nothing. A run that was stopped goes on from the last checkpoint in SAVE.
#
# The file is both: to bash the second half is a here-document behind the exec, to Python the first
# half is a text in quotes.
set -euo pipefail
# shellcheck source=examples/launch.sh
source "$(dirname "$0")/launch.sh"
launch "$0" "$@" || exit $?
exit 0
# shellcheck disable=SC2317  # Python, to bash a text that is never read
: <<'#END-OF-PYTHON'
":"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from layertracer.estimate import presets  # noqa: E402
from layertracer.estimate.settings import Layout, Recompute  # noqa: E402
from megatron_patches.launch import Launch, or_end  # noqa: E402

ON_GPU = os.environ.get("DEVICE", "gpu" if torch.cuda.is_available() else "cpu") == "gpu"
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
FAMILY, SIZE = os.environ.get("FAMILY") or "llama", os.environ.get("SIZE")
PRESET = or_end(presets.settings, ROOT / "examples" / "sizes", FAMILY, SIZE)


def setting(name: str, default: object) -> str:
    """Return the environment variable ``name``, else what SIZE sets, else ``default``."""
    return os.environ.get(name) or str(PRESET.get(name, default))


DEMO = Path(setting("DEMO", ROOT / "demo"))
LOAD = Path(setting("LOAD", DEMO / "megatron"))
STEPS = int(setting("STEPS", 2000 if ON_GPU else 24))
PP = int(setting("PP", 1))
# The demo's model was converted for tensor parallelism 2; on a GPU a small model needs none.
TP = int(setting("TP", 1 if ON_GPU or WORLD % 2 else 2))
DP = max(1, WORLD // (TP * PP))
SEQ_LENGTH = int(setting("SEQ_LENGTH", 4096 if ON_GPU else 256))
MICRO_BATCH = int(setting("MICRO_BATCH", 4 if ON_GPU else 1))
GLOBAL_BATCH = int(setting("GLOBAL_BATCH", 64 if ON_GPU else 2 * DP))
RECOMPUTE = Recompute(setting("RECOMPUTE", Recompute.NONE))

SETTINGS = {
    "--load": LOAD,
    "--save": setting("SAVE", DEMO / "cpt"),
    "--data-path": setting("DATA", DEMO / "data" / "news"),
    "--split": setting("SPLIT", "99,1,0"),
    "--tensor-model-parallel-size": TP,
    "--pipeline-model-parallel-size": PP,
    "--seq-length": SEQ_LENGTH,
    "--micro-batch-size": MICRO_BATCH,
    "--global-batch-size": GLOBAL_BATCH,
    "--train-iters": STEPS,
    "--lr": setting("LR", "3e-5"),
    "--min-lr": setting("MIN_LR", "3e-6"),
    "--lr-decay-style": "cosine",
    "--lr-warmup-iters": setting("WARMUP", max(1, STEPS // 10)),
    "--weight-decay": setting("WEIGHT_DECAY", "0.1"),
    "--adam-beta1": "0.9",
    "--adam-beta2": "0.95",
    "--clip-grad": "1.0",
    "--save-interval": setting("SAVE_INTERVAL", 500 if ON_GPU else 12),
    "--layer-stats-interval": setting("LAYER_STATS_INTERVAL", 10 if ON_GPU else 2),
    "--seed": setting("SEED", 1234),
}
# PLAN=none trains every layer.
PLAN = setting("PLAN", DEMO / "plan.json")
if PLAN != "none":
    SETTINGS["--freeze-plan"] = PLAN

SWITCHES = {
    Recompute.NONE: [],
    Recompute.SELECTIVE: ["--recompute-granularity=selective", "--recompute-modules=mlp"],
    Recompute.FULL: [
        "--recompute-granularity=full",
        "--recompute-method=uniform",
        "--recompute-num-layers=1",
    ],
}[RECOMPUTE]
if ON_GPU:
    SWITCHES += ["--bf16", "--overlap-grad-reduce", "--overlap-param-gather"]
    if find_spec("transformer_engine") is None:
        SWITCHES.append("--transformer-impl=local")
if ON_GPU and TP > 1:
    SWITCHES.append("--sequence-parallel")

LAYOUT = Layout(
    tensor=TP,
    pipeline=PP,
    data=DP,
    sequence_parallel=ON_GPU and TP > 1,
    sequence_length=SEQ_LENGTH,
    micro_batch=MICRO_BATCH,
    micro_batches=max(1, GLOBAL_BATCH // (DP * MICRO_BATCH)),
    bf16=ON_GPU,
    recompute=RECOMPUTE,
)
# Saving starts processes that would read this file again, and import torch again, by this name.
del __file__
Launch(SETTINGS, SWITCHES, LAYOUT, WORLD, ON_GPU).start(sys.argv[1:])
#END-OF-PYTHON
