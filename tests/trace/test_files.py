import json
from pathlib import Path

import pytest

from layertracer.errors import UserError
from layertracer.trace.files import TraceFile, TraceSettings
from layertracer.trace.runner import run_trace


@pytest.fixture(scope="module")
def folder(llama_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("files") / "trace"
    run_trace(llama_folder, out, TraceSettings(num_prompts=3, bootstrap=10, shots=0))
    return out


def test_a_trace_is_read_from_its_folder_or_file(folder: Path) -> None:
    assert TraceFile.load(folder) == TraceFile.load(folder / "trace.json")
    assert TraceFile.load(folder).table().num_layers == 4


def test_faults_name_the_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no trace"):
        TraceFile.load(tmp_path)
    broken = tmp_path / "trace.json"
    broken.write_text("{", "utf-8")
    with pytest.raises(UserError, match="is not valid JSON"):
        TraceFile.load(broken)
    content = json.loads((folder / "trace.json").read_text("utf-8"))
    content["layers"][2]["ls"]["mean"] = "much"
    broken.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match=r"trace.json: layers.2.ls.mean"):
        TraceFile.load(broken)


def test_missing_tables_name_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes((folder / "trace.json").read_bytes())
    with pytest.raises(UserError, match="parquet files can't be read"):
        TraceFile.load(tmp_path).table()
