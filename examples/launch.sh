# Sourced by cpt_llama.sh: starts torchrun on this node, one process a GPU.
# shellcheck shell=bash
#
#   NPROC           processes here; default: the number of GPUs, 2 without any
#   TORCHRUN_ARGS   more for torchrun, for example --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=...
#
# SIGTERM goes to the training processes, not to torchrun, which would kill them before they have
# saved: every rank saves at the end of its step and ends with code 0, and so does torchrun.

launch() {
    local script=$1 here gpus agent interrupted code
    shift
    here=$(cd "$(dirname "$script")" && pwd)
    [[ -x $here/../.venv/bin/torchrun ]] && PATH="$here/../.venv/bin:$PATH"
    command -v torchrun >/dev/null || {
        echo "error: torchrun is missing: run make setup first" >&2
        return 2
    }
    gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l || true)
    # With a store shared between restarts, torchrun tells a node that comes in later no address.
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    local processes=${NPROC:-$((gpus > 0 ? gpus : 2))} more
    read -ra more <<<"${TORCHRUN_ARGS:-}"
    local command=(torchrun --nproc-per-node "$processes")
    command+=("--signals-to-handle=SIGINT,SIGHUP,SIGQUIT" "${more[@]}" "$script" "$@")
    if [[ " $* " == *" --dry-run "* ]]; then
        echo "${command[*]}"
        WORLD_SIZE=$((processes * $(nodes "${more[@]}"))) python "$script" "$@"
        return
    fi
    (
        trap '' TERM # inherited by torchrun
        exec "${command[@]}"
    ) &
    agent=$!
    trap 'interrupted=yes; pass_on "$agent"' TERM
    trap 'interrupted=yes' INT # the terminal sends it to torchrun too
    while :; do
        interrupted=no
        code=0
        wait "$agent" || code=$?
        [[ $interrupted == no ]] && return "$code"
    done
}

# Number of nodes that torchrun's arguments name.
nodes() {
    local argument previous=""
    for argument in "$@"; do
        case $argument in
        --nnodes=*) echo "${argument#*=}" && return ;;
        esac
        [[ $previous == --nnodes ]] && echo "$argument" && return
        previous=$argument
    done
    echo 1
}

# SIGTERM for every process that torchrun started.
pass_on() {
    local worker
    grep -lsx "PPid:[[:space:]]*$1" /proc/[0-9]*/status | while IFS=/ read -r _ _ worker _; do
        kill -TERM "$worker" 2>/dev/null || true
    done
}
