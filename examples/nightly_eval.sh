#!/usr/bin/env bash
# Every night: evaluate a training run's new checkpoints, keep a history, flag what got worse.
#
#   CHECKPOINT=/data/cpt OUT=/data/evaluations bash examples/nightly_eval.sh
#
# Settings (environment), the same every night or nothing can be compared:
#   CHECKPOINT   the training's --save folder                       (required)
#   OUT          history.sqlite, dashboard.html and evaluations     (required)
#   TASKS        of builtin, ceval, cmmlu                           (builtin)
#   DATA_DIR     folder with the questions of C-Eval and CMMLU      (none: from the hub)
#   SHOTS        worked examples                                    (0; 5 for ceval and cmmlu)
#   BASELINE     checkpoint to compare with, like iter_0000100      (the earliest)
#   NOTIFY       shell command that gets the one-line summary       (none)
# Anything else for `layertracer nightly` is passed on: bash examples/nightly_eval.sh --trace
#
# Exit code 0: fine, 1: a regression, 2: something failed. Safe to start again at any time.
#
# cron, at 02:00 (crontab -e):
#   0 2 * * * CHECKPOINT=/data/cpt OUT=/data/evaluations NOTIFY='mail -s eval team@example.org' bash /opt/layertracer/examples/nightly_eval.sh >> /data/evaluations/nightly.log 2>&1
# Slurm: examples/slurm/nightly_eval.scrontab. Kubernetes: examples/k8s/nightly-eval.yaml.
set -euo pipefail

: "${CHECKPOINT:?set CHECKPOINT to the --save folder of the training}"
: "${OUT:?set OUT to the folder for history and dashboard}"
CHECKPOINT=$(realpath -m "$CHECKPOINT")
OUT=$(realpath -m "$OUT")
DATA_DIR=${DATA_DIR:+$(realpath -m "$DATA_DIR")}
TASKS=${TASKS:-builtin}
if [[ $TASKS == builtin ]]; then SHOTS=${SHOTS:-0}; else SHOTS=${SHOTS:-5}; fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=python3
[[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python

exec "$PYTHON" -m layertracer nightly \
  --watch "$CHECKPOINT" \
  --history "$OUT/history.sqlite" \
  --tasks "$TASKS" \
  --shots "$SHOTS" \
  ${DATA_DIR:+--data-dir "$DATA_DIR"} \
  ${BASELINE:+--baseline "$BASELINE"} \
  ${NOTIFY:+--notify-command "$NOTIFY"} \
  "$@"
