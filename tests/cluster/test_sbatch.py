"""The Slurm script's own command lines, run: Slurm's three commands stand in as small scripts.

``srun`` starts its command once for each node, as Slurm does, all on this machine.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.project import ROOT, make_project

pytestmark = pytest.mark.distributed
COMMANDS = {
    # Ends when all tasks have; a signal that `scancel` sends reaches every process of the step.
    "srun": """#!/usr/bin/env bash
while [[ $1 == --* ]]; do
    [[ $1 != --chdir=* ]] || cd "${1#*=}"
    shift
done
for node in 0 1; do setsid "$@" & echo $! >>"$SLURM_TEST/tasks"; done
code=0
for task in $(jobs -p); do wait "$task" || code=$?; done
exit $code
""",
    "scontrol": """#!/usr/bin/env bash
echo "$*" >>"$SLURM_TEST/scontrol.asked"
[[ $1 != show ]] || echo 127.0.0.1
""",
    "scancel": """#!/usr/bin/env bash
echo "$*" >>"$SLURM_TEST/scancel.asked"
for task in $(cat "$SLURM_TEST/tasks"); do kill -TERM -- "-$task"; done
""",
}


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    slurm = tmp_path / "slurm"
    slurm.mkdir()
    for name, text in COMMANDS.items():
        (slurm / name).write_text(text, "utf-8")
        (slurm / name).chmod(0o755)
    return make_project(tmp_path / "project") | {
        "PATH": f"{slurm}:{os.environ['PATH']}",
        "SLURM_TEST": str(slurm),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "IMAGE": "",
        "RUN_IN": str(ROOT),
        "NPROC": "1",
        "TP": "1",
        "PP": "2",
        "STEPS": "100000",
        "SAVE_INTERVAL": "100000",
        "LAYER_STATS_INTERVAL": "0",
    }


def test_told_to_stop_every_rank_saves_and_the_job_goes_back_into_the_queue(environment, tmp_path):
    save = tmp_path / "project" / "cpt"
    log = tmp_path / "job.log"
    with log.open("w") as output:
        job = subprocess.Popen(
            ["bash", ROOT / "examples" / "slurm" / "cpt_llama.sbatch"],
            cwd=tmp_path,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        records = save / "layertracer" / "train.jsonl"
        end = time.monotonic() + 200
        while not records.is_file() or not records.read_text("utf-8"):
            assert time.monotonic() < end and job.poll() is None, log.read_text("utf-8")[-3000:]
            time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        assert job.wait(90) == 0, log.read_text("utf-8")[-3000:]
    finally:
        end_all(job, tmp_path / "slurm" / "tasks")
    job_number = environment["SLURM_JOB_ID"]
    assert (tmp_path / "slurm" / "scancel.asked").read_text(
        "utf-8"
    ) == f"--signal=TERM {job_number}\n"
    asked = (tmp_path / "slurm" / "scontrol.asked").read_text("utf-8").splitlines()
    assert asked == ["show hostnames node[0-1]", f"requeue {job_number}"]
    steps = len(records.read_text("utf-8").splitlines())
    assert (save / "latest_checkpointed_iteration.txt").read_text("utf-8") == str(steps)
    assert "2 nodes, 1 GPUs each" in log.read_text("utf-8")


def end_all(job: subprocess.Popen, tasks: Path) -> None:
    """Leave no process behind, whatever happened."""
    job.kill()
    for task in tasks.read_text("utf-8").split() if tasks.is_file() else []:
        subprocess.run(["kill", "-KILL", "--", f"-{task}"], capture_output=True, check=False)
