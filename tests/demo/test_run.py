"""The demo does what is not done, in order, and can be stopped anywhere."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from layertracer.demo.run import remove_abandoned, run_steps
from layertracer.demo.step import State, Step
from layertracer.errors import UserError

WRITE = "import sys; open(sys.argv[1], 'a').write('made\\n')"


def step(output: Path, code: str = WRITE, content: str = "made\n") -> Step:
    """A step that writes a line to ``output``; complete when that is all the file holds."""

    def judge() -> State:
        if not output.exists():
            return State.OPEN
        return State.DONE if output.read_text() == content else State.STALE

    return Step(f"Make {output.name}", ("python", "-c", code, str(output)), (output,), judge)


@pytest.fixture
def shown():
    return Console(file=io.StringIO(), width=300)


def test_steps_run_in_order_with_headline_command_and_time(tmp_path, shown, capfd):
    code = f"import sys; print('from step', sys.argv[1][-1], flush=True); {WRITE}"
    steps = [step(tmp_path / name, code) for name in "ab"]
    spent = run_steps(tmp_path, steps, shown)
    text = shown.file.getvalue()
    assert text.index("1/2  Make a") < text.index("2/2  Make b")
    assert f"$ {steps[0].shown}" in text
    assert text.count("s of processor time") == 2
    assert spent.cpu_seconds > 0
    assert capfd.readouterr().out == "from step a\nfrom step b\n"


def test_what_is_done_is_skipped_and_what_is_missing_is_made(tmp_path, shown):
    steps = [step(tmp_path / name) for name in "abc"]
    run_steps(tmp_path, steps, shown)
    times = [(tmp_path / name).stat().st_mtime_ns for name in "abc"]
    (tmp_path / "b").unlink()
    run_steps(tmp_path, steps, again := Console(file=io.StringIO(), width=200))
    assert again.file.getvalue().count("done before, skipped") == 2
    assert (tmp_path / "b").read_text() == "made\n"
    after = [(tmp_path / name).stat().st_mtime_ns for name in "abc"]
    assert (times[0], times[2]) == (after[0], after[2])
    assert times[1] != after[1]


def test_a_damaged_output_is_made_again(tmp_path, shown):
    (tmp_path / "a").write_text("half")
    run_steps(tmp_path, [step(tmp_path / "a")], shown)
    assert (tmp_path / "a").read_text() == "made\n"
    assert "made again" in shown.file.getvalue()


def test_a_failing_command_ends_the_demo_and_the_next_start_goes_on(tmp_path, shown):
    steps = [step(tmp_path / "a"), step(tmp_path / "b", "raise SystemExit(3)")]
    with pytest.raises(UserError, match=r"step 2/2 \(python\) failed with exit code 3"):
        run_steps(tmp_path, steps, shown)
    run_steps(tmp_path, [steps[0], step(tmp_path / "b")], shown)
    assert (tmp_path / "a").read_text() == "made\n"
    assert (tmp_path / "b").exists()


def test_success_without_output_is_not_believed(tmp_path, shown):
    with pytest.raises(UserError, match="step 1/1 ended without an error, but its output"):
        run_steps(tmp_path, [step(tmp_path / "a", "pass")], shown)


def test_variables_reach_the_command(tmp_path, shown):
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['STEPS'])"
    made = step(tmp_path / "a", code, content="7 8")
    with_steps = Step(made.title, made.command, made.outputs, made.judge, {"STEPS": "7 8"})
    assert with_steps.shown.startswith("STEPS='7 8' python -c ")
    run_steps(tmp_path, [with_steps], shown)


def test_files_of_killed_writers_are_swept_and_those_of_living_ones_kept(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "data").mkdir()
    (tmp_path / f".weights.tmp-{gone.pid}").mkdir()
    (tmp_path / "data" / f".news.bin.tmp-{gone.pid}").touch()
    living = tmp_path / f".trace.tmp-{os.getpid()}"
    living.touch()
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [living.name, "data"]


SLOW = """
import signal, sys, time
from layertracer.files import atomic_file
print('begun', flush=True)
with atomic_file(sys.argv[1]) as temporary:
    temporary.write_text('half')
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print('cleaned up', flush=True)
        raise
"""
DRIVER = """
import sys
from pathlib import Path
from rich.console import Console
from layertracer.demo.run import run_steps
from layertracer.demo.step import State, Step
folder = Path(sys.argv[1])
out = folder / 'out'
judge = lambda: State.DONE if out.exists() else State.OPEN
run_steps(folder, [Step('Slow', ('python', '-c', sys.argv[2], str(out)), (out,), judge)], Console())
"""


@pytest.fixture
def at_work(tmp_path):
    """A demo in its own session, whose step has begun."""
    started = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "demo"), SLOW],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while (line := started.stdout.readline()) != "begun\n":
        assert line, "the step did not begin"
    time.sleep(0.2)
    yield started
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.mark.parametrize("way", ["ctrl-c", "sigint to the demo alone", "sigterm"])
def test_stopping_lets_the_command_clean_up_and_leaves_nothing_half_written(at_work, tmp_path, way):
    if way == "ctrl-c":
        os.killpg(at_work.pid, signal.SIGINT)
    else:
        at_work.send_signal(signal.SIGTERM if way == "sigterm" else signal.SIGINT)
    output, _ = at_work.communicate(timeout=60)
    assert "cleaned up" in output
    assert [file.name for file in (tmp_path / "demo").iterdir()] == [".lock"]


def test_two_demos_never_share_a_folder(at_work, tmp_path, shown):
    with pytest.raises(UserError, match="another demo is at work"):
        run_steps(tmp_path / "demo", [step(tmp_path / "a")], shown)
    assert not (tmp_path / "a").exists()


STUBBORN = """
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
inner = 'import time; print("begun", flush=True); time.sleep(600)'
subprocess.run([sys.executable, '-c', inner], start_new_session=True)
"""


def test_a_command_that_ignores_every_signal_is_killed_with_all_it_started(tmp_path):
    driver = f"import layertracer.demo.run as run; run._PATIENCE = 0.5\n{DRIVER}"
    started = subprocess.Popen(
        [sys.executable, "-c", driver, str(tmp_path / "demo"), STUBBORN],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while (line := started.stdout.readline()) != "begun\n":
        assert line, "the step did not begin"
    below = psutil.Process(started.pid).children(recursive=True)
    assert len(below) == 2
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    _, alive = psutil.wait_procs(below, timeout=5)
    assert alive == []
