"""What freezing saves: step time, gradient and optimizer bytes, activations, peak memory.

Each arm trains the same model for the same steps in a process of its own, with everything that a
run has. Times are medians over steps, in processor time without a GPU; ratios are to the arm that
trains everything, against the limits of the design: train-shallow ``(2L + (L-k)) / 3L`` with the
``k`` deepest layers frozen, train-deep ``(L + 2k) / 3L`` with the ``k`` deepest trained::

    python benchmarks/freeze.py                    # a deep, narrow model
    python benchmarks/freeze.py --load megatron/   # a converted checkpoint
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from layertracer.plan import FreezePlan, Strategy

ROOT = Path(__file__).parents[1]
LAYERS = 16
VOCABULARY = 512
MODEL = [
    *("--num-layers", str(LAYERS), "--hidden-size", "256", "--ffn-hidden-size", "1024"),
    *("--num-attention-heads", "4", "--max-position-embeddings", "128"),
    *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu"),
    *("--disable-bias-linear", "--attention-dropout", "0", "--hidden-dropout", "0"),
    *("--tokenizer-type", "NullTokenizer", "--vocab-size", str(VOCABULARY - 1)),
    "--untie-embeddings-and-output-weights",
]


@dataclass(frozen=True)
class Measured:
    """One arm."""

    arm: str
    seconds: float
    trained_parameters: int
    gradient_bytes: int
    optimizer_bytes: int
    saved_activation_bytes: int
    peak_resident_bytes: int


def plan_for(arm: Strategy, layers: int, tied: bool) -> FreezePlan:
    """Return the plan of ``arm`` at the midpoint, embedding and head frozen where layers are."""
    frozen = {"embedding": False, "final_norm": False, "output_layer": False}
    outside = {} if arm is Strategy.FULL else frozen
    return FreezePlan.from_strategy(
        arm, num_layers=layers, tied_embeddings=tied, boundary=layers // 2, **outside
    )


def limit(arm: Strategy) -> float:
    """Return the share of the full step's time that the layers of ``arm`` need, at the midpoint."""
    return {Strategy.TRAIN_SHALLOW: 2.5 / 3, Strategy.TRAIN_DEEP: 2 / 3}.get(arm, 1.0)


def train(flags: list[str], out: Path, steps: int) -> None:
    """Train in this process and write what was measured to ``out``."""
    import time

    import torch

    on_gpu = torch.cuda.is_available()
    import megatron_patches

    megatron_patches.apply()
    from megatron.training import training

    from megatron_patches import memory_report, pretrain

    # Without a GPU one thread does the work: its processor time is not disturbed by other programs.
    clock = time.perf_counter if on_gpu else time.process_time
    seconds: list[float] = []
    found: dict[str, Any] = {}
    step = training.train_step
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    def timed(*args: Any, **kwargs: Any) -> Any:
        if len(seconds) == steps - 1:  # the last step is for counting, not for the clock
            with saved_tensors(found):
                answer = step(*args, **kwargs)
            found["report"] = memory_report.report(args[2], args[3])
        else:
            began = clock()
            answer = step(*args, **kwargs)
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(clock() - began)
        return answer

    training.train_step = timed
    pretrain.train(flags)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    steady = statistics.median(seconds[2:])
    out.write_text(json.dumps({"seconds": steady, "peak": peak, **found}))


def saved_tensors(found: dict[str, Any]) -> Any:
    """Return a context that counts what autograd keeps for backward, each storage once."""
    import torch

    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        found["activations"] = sum(storages.values())
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def measure(
    arm: Strategy, flags: list[str], plan: FreezePlan, folder: Path, steps: int
) -> Measured:
    """Run one arm in a process of its own."""
    plan.save(folder / f"{arm}.json")
    out = folder / f"{arm}.out"
    flags = [*flags, "--freeze-plan", str(folder / f"{arm}.json"), "--train-iters", str(steps)]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "-m"]
    command += ["benchmarks.freeze", "--worker", str(out), "--steps", str(steps), "--", *flags]
    environment = {"OMP_NUM_THREADS": "1", "LAYERTRACER_DEBUG": "1", **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-3000:])
    found = json.loads(out.read_text())
    report = found["report"]
    return Measured(
        str(arm),
        found["seconds"],
        report["trained_parameters"],
        report["gradient_bytes"],
        report["optimizer_bytes"],
        found["activations"],
        found["peak"],
    )


def corpus(folder: Path) -> list[str]:
    """Write random tokens; what they are does not change the time."""
    from layertracer.data.indexed import IndexedWriter

    random = np.random.default_rng(0)
    with IndexedWriter(folder / "corpus", np.uint16) as writer:
        for _ in range(64):
            writer.add(random.integers(1, VOCABULARY - 2, 513).astype(np.uint16))
    return ["--data-path", str(folder / "corpus"), "--split", "1,0,0"]


def table(results: list[Measured]) -> Table:
    """Show the arms beside each other."""
    full = results[0]
    shown = Table(title="Freezing, ratios to training everything")
    for heading in ("arm", "s/step", "ratio", "limit", "trained", "gradient", "optimizer"):
        shown.add_column(heading)
    shown.add_column("saved activations")
    shown.add_column("peak MB")
    for one in results:
        trained = one.trained_parameters / full.trained_parameters
        shown.add_row(
            one.arm,
            f"{one.seconds:.3f}",
            f"{one.seconds / full.seconds:.3f}",
            f"{limit(Strategy(one.arm)):.3f}",
            f"{trained:.4f}",
            f"{one.gradient_bytes / full.gradient_bytes:.4f}",
            f"{one.optimizer_bytes / full.optimizer_bytes:.4f}",
            f"{one.saved_activation_bytes / full.saved_activation_bytes:.3f}",
            f"{one.peak_resident_bytes / 1e6:.0f}",
        )
    return shown


def main() -> None:
    """Measure every arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", type=Path, help="a converted checkpoint instead of the own model")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seq-length", type=int, default=128)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train(options.flags, options.worker, options.steps)
        return
    layers, tied, model = LAYERS, False, MODEL
    if options.load:
        from layertracer.checkpoint.sidecar import MegatronShape

        shape = MegatronShape.load(options.load)
        layers, tied = shape.num_layers, shape.tied_embeddings
        model = ["--load", str(options.load), "--finetune"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = [*model, *corpus(folder), "--seq-length", str(options.seq_length)]
        flags += ["--micro-batch-size", "2", "--global-batch-size", "8", "--lr", "1e-4"]
        flags += ["--num-workers", "0"]
        results = [
            measure(arm, flags, plan_for(arm, layers, tied), folder, options.steps)
            for arm in (Strategy.FULL, Strategy.TRAIN_SHALLOW, Strategy.TRAIN_DEEP)
        ]
    Console(width=110).print(table(results))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1))


if __name__ == "__main__":
    main()
