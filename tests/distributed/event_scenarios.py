"""Runs whose plan changes on their way; started by test_freeze_events.py."""

from __future__ import annotations

import gc
from typing import Any

import torch

from layertracer.plan import FreezePlan, Phase
from tests.distributed.freeze_scenarios import ARMS, LAYOUTS, live_facts, plan_of
from tests.distributed.session import Run, Session, global_parameters

STEPS = 8
ALL = {"embedding": True, "final_norm": True, "output_layer": True}
NONE = {"embedding": False, "final_norm": False, "output_layer": False}
# Freeze at 3; at 5 a layer that trained from the start survives, one comes back, one is new.
FREEZE = (Phase(layers=(0, 1, 2), **ALL), Phase(at_step=3, layers=(0, 1), **ALL))
SCHEDULE = (*FREEZE, Phase(at_step=5, layers=(1, 2, 3), **NONE))
OVERLAP = ("--overlap-grad-reduce", "--overlap-param-gather", "--ddp-bucket-size", "20000")
RUNS = {
    "events-dp2": ("--bf16", *OVERLAP),
    "events-tp2": tuple(LAYOUTS["tp2"]),
    "events-pp2": (*LAYOUTS["pp2"], "--recompute-granularity", "selective"),
    "events-vpp2": (
        *(*LAYOUTS["pp2"], "--num-virtual-stages-per-pipeline-rank", "2", "--bf16"),
        *("--overlap-grad-reduce", "--overlap-param-gather"),
    ),
}
ORACLES = {"masked-dp2": ("--bf16", *OVERLAP), "masked-pp2": tuple(LAYOUTS["pp2"])}


def schedule(*phases: Phase) -> FreezePlan:
    """Return a plan of ``phases`` for the tiny model with tied embeddings."""
    return FreezePlan(num_layers=4, tied_embeddings=True, phases=phases)


def live_bytes() -> int:
    """Return the bytes of all tensors that are alive in this process, shared storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def note_live_bytes(run: Run, step: int, *_: Any) -> None:
    """Note what is alive after each step."""
    run.facts.setdefault("live_bytes", {})[step] = live_bytes()


def note_moments(run: Run, chunks: list[Any], optimizer: Any) -> None:
    """Note this rank's moments and step of every trained parameter."""
    from megatron.core.utils import unwrap_model

    from megatron_patches.rebuild import single_optimizers

    live_facts(run, chunks, optimizer)
    names = {parameter: name for name, parameter in global_parameters(unwrap_model(chunks))}
    run.facts["state"] = {
        f"{names[parameter]}.{key}": value.clone()
        for one in single_optimizers(optimizer)
        for parameter, main, state in one.states()
        for key, value in {**state, "main": main.detach()}.items()
    }


def two_processes(session: Session) -> None:
    """Change plans in mid-run; resume from the steps of change; mask updates instead."""
    for name, flags in RUNS.items():
        common = [*flags, *session.plan(schedule(*SCHEDULE)), "--train-iters", str(STEPS)]
        saved = str(session.folder / name)
        session.train(
            name,
            [*common, "--save", saved, "--save-interval", "1"],
            after_step=note_live_bytes,
            at_end=note_moments,
        )
        for step in (3, 5, 6):
            resuming = ["--load", saved, "--ckpt-step", str(step)]
            session.train(f"{name}-from-{step}", [*common, *resuming], at_end=note_moments)
    for name, flags in ORACLES.items():
        common = [*flags, "--clip-grad", "0", "--train-iters", "6"]
        session.train(f"{name}-rebuilt", [*common, *session.plan(schedule(*FREEZE))])
        masked = [*common, *session.plan(schedule(FREEZE[0]))]
        session.train(name, masked, before_step=mask_updates)


def mask_updates(_run: Run, step: int, chunks: list[Any], optimizer: Any) -> None:
    """From step 3 on, put back what an update does to the weights that FREEZE freezes there."""
    from megatron.core.utils import unwrap_model

    from megatron_patches.rebuild import single_optimizers

    if step != 3:
        return
    frozen = [
        (parameter, parameter.detach().clone())
        for name, parameter in global_parameters(unwrap_model(chunks))
        if name.startswith("decoder.layers.2.")
    ]
    mains = [
        (main, main.detach().clone())
        for one in single_optimizers(optimizer)
        for parameter, main, _ in one.states()
        if any(parameter is other for other, _ in frozen)
    ]
    update = optimizer.step

    def masked() -> Any:
        with torch.no_grad():
            answer = update()
            for tensor, kept in [*mains, *frozen]:
                tensor.copy_(kept)
        return answer

    optimizer.step = masked


def one_process(session: Session) -> None:
    """Each arm for 20 steps, and the same in a plain loop of torch."""
    for arm in ARMS:
        batches: list[dict[str, Any]] = []
        _keep_batches(batches)
        flags = [*session.plan(plan_of(arm)), "--train-iters", "20"]
        session.train(
            f"arm-{arm}",
            flags,
            before_step=_before_plain,
            after_step=_after_counting,
            at_end=lambda run, chunks, _, kept=batches, arm=arm: _plain_loop(
                run, chunks, kept, plan_of(arm)
            ),
        )


def _before_plain(run: Run, step: int, _chunks: list[Any], optimizer: Any) -> None:
    """Note the learning rate, and count the operations of one step by running it."""
    from torch.utils.flop_counter import FlopCounterMode

    run.facts.setdefault("rates", []).append(optimizer.param_groups[0]["lr"])
    if step == 1:
        run.facts["counter"] = FlopCounterMode(display=False)
        run.facts["counter"].__enter__()


def _after_counting(run: Run, step: int, *_: Any) -> None:
    from megatron.training import get_args, training

    if step != 2:
        return
    counter = run.facts.pop("counter")
    counter.__exit__(None, None, None)
    run.facts["counted"] = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    args = get_args()
    linears = training.num_floating_point_operations(args, args.global_batch_size, 0)
    whole = training.num_floating_point_operations(args, args.global_batch_size)
    run.facts["claimed"] = {"linears": linears, "cores": whole - linears}


def _keep_batches(kept: list[dict[str, Any]]) -> None:
    from megatron_patches import batch

    read = getattr(batch.next_batch, "original", batch.next_batch)

    def next_batch(*args: Any) -> dict[str, Any]:
        kept.append(read(*args))
        return kept[-1]

    next_batch.original = read
    batch.next_batch = next_batch


def _plain_loop(run: Run, chunks: list[Any], batches: list[Any], plan: FreezePlan) -> None:
    """Train a bare model with torch's AdamW on the same batches; keep its weights."""
    from megatron.core.utils import unwrap_model

    model = _bare_copy(unwrap_model(chunks)[0], run.before)
    phase = plan.phases[0]
    for name, parameter in model.named_parameters():
        pieces = name.split(".")
        part = {"embedding": phase.embedding, "decoder": phase.final_norm}
        layer = pieces[:2] == ["decoder", "layers"]
        trains = int(pieces[2]) in phase.layers if layer else part[pieces[0]]
        parameter.requires_grad_(trains)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.dim() > 1]
    plain = [parameter for parameter in trained if parameter.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    adam = torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.999))
    micro = len(batches) // len(run.facts["rates"])
    for step, rate in enumerate(run.facts["rates"]):
        adam.zero_grad()
        part = batches[step * micro : (step + 1) * micro]
        tokens = sum(batch["loss_mask"].sum() for batch in part)
        for batch in part:
            losses = model(
                *(batch["tokens"], batch["position_ids"], batch["attention_mask"]),
                labels=batch["labels"],
            )
            ((losses * batch["loss_mask"]).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
    run.facts["plain"] = {name: p.detach().clone() for name, p in model.named_parameters()}


def _bare_copy(model: Any, weights: dict[str, torch.Tensor]) -> Any:
    copy = type(model)(
        config=model.config,
        transformer_layer_spec=model.transformer_layer_spec,
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_sequence_length,
        position_embedding_type=model.position_embedding_type,
        share_embeddings_and_output_weights=model.share_embeddings_and_output_weights,
        rotary_base=model.rotary_base,
    )
    copy.load_state_dict(weights, strict=False)
    return copy
