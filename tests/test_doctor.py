"""doctor: what the machine has, and the remedy for what it lacks."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import torch

from layertracer.doctor import Finding, examine


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def test_versions_are_those_installed():
    findings = examine()
    for package in ("torch", "megatron-core", "transformers", "lm-eval"):
        assert named(findings, package).value == importlib.metadata.version(package)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_that_the_cpu_does_the_work():
    gpus = named(examine(), "GPUs")
    assert "CPU" in (gpus.remedy or "") and not gpus.is_problem


def test_a_network_interface_that_is_not_there_is_a_problem(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib7")
    assert named(examine(), "network").is_problem
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    assert not named(examine(), "network").is_problem


def test_the_command_prints_json_and_answers_with_its_exit_code():
    command = [sys.executable, "-m", "layertracer", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    findings = [Finding.model_validate(entry) for entry in json.loads(done.stdout)]
    assert done.returncode == int(any(finding.is_problem for finding in findings))
