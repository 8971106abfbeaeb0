"""Two nodes, as two network namespaces joined by a cable: one is cut off, killed, and comes back.

Each node has its own host name, addresses and loopback; they share nothing but the file system.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch

from megatron_patches.recovery_check import iterations
from tests.cluster.project import ROOT, STEPS, make_project
from tests.distributed.session import checkpoint_tensors

pytestmark = pytest.mark.distributed
TAG = f"lt{os.getpid()}"
ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29400


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@dataclass
class Node:
    """One of the two machines."""

    number: int
    runs: list[subprocess.Popen] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{TAG}-{self.number}"

    @property
    def cable(self) -> str:
        return f"{TAG}v{self.number}"

    def plug(self, state: str) -> None:
        ip("-n", self.name, "link", "set", self.cable, state)

    def start(self, environment: dict[str, str], log: Path) -> subprocess.Popen:
        """Run the launch script here, with a host name of the node's own."""
        inside = f"hostname {self.name} && exec bash examples/cpt_llama.sh --log-throughput"
        inside += " --distributed-timeout-seconds-after-init 10"
        command = ["ip", "netns", "exec", self.name, "unshare", "--uts", "bash", "-c", inside]
        settings = {**environment, "GLOO_SOCKET_IFNAME": self.cable}
        with log.open("a") as output:
            self.runs.append(
                subprocess.Popen(command, cwd=ROOT, env=settings, stdout=output, stderr=output)
            )
        return self.runs[-1]

    def kill(self) -> None:
        """End all that runs here, at once, as a power cut does."""
        for run in self.runs:
            if run.poll() is None:
                tree = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
                for process in tree:
                    process.send_signal(signal.SIGKILL)
                run.wait()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    pair = (Node(0), Node(1))
    try:
        for node in pair:
            ip("netns", "add", node.name)
            # `ip netns exec` shows this file to the node as its /etc/hosts.
            hosts = Path("/etc/netns") / node.name / "hosts"
            hosts.parent.mkdir(parents=True)
            names = [f"{ADDRESSES[other.number]} {other.name}\n" for other in pair]
            hosts.write_text("127.0.0.1 localhost\n" + "".join(names), "utf-8")
        ip("link", "add", pair[0].cable, "type", "veth", "peer", "name", pair[1].cable)
        for node in pair:
            ip("link", "set", node.cable, "netns", node.name)
            ip("-n", node.name, "addr", "add", f"{ADDRESSES[node.number]}/24", "dev", node.cable)
            ip("-n", node.name, "link", "set", "lo", "up")
            node.plug("up")
    except subprocess.CalledProcessError as error:
        unplug(pair)
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        yield pair
    finally:
        unplug(pair)


def unplug(pair: tuple[Node, Node]) -> None:
    for node in pair:
        node.kill()
        subprocess.run(["ip", "netns", "del", node.name], capture_output=True, check=False)
        shutil.rmtree(Path("/etc/netns") / node.name, ignore_errors=True)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.1)


def steps_in(save: Path) -> list[dict[str, float]]:
    file = save / "layertracer" / "train.jsonl"
    if not file.is_file():
        return []
    lines = [line for line in file.read_text("utf-8").splitlines() if line.endswith("}")]
    return [json.loads(line) for line in lines]


def test_a_node_is_cut_off_and_killed_and_the_result_is_that_of_an_undisturbed_run(nodes, tmp_path):
    environment = make_project(tmp_path) | {"TP": "2", "PP": "2", "NPROC": "2"}
    first, second = nodes

    def start(node: Node, save: Path, job: str) -> subprocess.Popen:
        meeting = f"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={first.name}:{PORT}"
        arguments = f"{meeting} --rdzv-id={job} --max-restarts=3"
        settings = {**environment, "SAVE": str(save), "TORCHRUN_ARGS": arguments}
        return node.start(settings, tmp_path / f"{job}-{node.number}.log")

    undisturbed = tmp_path / "undisturbed"
    runs = [start(node, undisturbed, "undisturbed") for node in nodes]
    assert [run.wait(300) for run in runs] == [0, 0], logs(tmp_path)

    cut = tmp_path / "cut"
    survivor = start(first, cut, "cut")
    start(second, cut, "cut")
    wait_for(lambda: len(steps_in(cut)) >= 3 and bool(iterations(cut)), 180, "three steps")
    second.plug("down")
    second.kill()
    # The survivor's processes wait for the dead node until the time-out, and are started again.
    log = tmp_path / "cut-0.log"
    before = len(steps_in(cut))
    time.sleep(1)
    second.plug("up")
    again = start(second, cut, "cut")
    assert [survivor.wait(300), again.wait(60)] == [0, 0], logs(tmp_path)
    assert before < STEPS and log.read_text("utf-8").count("ranks: TP 2, PP 2, DP 1") == 2

    ours = checkpoint_tensors(cut / f"iter_{STEPS:07d}")
    expected = checkpoint_tensors(undisturbed / f"iter_{STEPS:07d}")
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert [line["loss"] for line in steps_in(cut)] == [
        line["loss"] for line in steps_in(undisturbed)
    ]


def logs(folder: Path) -> str:
    return "\n".join(
        f"--- {file.name}\n{file.read_text('utf-8')[-3000:]}" for file in folder.glob("*.log")
    )
