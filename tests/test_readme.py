"""The README's commands are the demo's, and what it links to is there."""

import re
import shlex
from pathlib import Path

import pytest

from layertracer.demo.steps import Size, main_job

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[list[str]]:
    """Every command line in the bash blocks of ``text``."""
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_the_readme_shows_the_demos_commands_in_their_order(monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = [words for words in commands(README) if words[0] != "make"]
    assert shown == [list(step.command) for step in main_job(Path("demo"), Size())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one_of_the_command_line(page):
    from typer.main import get_command

    from layertracer.cli import app

    known = get_command(app)
    for words in commands(page.read_text("utf-8")):
        if words[0] != "layertracer":
            continue
        command, rest = known.commands[words[1]], words[2:]
        if hasattr(command, "commands"):
            command, rest = command.commands[rest[0]], rest[1:]
        command.make_context(words[1], list(rest))  # raises on a flag that isn't there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
