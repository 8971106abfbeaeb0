"""Freezing by plan, before Megatron builds its gradient buffers and optimizer.

What it changes: nothing in Megatron; a function goes into ``ModelConfig.pre_wrap_hooks``.
Why: parameters that don't require a gradient when DDP and the optimizer are built are in no buffer,
have no main copy and no moments. Megatron's own ``--freeze-all-layers`` is ignored on this path.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_freeze.py, tests/distributed/test_freeze.py
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layertracer.checkpoint.megatron_reader import RELEASE, iteration_folder
from layertracer.errors import UserError
from layertracer.plan import FreezePlan, Phase
from megatron_patches import distributed_adam, moe_router, pipeline_frozen
from megatron_patches.parts import mark_parts, parameters_by_part

# What trains now; None without a plan.
in_force: Phase | None = None


def load_plan(args: Namespace) -> FreezePlan | None:
    """Return the plan that ``--freeze-plan`` names, checked against the model and the run.

    Raises:
        UserError: it is for another model, or asks for what the run can't do.
    """
    if args.freeze_plan is None:
        return None
    plan = FreezePlan.load(args.freeze_plan)
    plan.check_model(
        num_layers=args.num_layers,
        tied_embeddings=not args.untie_embeddings_and_output_weights,
        source=f"--freeze-plan {args.freeze_plan}",
    )
    _refuse_what_cannot_work(args, plan)
    return plan


def _refuse_what_cannot_work(args: Namespace, plan: FreezePlan) -> None:
    source = f"--freeze-plan {args.freeze_plan}"
    if not args.use_distributed_optimizer:
        raise UserError(f"{source} needs --use-distributed-optimizer")
    if not args.dist_ckpt_optim_fully_reshardable:
        raise UserError(
            f"{source} needs --dist-ckpt-optim-fully-reshardable: the other format of optimizer "
            "checkpoints can't change plan"
        )
    if args.freeze_all_layers:
        raise UserError("--freeze-all-layers: write a plan and give it as --freeze-plan instead")
    for flag in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if getattr(args, flag):
            raise UserError(f"{source} does not work with --{flag.replace('_', '-')}")
    if len(plan.phases) > 1:
        _refuse_what_cannot_change(args, f"{source} changes at step {plan.phases[1].at_step}")


# What keeps references to buffers that a change of plan frees, or state that it doesn't carry over.
_CANNOT_CHANGE = {
    "optimizer_cuda_graph": False,
    "optimizer_cpu_offload": False,
    "use_precision_aware_optimizer": False,
    "ckpt_assume_constant_structure": False,
    "overlap_param_gather_with_optimizer_step": False,
    "delay_wgrad_compute": False,
    "use_mup": False,
    "use_nccl_ub": False,
    "num_distributed_optimizer_instances": 1,
    "cuda_graph_impl": "none",
    "optimizer": "adam",
}


def _refuse_what_cannot_change(args: Namespace, source: str) -> None:
    for name, needed in _CANNOT_CHANGE.items():
        value = getattr(args, name, needed)
        if value != needed:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{source}, which does not work with {flag} {value}: leave it out, or stop there "
                "and resume with a plan of the next phase"
            )


def first_step(args: Namespace) -> int:
    """Return how many updates the checkpoint that the run starts from has behind it."""
    if args.load is None or args.finetune:
        return 0
    folder = iteration_folder(Path(args.load), args.ckpt_step).name
    return 0 if folder == RELEASE else int(folder.removeprefix("iter_"))


def hook(plan: FreezePlan | None, step: int) -> Callable[[list[Any]], list[Any]]:
    """Return the function for ``ModelConfig.pre_wrap_hooks`` that freezes by ``plan``.

    Args:
        plan: None: everything trains.
        step: the step that the run starts at.
    """

    def freeze(chunks: list[Any]) -> list[Any]:
        global in_force
        in_force = None
        distributed_adam.shared = distributed_adam.Shared()
        mark_parts(chunks)
        if plan is not None:
            freeze_chunks(chunks, plan.phase_at(step))
        return chunks

    return freeze


def freeze_chunks(chunks: list[Any], phase: Phase) -> None:
    """Let exactly what ``phase`` names require gradients, in bare (not wrapped) model chunks."""
    global in_force
    in_force = phase
    for chunk in chunks:
        for _, parameter, part in parameters_by_part(chunk):
            parameter.requires_grad_(part.trains(phase))
    moe_router.mark_routers(chunks, phase)
    pipeline_frozen.mark_blocks(chunks, phase)
