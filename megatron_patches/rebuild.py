"""A change of plan in mid-run: gradient buffers and optimizer are built again for what now trains.

What it changes: nothing in Megatron; the objects that Megatron's training loop holds are hollowed
out and filled again in place, since the loop keeps references to them.
Why: freezing by ``requires_grad`` alone leaves the buffers, main copies and moments allocated, and
weights moving by momentum and decay. Building again frees all of it, and unfreezes as well. The
state of surviving parameters is carried over exactly.
Megatron versions: 0.19.x.
Test: tests/distributed/test_freeze_events.py
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

from layertracer.plan import Phase
from megatron_patches import distributed_adam, freeze
from megatron_patches.distributed_adam import ExactDistributedOptimizer
from megatron_patches.parts import part_name, parts_of
from megatron_patches.state_exchange import Move, Range, exchange, owners

MOMENTS = ("exp_avg", "exp_avg_sq")
# What DDP and the optimizer leave on a parameter.
_LEFTOVERS = (
    "main_grad",
    "main_param",
    "main_param_sharded",
    "grad_added_to_main_grad",
    "main_grad_copy_in_grad_buffer",
)
_DDP_LISTS = (
    "grad_accs",
    "bucket_groups",
    "expert_parallel_bucket_groups",
    "buffers",
    "expert_parallel_buffers",
    "params_with_grad",
)


@dataclass
class Carried:
    """State of one parameter: who held which part of it, and this rank's piece of each kind."""

    ranges: list[Range]
    pieces: dict[str, torch.Tensor]


def single_optimizers(optimizer: Any) -> list[ExactDistributedOptimizer]:
    """Return the optimizers of a chain that hold parameters of any rank."""
    return [one for one in optimizer.chained_optimizers if not one.is_stub_optimizer]


def last_step(optimizer: Any) -> float:
    """Return how many steps the optimizer made (a collective call)."""
    own = max((one.last_step() for one in single_optimizers(optimizer)), default=0.0)
    return distributed_adam.largest(own)


def rebuild(chunks: list[Any], optimizer: Any, scheduler: Any, before: Phase, after: Phase) -> None:
    """Let ``after`` instead of ``before`` train from now on (a collective call between steps)."""
    from megatron.core.utils import unwrap_model
    from megatron.training import get_args, training
    from megatron.training.async_utils import maybe_finalize_async_save

    maybe_finalize_async_save(blocking=True)
    if any(getattr(chunk, "remove_forward_pre_hook_handles", None) for chunk in chunks):
        training.disable_forward_pre_hook(chunks)  # gathers the weights of the last step first
    torch.distributed.barrier()
    step = last_step(optimizer)
    scaler = _scaler_state(optimizer)
    carried = _take_out(optimizer)
    _hollow(chunks, optimizer)
    freeze.freeze_chunks(unwrap_model(chunks), after)
    _leave_buffers(chunks)
    _set_step_offsets(parts_of(before), parts_of(after), step)
    for index, chunk in enumerate(chunks):
        _wrap_again(chunk, index)
    _build_optimizer(chunks, optimizer, get_args())
    _put_back(optimizer, carried, step)
    _restore_scaler(optimizer, scaler)
    scheduler.step(0)  # the learning rate of this step, for the new groups
    gc.collect()
    torch.cuda.empty_cache()


def _take_out(optimizer: Any) -> dict[torch.nn.Parameter, Carried]:
    """Return the state of every trained parameter; afterwards the optimizer may be dropped."""
    carried = {}
    for one in single_optimizers(optimizer):
        for buffer in one.buffers:
            for parameter, ranges in owners(buffer).items():
                carried[parameter] = Carried(ranges, {})
        for parameter, main, state in one.states():
            pieces = {key: state[key] for key in MOMENTS if key in state}
            if parameter.dtype != torch.float32:  # else the weight is its own main copy
                pieces["param"] = main.detach()
            carried[parameter].pieces = pieces
    return carried


def _hollow(chunks: list[Any], optimizer: Any) -> None:
    """Drop the buffers, the hooks and the optimizer's state."""
    vars(optimizer).clear()
    for chunk in chunks:
        for name in _DDP_LISTS:
            setattr(chunk, name, [])
        chunk.param_to_bucket_group = {}
        chunk.full_param_layout = None
        for parameter in chunk.parameters():
            parameter.grad = None
            for name in _LEFTOVERS:
                if hasattr(parameter, name):
                    delattr(parameter, name)


def _leave_buffers(chunks: list[Any]) -> None:
    """Give frozen weights storage of their own: one view would keep a whole flat buffer alive."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.clone()


def _set_step_offsets(before: set[str], after: set[str], step: float) -> None:
    """Let parts that begin to train now count their steps from here."""
    shared = distributed_adam.shared
    kept = {part: shared.step_offsets.get(part, 0.0) for part in before & after}
    shared.step_offsets = kept | dict.fromkeys(after - before, step)


def _wrap_again(chunk: Any, index: int) -> None:
    """Run the initialisation of DDP on the same object, with the layout of what now trains."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.utils import get_model_config, unwrap_model

    groups = unwrap_model(chunk).pg_collection
    DistributedDataParallel.__init__(
        chunk,
        config=get_model_config(chunk),
        ddp_config=chunk.ddp_config,
        module=chunk.module,
        disable_bucketing=index > 0,
        pg_collection=groups,
        full_param_layout=_layout(chunk, index, groups),
    )


def _layout(chunk: Any, index: int, groups: Any) -> Any:
    trained = [parameter for parameter in chunk.module.parameters() if parameter.requires_grad]
    bucketed = index == 0 and groups.pp.rank() == 0
    return ExactDistributedOptimizer.compute_full_param_layout(
        trained,
        chunk.ddp_config.bucket_size if bucketed else None,
        chunk.intra_dp_cp_group.size(),
        chunk.ddp_config,
        expert_data_parallel_world_size=chunk.intra_expt_dp_group.size(),
    )


def _build_optimizer(chunks: list[Any], optimizer: Any, args: Any) -> None:
    """Fill the hollow ``optimizer`` with a new one's content."""
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.training import get_timers, training

    config, overrides = training.get_megatron_optimizer_config(args)
    config.timers = get_timers()
    new = get_megatron_optimizer(
        config,
        chunks,
        config_overrides=overrides,
        use_gloo_process_groups=args.use_gloo_process_groups,
    )
    vars(optimizer).update(vars(new))


@torch.no_grad()
def _put_back(optimizer: Any, carried: dict[torch.nn.Parameter, Carried], step: float) -> None:
    """Hand each surviving parameter its state, on the rank that owns it now."""
    for one in single_optimizers(optimizer):
        ranges = {p: r for buffer in one.buffers for p, r in owners(buffer).items()}
        survivors = [p for p in ranges if p in carried and _steps(p, step) > 0]
        local = {p: (main, one.optimizer.state[main]) for p, main, _ in one.states()}
        for key in ("param", *MOMENTS):
            moving = [p for p in survivors if key != "param" or p.dtype != torch.float32]
            if not moving:
                continue
            moves = [Move(carried[p].ranges, ranges[p]) for p in moving]
            pieces = [carried[p].pieces.pop(key, None) for p in moving]
            like = torch.empty(0, dtype=torch.float32, device=moving[0].device)
            for p, piece in zip(
                moving, exchange(moves, pieces, one.data_parallel_group, like), strict=True
            ):
                if p in local:
                    _set(*local[p], key, piece)
        _set_steps(one, local, survivors, step)


def _set(main: torch.Tensor, state: dict[str, Any], key: str, piece: torch.Tensor) -> None:
    if key == "param":
        main.copy_(piece)
    else:
        state[key] = piece


def _steps(parameter: torch.nn.Parameter, step: float) -> float:
    return step - distributed_adam.shared.step_offsets.get(part_name(parameter), 0.0)


def _set_steps(
    one: ExactDistributedOptimizer, local: dict[Any, Any], survivors: list[Any], step: float
) -> None:
    for group in one.optimizer.param_groups:
        group["step"] = int(step)  # which fused Adam counts by
    if one.is_torch_adam:
        for parameter in survivors:
            if parameter in local:
                steps = torch.tensor(_steps(parameter, step), dtype=torch.float32)
                local[parameter][1]["step"] = steps


def _scaler_state(optimizer: Any) -> dict[str, Any] | None:
    scalers = [one.grad_scaler for one in single_optimizers(optimizer) if one.grad_scaler]
    return scalers[0].state_dict() if scalers else None


def _restore_scaler(optimizer: Any, state: dict[str, Any] | None) -> None:
    for one in single_optimizers(optimizer):
        if one.grad_scaler and state is not None:
            one.grad_scaler.load_state_dict(state)
