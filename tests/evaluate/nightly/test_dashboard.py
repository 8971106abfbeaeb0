"""The dashboard in a real browser: its curves, tables and verdicts are the history's."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from layertracer.evaluate.files import EvalFile
from layertracer.evaluate.history import open_history
from layertracer.evaluate.nightly.dashboard import write_dashboard
from layertracer.evaluate.nightly.settings import Nightly
from layertracer.evaluate.nightly.verdict import judge, pick_baseline
from tests.evaluate.conftest import made_up
from tests.report.test_trace_figures import CHROMIUM, PROBE

STEPS = {10: 60, 20: 62, 30: 35}  # right answers of 100


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    """A dashboard over three checkpoints, the last one worse, and one that failed."""
    folder = tmp_path_factory.mktemp("nightly")
    job = Nightly(Path("cpt"), folder / "history.sqlite", folder)
    with open_history(job.history) as history:
        for step, right in STEPS.items():
            made = made_up({"law": [True] * right + [False] * (100 - right), "logic": [True] * 4})
            out = save(job, step, made)
            history.record(out.name, step, out, made)
        history.record_failure("iter_0000040", 40, "shard <b>truncated</b>")
        history.record_noise("ceval", "logit", 104, 2)
        checkpoints = history.checkpoints()
        baseline = pick_baseline(checkpoints, None)
        assert baseline is not None
        verdicts = [judge(one, baseline, 0.01) for one in checkpoints[1:3]]
        write_dashboard(job, history, baseline, verdicts)
    return job


def save(job: Nightly, step: int, made: EvalFile) -> Path:
    out = job.evaluation(f"iter_{step:07d}")
    out.mkdir(parents=True)
    (out / "eval.json").write_text(made.model_dump_json(), "utf-8")
    return out


def test_the_page_needs_no_network_and_escapes_what_it_shows(job: Nightly) -> None:
    html = job.dashboard.read_text("utf-8")
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="http', html)
    assert "<b>truncated</b>" not in html and "truncated" in html


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_shows_curves_verdicts_and_failures(job: Nightly, tmp_path: Path) -> None:
    shown, cells = in_browser(job.dashboard, tmp_path)
    lines = shown["chart-accuracy-ceval-logit"]["lines"]
    assert lines["accuracy"] == pytest.approx([(right + 4) / 104 for right in STEPS.values()])
    assert lines["macro"] == pytest.approx([(right / 100 + 1) / 2 for right in STEPS.values()])
    assert lines["chance"] == [0.25] * 3
    assert shown["chart-accuracy-ceval-logit"]["axis"] == "step"
    rows = {tuple(row[:2]): row for row in cells}
    assert rows["iter_0000020", "ceval, logit"][-1] == "can't be told apart"
    assert rows["iter_0000030", "ceval, logit"][-1] == "REGRESSION"
    assert rows["ceval, logit: law", "100"][2:4] == ["60.0%", "35.0%"]
    assert rows["iter_0000040", "failed"][2] == "shard <b>truncated</b>"
    assert rows["ceval, logit", "104"] == ["ceval, logit", "104", "2"]


def in_browser(page: Path, folder: Path) -> tuple[dict, list[list[str]]]:
    """Open the page without network; return what its charts hold, and the tables' cells."""
    table = """<pre id="cells"></pre><script>
    document.getElementById("cells").textContent = JSON.stringify(
      [...document.querySelectorAll("tbody tr")].map(
        row => [...row.cells].map(cell => cell.textContent)));
    </script>"""
    body, _, end = page.read_text("utf-8").rpartition("</body>")
    probed = folder / "page.html"
    probed.write_text(body + table + PROBE + end, "utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--virtual-time-budget=10000", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += [f"--user-data-dir={folder}/profile", "--dump-dom", probed.as_uri()]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return tuple(json.loads(_text(dumped, name)) for name in ("probe", "cells"))


def _text(html: str, name: str) -> str:
    from html import unescape

    found = re.search(rf'<pre id="{name}">(.*?)</pre>', html, re.DOTALL)
    assert found is not None
    return unescape(found[1])
