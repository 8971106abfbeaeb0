"""Many training runs of real Megatron in one torchrun, since each start of torchrun takes seconds.

A *scenario* is a function of a module under tests/distributed; ``python -m`` this module, under
torchrun, calls it on every rank with the folder to work in. Tests start it through ``torchrun``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from layertracer.plan import FreezePlan

ROOT = Path(__file__).parents[2]
VOCABULARY = 128

TINY = [
    *("--num-layers", "4", "--hidden-size", "64", "--ffn-hidden-size", "96"),
    *("--num-attention-heads", "4", "--group-query-attention", "--num-query-groups", "2"),
    *("--max-position-embeddings", "32", "--position-embedding-type", "rope"),
    *("--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear"),
    *("--attention-dropout", "0", "--hidden-dropout", "0"),
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", str(VOCABULARY - 1)),
    *("--make-vocab-size-divisible-by", "16"),
    *("--seq-length", "32", "--micro-batch-size", "2", "--global-batch-size", "8"),
    *("--lr", "4e-3", "--min-lr", "1e-3", "--lr-decay-style", "cosine", "--weight-decay", "0.1"),
    *("--split", "1,0,0", "--seed", "7", "--num-workers", "0", "--init-method-std", "0.08"),
    *("--distributed-timeout-minutes", "2"),
]


@dataclass
class Run:
    """What one rank saw of a run; ``weights`` are by global name, before and after."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)


Runs = dict[str, list[Run]]


def start(
    module: str, arguments: list[str], processes: int, log: Path, *options: str
) -> subprocess.Popen[bytes]:
    """Start ``module`` on ``processes`` ranks under torchrun, and return without waiting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), *options]
    command += ["-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAYERTRACER_DEBUG": "1"}
    with log.open("w") as stream:  # a file: what a killed rank leaves behind would hold a pipe open
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream)


def torchrun(scenario: str, folder: Path, processes: int, timeout: float = 400) -> Runs:
    """Run ``module:function`` on ``processes`` ranks; return what it recorded, by name and rank."""
    make_data(folder / "corpus")
    log = folder / "log.txt"
    started = start("tests.distributed.session", [scenario, str(folder)], processes, log)
    try:
        started.wait(timeout)
    finally:
        started.terminate()
    assert started.returncode == 0, log.read_text("utf-8", errors="replace")[-8000:]
    files = sorted(folder.glob("*.rank*.pt"))
    recorded: Runs = {}
    for file in files:
        recorded.setdefault(file.name.split(".rank")[0], []).append(
            torch.load(file, weights_only=False)
        )
    return recorded


def checkpoint_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the checkpoint in ``folder`` (one iteration), whole."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    reader = FileSystemReader(folder)
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(state, storage_reader=reader, planner=planner, no_dist=True)
    flat = _flat(state)
    return {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}


def _flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        nested = isinstance(value, dict)
        leaves |= _flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return leaves


def make_data(prefix: Path) -> list[str]:
    """Write a small corpus with a pattern to learn; return the flags that name it."""
    from layertracer.data.indexed import IndexedWriter

    random = np.random.default_rng(0)
    with IndexedWriter(prefix, np.uint16) as writer:
        for _ in range(64):
            start, stride = random.integers(1, VOCABULARY - 1, 2)
            tokens = (start + stride * np.arange(65)) % (VOCABULARY - 2)
            writer.add(tokens.astype(np.uint16))
    return ["--data-path", str(prefix)]


class Session:
    """Runs training again and again in this process."""

    def __init__(self, folder: Path) -> None:
        import megatron_patches

        self.folder = folder
        self.rank = int(os.environ["RANK"])
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        megatron_patches.apply()
        self.data = ["--data-path", str(folder / "corpus")]

    def plan(self, plan: FreezePlan) -> list[str]:
        """Write ``plan`` and return the flags that name it."""
        file = self.folder / f"plan-{plan.digest()[:8]}.json"
        plan.save(file)
        return ["--freeze-plan", str(file)]

    def record(self, name: str, value: Any) -> None:
        """Keep ``value`` of this rank for the test under ``name``."""
        torch.save(value, self.folder / f"{name}.rank{self.rank}.pt")

    def train(
        self,
        name: str,
        arguments: list[str],
        *,
        after_step: Callable[[Run, int, list[Any], Any], None] | None = None,
        before_step: Callable[[Run, int, list[Any], Any], None] | None = None,
        at_end: Callable[[Run, list[Any], Any], None] | None = None,
    ) -> Run:
        """Train with the entry, with ``arguments`` after those of the tiny model; record the run.

        The functions get this rank's run, the step (how many updates there were, or will be before
        this one), the model chunks and the optimizer.
        """
        from megatron.core.utils import unwrap_model
        from megatron.training import training

        from megatron_patches import pretrain

        run = Run()
        live: list[Any] = []
        step_of_megatron, printer = training.train_step, training.print_rank_last

        def train_step(*args: Any, **kwargs: Any) -> Any:
            chunks, optimizer, iteration = args[2], args[3], training.get_args().curr_iteration
            live[:] = chunks, optimizer
            if not run.before:
                run.before = global_weights(unwrap_model(chunks))
            if before_step is not None:
                before_step(run, iteration, chunks, optimizer)
            answer = step_of_megatron(*args, **kwargs)
            run.losses.append(_loss_everywhere(answer[0]))
            run.grad_norms.append(float(answer[5] or 0.0))  # None: skipped
            if after_step is not None:
                after_step(run, iteration + 1, chunks, optimizer)
            return answer

        training.train_step = train_step
        command = list(sys.argv)
        try:
            # At --exit-interval Megatron leaves through sys.exit.
            with contextlib.suppress(SystemExit):
                pretrain.train([*TINY, *self.data, *arguments])
            if live:
                chunks = unwrap_model(live[0])
                run.after = global_weights(chunks)
                run.trained = {n for n, p in global_parameters(chunks) if p.requires_grad}
                if at_end is not None:
                    at_end(run, *live)
        finally:
            training.train_step, training.print_rank_last = step_of_megatron, printer
            sys.argv = command
            live.clear()
            forget_run()
        self.record(name, run)
        return run


def global_parameters(chunks: list[Any]) -> list[tuple[str, torch.nn.Parameter]]:
    """Return this rank's parameters; layers carry their number in the whole model."""
    named = []
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            pieces = name.split(".")
            if pieces[:2] == ["decoder", "layers"]:
                pieces[2] = str(chunk.decoder.layers[int(pieces[2])].layer_number - 1)
            named.append((".".join(pieces), parameter))
    return named


def global_weights(chunks: list[Any]) -> dict[str, torch.Tensor]:
    """Return copies of this rank's weights by global name."""
    return {name: p.detach().clone() for name, p in global_parameters(chunks)}


def forget_run() -> None:
    """Drop Megatron's global state, so that the next run of this process starts afresh."""
    from megatron.training import training

    torch.distributed.barrier()
    training.destroy_global_state()
    gc.collect()


def _loss_everywhere(losses: dict[str, torch.Tensor]) -> float:
    """Return the loss, which only the last pipeline stage knows, on every rank."""
    loss = torch.tensor([float(losses["lm loss"]) if losses else 0.0], dtype=torch.float64)
    torch.distributed.all_reduce(loss, op=torch.distributed.ReduceOp.MAX)
    return loss.item()


def main() -> None:
    """Call the scenario that the command line names."""
    module, function = sys.argv[1].split(":")
    session = Session(Path(sys.argv[2]))
    getattr(importlib.import_module(f"tests.distributed.{module}"), function)(session)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    from tests.distributed import session

    session.main()  # under the module's own name, by which what it records is read back
