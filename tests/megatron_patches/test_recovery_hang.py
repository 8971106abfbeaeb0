"""A step that does not end: the process says where it waits, and ends."""

import subprocess
import sys
from argparse import Namespace

from megatron_patches.recovery_hang import EXIT_CODE, limit

HANGS = """
import time
from megatron_patches.recovery_hang import Watch
watch = Watch(0.4)
watch.began = time.monotonic()
def waits_here():
    time.sleep(60)
waits_here()
"""


def test_a_hung_step_ends_the_process_and_says_where():
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_CODE
    assert "rank 0: no end of the step" in done.stderr and "waits_here" in done.stderr


def test_a_step_in_time_does_not():
    code = HANGS.replace("Watch(0.4)", "Watch(30)").replace("sleep(60)", "sleep(1)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


def test_the_limit_is_megatrons():
    flags = {"distributed_timeout_minutes": 10, "distributed_timeout_seconds_after_init": None}
    assert limit(Namespace(**flags)) == 600
    assert limit(Namespace(**flags | {"distributed_timeout_seconds_after_init": 30})) == 30
