"""Plans in further layouts and kinds of model; resuming under others (test_freeze_layouts.py)."""

from __future__ import annotations

from typing import Any

from layertracer.plan import FreezePlan, Phase, Strategy
from tests.distributed.event_scenarios import FREEZE, SCHEDULE, note_moments, schedule
from tests.distributed.freeze_scenarios import LAYOUTS, plan_of
from tests.distributed.session import Run, Session

STEPS, SAVED = 7, 3
EXPERTS = (
    *("--num-experts", "4", "--moe-router-topk", "2", "--moe-ffn-hidden-size", "32"),
    *("--moe-token-dispatcher-type", "alltoall", "--expert-model-parallel-size", "2"),
)
BIAS = ("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias")
RUNS = {
    "experts": (*EXPERTS, *BIAS, "--moe-router-load-balancing-type", "none", "--bf16"),
    "sequence": (*LAYOUTS["tp2"], "--sequence-parallel", "--qk-layernorm", "--add-qkv-bias"),
    "scaled": ("--fp16", "--initial-loss-scale", "1048576", "--loss-scale-window", "2"),
}
SHALLOW = plan_of(Strategy.TRAIN_SHALLOW)
RESUMED = {
    **{f"shallow-{layout}": (SHALLOW, tuple(flags)) for layout, flags in LAYOUTS.items()},
    "all-tp2": (plan_of(Strategy.FULL), tuple(LAYOUTS["tp2"])),
    "all-dp2": (plan_of(Strategy.FULL), ()),
}


def two_processes(session: Session) -> None:
    """Change plans in each kind of run; resume one run under other plans and layouts."""
    for name, flags in RUNS.items():
        common = [*flags, *session.plan(schedule(*SCHEDULE)), "--train-iters", str(STEPS)]
        saved = str(session.folder / name)
        saving = ["--save", saved, "--save-interval", "1"]
        session.train(name, [*common, *saving], after_step=_note_biases, at_end=note_moments)
        for step in (3, 5):
            resuming = ["--load", saved, "--ckpt-step", str(step)]
            session.train(f"{name}-from-{step}", [*common, *resuming], at_end=note_moments)
    for name, phases in (("full", FREEZE[:1]), ("shallow", None)):
        _save_then_resume(session, name, schedule(*phases) if phases else SHALLOW)
    _old_checkpoint(session)


def _save_then_resume(session: Session, name: str, plan: FreezePlan) -> None:
    saved = str(session.folder / name)
    flags = ["--train-iters", str(SAVED), "--lr-decay-iters", str(STEPS)]
    flags += ["--save", saved, "--save-interval", str(SAVED)]
    session.train(name, [*flags, *session.plan(plan)], at_end=note_moments)
    for other, (new, layout) in RESUMED.items():
        resuming = [*layout, *session.plan(new), "--load", saved, *_whole_run()]
        session.train(f"{name}-then-{other}", resuming, at_end=note_moments)


def _whole_run() -> list[str]:
    return ["--train-iters", str(STEPS), "--lr-decay-iters", str(STEPS)]


def _old_checkpoint(session: Session) -> None:
    """Save as Megatron itself does, with all layers in one tensor; resume under a plan."""
    from megatron_patches import run

    prepare = run.prepare

    def stacked(args: Any, model: Any) -> None:
        prepare(args, model)
        model.transformer.hetereogenous_dist_checkpoint = False

    saved = str(session.folder / "stacked")
    flags = ["--train-iters", str(SAVED), "--lr-decay-iters", str(STEPS)]
    run.prepare = stacked
    try:
        session.train("stacked", [*flags, "--save", saved, "--save-interval", str(SAVED)])
    finally:
        run.prepare = prepare
    resuming = ["--load", saved, *_whole_run(), *session.plan(SHALLOW)]
    session.train("stacked-then-shallow", resuming, at_end=note_moments)
    session.train("layers-then-shallow", _layers_one_by_one(session), at_end=note_moments)


def _layers_one_by_one(session: Session) -> list[str]:
    """Save the same run with a tensor a layer; return the flags that resume it."""
    saved = str(session.folder / "layers")
    flags = ["--train-iters", str(SAVED), "--lr-decay-iters", str(STEPS)]
    session.train("layers", [*flags, "--save", saved, "--save-interval", str(SAVED)])
    return ["--load", saved, *_whole_run(), *session.plan(SHALLOW)]


def _note_biases(run: Run, step: int, chunks: list[Any], _optimizer: Any) -> None:
    """Keep the routers' balancing biases after each step, by layer."""
    from megatron.core.utils import unwrap_model

    biases = run.facts.setdefault("biases", {}).setdefault(step, {})
    for chunk in unwrap_model(chunks):
        for layer in chunk.decoder.layers:
            router = getattr(layer.mlp, "router", None)
            if router is not None and router.expert_bias is not None:
                biases[layer.layer_number - 1] = router.expert_bias.clone()


def frozen_between(phases: tuple[Phase, ...], step: int) -> set[int]:
    """Return the layers that the update after ``step`` updates leaves alone."""
    return set(range(4)) - set(
        FreezePlan(num_layers=4, tied_embeddings=True, phases=phases).phase_at(step).layers
    )
