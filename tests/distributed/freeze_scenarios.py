"""Runs of the tiny model under each arm and layout; started by test_freeze.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layertracer.plan import FreezePlan, Phase, Strategy
from tests.distributed.session import Run, Session, global_parameters

LAYOUTS = {
    "tp2": ["--tensor-model-parallel-size", "2"],
    "pp2": ["--pipeline-model-parallel-size", "2"],
    "dp2": [],
}
ARMS = (Strategy.FULL, Strategy.TRAIN_SHALLOW, Strategy.TRAIN_DEEP)
UNTIED = ["--untie-embeddings-and-output-weights"]
STEPS, SAVED = 5, 3


def plan_of(arm: Strategy, *, tied: bool = True) -> FreezePlan:
    """Return the plan of ``arm`` for the tiny model, with the boundary in its middle."""
    return FreezePlan.from_strategy(arm, num_layers=4, tied_embeddings=tied, boundary=2)


def custom(*, tied: bool = True, **phase: Any) -> FreezePlan:
    """Return a plan of one phase."""
    return FreezePlan(num_layers=4, tied_embeddings=tied, phases=(Phase(**phase),))


@dataclass(frozen=True)
class Case:
    """A run that is saved on its way, then resumed from there."""

    plan: FreezePlan
    flags: tuple[str, ...] = ()
    from_start: bool = True  # from the weights of the one-process run


SMALL_BUCKETS = ("--bf16", "--overlap-grad-reduce", "--overlap-param-gather")
SMALL_BUCKETS += ("--ddp-bucket-size", "20000")
RECOMPUTE = ("--recompute-granularity", "full", "--recompute-method", "uniform")
RECOMPUTE += ("--recompute-num-layers", "1")
CASES = {
    f"{layout}-{arm}": Case(plan_of(arm), tuple(flags))
    for layout, flags in LAYOUTS.items()
    for arm in ARMS
} | {
    # On the second rank nothing trains: neither its stage ...
    "pp2-first-stage": Case(
        plan_of(Strategy.TRAIN_SHALLOW, tied=False), (*LAYOUTS["pp2"], *UNTIED), False
    ),
    # ... nor, here, its shard, which is padding only.
    "dp2-norm": Case(custom(final_norm=True)),
    # Nothing before the second stage's last layer trains: both stages run it forward only.
    "pp2-last-layer": Case(custom(layers=(3,)), tuple(LAYOUTS["pp2"])),
    "dp2-last-layer": Case(custom(layers=(3,))),
    "pp2-head": Case(custom(tied=False, output_layer=True), (*LAYOUTS["pp2"], *UNTIED), False),
    "dp2-one-bucket": Case(custom(layers=(1, 3)), ("--bf16", "--clip-grad", "0"), False),
    "dp2-buckets": Case(custom(layers=(1, 3)), (*SMALL_BUCKETS, "--clip-grad", "0"), False),
    "dp2-recompute": Case(
        plan_of(Strategy.TRAIN_DEEP),
        (*RECOMPUTE, "--overlap-grad-reduce"),
    ),
}


def live_facts(run: Run, chunks: list[Any], optimizer: Any) -> None:
    """Note what the live objects hold: names in buffers and with moments, elements, bytes."""
    from megatron.core.utils import unwrap_model

    from megatron_patches import memory_report

    names = {p: name for name, p in global_parameters(unwrap_model(chunks))}
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers]
    run.facts["in_buffers"] = {names[p] for buffer in buffers for p in buffer.params}
    buckets = [bucket for buffer in buffers for bucket in buffer.buckets]
    run.facts["gradient_elements"] = sum(bucket.numel_unpadded for bucket in buckets)
    with_moments, elements = set(), 0
    for one in memory_report.single_optimizers(optimizer):
        for parameter, (group, place) in one.model_param_group_index_map.items():
            state = one.optimizer.state[one.optimizer.param_groups[group]["params"][place]]
            with_moments.add(names[parameter])
            elements += state["exp_avg"].numel()
    run.facts["with_moments"], run.facts["moment_elements"] = with_moments, elements
    run.facts["trained_elements"] = sum(p.numel() for p in names if p.requires_grad)
    run.facts["report"] = memory_report.report(chunks, optimizer)


def watch_graph(run: Run, step: int, chunks: list[Any], _optimizer: Any) -> None:
    """Note which layers' outputs carry a graph, that is, which run backward."""
    from megatron.core.utils import unwrap_model

    if step > 0:
        return
    graph = run.facts.setdefault("backward", {})

    def note(layer: Any, _inputs: Any, output: Any) -> None:
        graph[layer.layer_number - 1] = output[0].requires_grad

    for chunk in unwrap_model(chunks):
        for layer in chunk.decoder.layers:
            layer.register_forward_hook(note)


def one_process(session: Session) -> None:
    """Save the common start, then run each arm from it."""
    start = session.folder / "start"
    session.train("start", ["--train-iters", "1", "--save", str(start), "--save-interval", "1"])
    for arm in ARMS:
        flags = [*from_start(session), *session.plan(plan_of(arm)), "--train-iters", str(STEPS)]
        session.train(f"one-{arm}", flags, at_end=live_facts)


def from_start(session: Session) -> list[str]:
    """Return the flags that begin a run from the weights of the one-process run."""
    start = session.folder / "start"
    return ["--load", str(start), "--finetune", "--no-load-optim", "--no-load-rng"]


def two_processes(session: Session) -> None:
    """Run each case to its end, saving on the way, and again from what was saved."""
    for name, case in CASES.items():
        saved = str(session.folder / name)
        flags = [*case.flags, *session.plan(case.plan), "--train-iters", str(STEPS)]
        start = from_start(session) if case.from_start else []
        saving = ["--save", saved, "--save-interval", str(SAVED)]
        observers = {"before_step": watch_graph, "at_end": live_facts}
        session.train(name, [*flags, *start, *saving], **observers)
        resuming = ["--load", saved, "--ckpt-step", str(SAVED)]
        session.train(f"{name}-resumed", [*flags, *resuming])
    session.train("killed", [*killed_flags(session.folder / "never-killed"), *session.data])


def killed_flags(save: Path) -> list[str]:
    """Return the flags of the run that is killed again and again; rank 0 owns nothing trained."""
    plan = save.parent / "plan-killed.json"
    plan_of(Strategy.TRAIN_DEEP, tied=False).save(plan)
    return [
        *(*LAYOUTS["pp2"], *UNTIED, "--freeze-plan", str(plan)),
        *("--train-iters", "60", "--save", str(save), "--save-interval", "7"),
    ]
