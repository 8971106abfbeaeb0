import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from layertracer.cli import app
from layertracer.errors import UserError


def run(*args: object) -> object:
    return CliRunner().invoke(app, ["trace", *map(str, args)])


def test_the_command_writes_a_trace_and_says_what_it_found(
    llama_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "trace"
    result = run(llama_folder, "--out", out, "--num-prompts", 5, "--shots", 0, "--bootstrap", 20)
    assert result.exit_code == 0, result.output
    for word in ("task particle", "onset", "vulnerable layer", "best boundary", f"wrote {out}"):
        assert word in result.output
    assert (out / "trace.html").is_file() and (out / "trace_plots" / "trace-ls.png").is_file()
    settings = json.loads((out / "trace.json").read_text("utf-8"))["settings"]
    assert (settings["num_prompts"], settings["perturbation"]) == (5, "mask")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fraction", "0"], "--fraction 0.0: Input should be greater than 0"),
        (["--fraction", "1.5"], "--fraction 1.5"),
        (["--language", "fr"], "--language fr: Input should be 'en' or 'zh'"),
        (["--prompts", "nothing"], "--prompts nothing: give one of"),
    ],
)
def test_bad_flags_are_named(llama_folder: Path, tmp_path: Path, flags: list, message: str) -> None:
    result = run(llama_folder, "--out", tmp_path / "o", *flags)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert not (tmp_path / "o").exists()


def test_help_teaches_with_an_example() -> None:
    text = run("--help").output
    assert "Example:" in text and "layertracer trace" in text
