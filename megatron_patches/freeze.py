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
from typing import Any

from layertracer.errors import UserError
from layertracer.plan import FreezePlan
from megatron_patches.parts import parameters_by_part


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
    if len(plan.phases) > 1:
        raise UserError(
            f"{source} changes at step {plan.phases[1].at_step}, which a run can't do yet: stop "
            "there and resume with a plan of the next phase"
        )
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


def hook(plan: FreezePlan) -> Callable[[list[Any]], list[Any]]:
    """Return the function for ``ModelConfig.pre_wrap_hooks`` that freezes by ``plan``."""

    def freeze(chunks: list[Any]) -> list[Any]:
        phase = plan.phases[0]
        for chunk in chunks:
            for _, parameter, part in parameters_by_part(chunk):
                parameter.requires_grad_(part.trains(phase))
            _freeze_expert_bias(chunk, phase)
        return chunks

    return freeze


def _freeze_expert_bias(chunk: Any, phase: Any) -> None:
    """Stop the routers' balancing bias of frozen layers, which moves without any gradient."""
    if chunk.decoder is None:
        return
    for layer in chunk.decoder.layers:
        router = getattr(getattr(layer, "mlp", None), "router", None)
        if router is not None and not phase.trains_layer(layer.layer_number - 1):
            router.frozen_expert_bias = True
