"""The command line: help that answers at once, and one line with exit code 2 on bad input."""

import subprocess
import sys

import pytest

from tests.test_model_folder import make_folder


def layertracer(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "layertracer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_plan_prints_its_table_and_writes_its_file(tmp_path):
    model = make_folder(tmp_path / "m")
    done = layertracer("plan", str(model), "--out", str(tmp_path / "plan.json"))
    assert done.returncode == 0, done.stderr
    assert "trains 56 of 116 parameters" in " ".join(done.stdout.split())
    assert (tmp_path / "plan.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--boundary", "2"], "--boundary 2"),
        (["--boundary", "half"], "--boundary half"),
        (["--strategy", "auto"], "holds no trace"),
        (["--boundary", "auto"], "holds no trace"),
        (["--max-optimizer-gib", "1"], "go with --boundary auto"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    model = make_folder(tmp_path / "m")
    done = layertracer("plan", str(model), "--out", str(tmp_path / "plan.json"), *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_the_traceback_is_shown_with_debug_only():
    assert "Traceback" not in layertracer("plan", "nowhere").stderr
    assert "Traceback" in layertracer("--debug", "plan", "nowhere").stderr


def test_help_loads_nothing_heavy():
    heavy = ["torch", "transformers", "megatron", "plotly"]
    code = f"import sys, layertracer.cli; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
