"""``layertracer demo`` at a tiny scale: every command for real, on a model of two layers."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from layertracer.demo.packages import TEXT, WEIGHTS
from layertracer.demo.text import FILE
from layertracer.files import atomic_directory
from layertracer.model_folder import ModelFolder
from tests.data.conftest import save_bpe
from tests.demo.test_judge import make_model

ROOT = Path(__file__).parent.parent.parent
SENTENCE = "汉字测试，这是第{}篇文章，说的是今天的天气和明天的新闻。ABCD"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A demo whose first two steps, which need the package index, are done with small things."""
    demo = tmp_path_factory.mktemp("tiny") / "demo"
    texts = [SENTENCE.format(i) for i in range(4000)]
    make_model(demo / "weights", package=WEIGHTS.requirement, vocab_size=320, positions=1024)
    save_bpe(demo / "weights", eos="<|endoftext|>", texts=texts)
    with atomic_directory(demo / "text", inputs={"package": TEXT.requirement}) as text:
        lines = [json.dumps({"text": one}) + "\n" for one in texts]
        (text / FILE).write_text("".join(lines), "utf-8")
    return demo


def demo(folder: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "layertracer", "demo", "--dir", str(folder), *more]
    return subprocess.Popen(
        [*command, "--prompts", "4"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finished(started: subprocess.Popen) -> str:
    try:
        output, _ = started.communicate(timeout=1700)
    finally:
        if started.poll() is None:
            for process in psutil.Process(started.pid).children(recursive=True):
                process.kill()
            started.kill()
    assert started.returncode == 0, output
    return output


@pytest.mark.distributed
@pytest.mark.timeout(1800)
def test_the_loop_runs_then_is_skipped_then_trains_again_under_an_edited_plan(folder):
    first = finished(demo(folder, "--steps", "2"))
    assert first.rstrip().endswith(f"report: {folder}/report.html")
    page = folder / "report.html"
    assert page.stat().st_size > 10_000
    lines = (folder / "cpt" / "layertracer" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert ModelFolder(folder / "hf").fingerprint != ModelFolder(folder / "weights").fingerprint

    began = time.time()
    again = finished(demo(folder, "--steps", "2"))
    assert again.count("done before, skipped") == 11
    assert page.stat().st_mtime < began

    plan = json.loads((folder / "plan.json").read_text())
    plan["strategy"], plan["boundary"] = "custom", None
    plan["phases"] = [{"layers": [1]}]
    (folder / "plan.json").write_text(json.dumps(plan))
    edited = finished(demo(folder, "--steps", "2"))
    assert edited.count("done before, skipped") == 7
    assert "cpt is damaged or out of date: made again" in edited
    assert page.stat().st_mtime > began
    changed = changed_tensors(folder)
    assert changed
    assert all(name.startswith("model.layers.1.") for name in changed)


def changed_tensors(folder: Path) -> list[str]:
    """Return the names of the tensors that differ before and after training."""
    from safetensors.torch import load_file

    before, after = (load_file(folder / name / "model.safetensors") for name in ("weights", "hf"))
    assert before.keys() == after.keys()
    return [name for name in before if not before[name].equal(after[name])]
