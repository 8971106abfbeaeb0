"""Launch files of clusters: valid to the shell, to Slurm and to Kubernetes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
SHELL_FILES = sorted(
    [*ROOT.glob("scripts/*.sh"), *EXAMPLES.rglob("*.sh"), *EXAMPLES.rglob("*.sbatch")]
)
SBATCH = EXAMPLES / "slurm" / "cpt_llama.sbatch"
# What sbatch takes, by its manual: option -> form of the value (None: takes none).
SBATCH_OPTIONS = {
    "job-name": r"[\w.-]+",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "gpus-per-node": r"([a-z0-9_]+:)?\d+",
    "cpus-per-task": r"\d+",
    "mem": r"\d+[KMGT]?",
    "exclusive": None,
    "time": r"(\d+-)?\d{1,2}:\d{2}:\d{2}",
    "output": r"[\w%./-]+",
    "open-mode": "append|truncate",
    "requeue": None,
    "signal": r"([RB]:)?[A-Z0-9]+(@\d{1,5})?",
}


@pytest.mark.parametrize("file", SHELL_FILES, ids=lambda file: file.name)
def test_shell_files_are_valid_and_clean(file):
    subprocess.run(["bash", "-n", file], check=True)
    # -x: also what the file sources.
    command = [BIN / "shellcheck", "-x", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_sbatch_header_is_what_sbatch_takes():
    lines = SBATCH.read_text("utf-8").splitlines()
    header = [line for line in lines if line.startswith("#SBATCH")]
    # sbatch stops reading at the first line that is no comment.
    assert lines[1 : len(header) + 1] == header
    for line in header:
        option, _, value = line.removeprefix("#SBATCH --").partition("=")
        form = SBATCH_OPTIONS[option]
        assert value == "" if form is None else re.fullmatch(form, value), line


def test_the_job_is_warned_in_time_and_goes_back_into_the_queue():
    text = SBATCH.read_text("utf-8")
    warned = int(re.search(r"--signal=B:TERM@(\d+)", text).group(1))
    grace = int(re.search(r"GRACE_SECONDS:-(\d+)", text).group(1))
    assert "#SBATCH --requeue" in text and "#SBATCH --open-mode=append" in text
    assert grace < warned


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((EXAMPLES / "k8s" / name).read_text("utf-8"))


def check_pod(template: dict[str, Any]) -> dict[str, Any]:
    """Check a pod template strictly against Kubernetes' own schema; return its pod."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, "1.30", strict=True)
    return template["spec"]


def test_the_pytorchjob_fits_its_schema_and_its_pods_that_of_kubernetes():
    job = read("pytorchjob.yaml")
    schema = json.loads((Path(__file__).parent / "pytorchjob.schema.json").read_text("utf-8"))
    jsonschema.validate(job, schema)
    spec = job["spec"]
    (worker,) = spec["pytorchReplicaSpecs"].values()
    pod = check_pod(worker["template"])
    elastic = spec["elasticPolicy"]
    assert elastic["minReplicas"] == elastic["maxReplicas"] == worker["replicas"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # the operator looks for this name
    assert container["resources"]["limits"]["nvidia.com/gpu"] == spec["nprocPerNode"]


def test_the_nightly_job_fits_the_schema_of_kubernetes():
    kubernetes_validate.validate(read("nightly-eval.yaml"), "1.30", strict=True)


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "nightly-eval.yaml"])
def test_a_misspelt_field_is_noticed(name):
    text = (EXAMPLES / "k8s" / name).read_text("utf-8").replace("volumeMounts", "volumeMount")
    manifest = yaml.safe_load(text)
    if manifest["kind"] == "CronJob":
        template = manifest["spec"]["jobTemplate"]["spec"]["template"]
    else:
        template = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    with pytest.raises(kubernetes_validate.ValidationError):
        check_pod(template)


@pytest.mark.parametrize("name", ["pytorchjob.yaml", "nightly-eval.yaml"])
def test_pods_run_what_the_image_holds_and_not_as_root(name):
    text = (EXAMPLES / "k8s" / name).read_text("utf-8")
    (script,) = re.findall(r"/opt/layertracer/(examples/[\w./]+)", text)
    assert (ROOT / script).is_file()
    assert "runAsNonRoot: true" in text and "privileged: true" not in text
