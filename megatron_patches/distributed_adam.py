"""The distributed optimizer with torch's AdamW, saved and loaded exactly, under another plan too.

What it changes: replaces ``megatron.core.optimizer.DistributedOptimizer`` by a subclass that

* keeps the step of torch's AdamW through saving and loading, also on ranks that own no trained
  parameter, and gives every parameter a step tensor of its own (Megatron hands all of them the
  same one, which then advances once a parameter and spoils the bias correction);
* can be saved before the first update (every step so far was skipped for an overflow);
* lets a part of the model that began to train later than the rest count its own steps
  (``step_offsets``), and starts a part afresh whose state the checkpoint does not hold;
* writes the fully reshardable state at the right places when a buffer has several padded buckets
  (Megatron indexes a tensor without padding by offsets with padding).

Why: without a GPU there is no fused Adam; and plans can change only in the reshardable format.
Megatron versions: 0.19.0 to 0.19.2; the last fault is gone in later ones.
Tests: tests/distributed/test_resume.py, tests/distributed/test_freeze_events.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from megatron_patches.parts import part_name


@dataclass
class Shared:
    """What all optimizers of a process have in common.

    ``step_offsets``: after how many of the optimizer's steps each part began to train, by part name
    (0 where missing); the same on all ranks. ``keys_in_file``: the tensors of the checkpoint that
    is being loaded. ``fresh``: parts that it had no state for, on this rank.
    """

    step_offsets: dict[str, float] = field(default_factory=dict)
    keys_in_file: frozenset[str] | None = None
    fresh: set[str] = field(default_factory=set)


shared = Shared()


class ExactDistributedOptimizer(DistributedOptimizer):
    """Megatron's distributed optimizer, with what the module's description says mended."""

    @property
    def is_torch_adam(self) -> bool:
        """Whether each parameter counts its own steps, as torch's Adam does."""
        return isinstance(self.optimizer, torch.optim.Adam)

    def states(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor, dict[str, Any]]]:
        """Yield each parameter with a shard here, its main shard and its state (may be empty)."""
        for parameter, (group, place) in self.model_param_group_index_map.items():
            main = self.optimizer.param_groups[group]["params"][place]
            yield parameter, main, self.optimizer.state.get(main, {})

    def last_step(self) -> float:
        """Return how many steps the optimizer made, as far as this rank's state tells."""
        counted = [
            float(state["step"]) + shared.step_offsets.get(part_name(parameter), 0.0)
            for parameter, _, state in self.states()
            if "step" in state
        ]
        loaded = [float(group.get("step") or 0) for group in self.optimizer.param_groups]
        return max([*counted, *loaded, *shared.step_offsets.values(), 0.0])

    def state_dict(self) -> dict[str, Any]:
        """Return what is common to all ranks: groups with their step, and the loss scale."""
        if not self.is_torch_adam:
            return super().state_dict()
        step = self.last_step()
        groups = []
        for group in self.optimizer.state_dict()["param_groups"]:
            groups.append({key: value for key, value in group.items() if key != "params"})
            groups[-1]["step"] = step
        state: dict[str, Any] = {"optimizer": {"param_groups": groups}}
        state["step_offsets"] = dict(shared.step_offsets)
        if self.grad_scaler:
            state["grad_scaler"] = self.grad_scaler.state_dict()
        return state

    def sharded_state_dict(
        self,
        model_sharded_state_dict: dict[str, Any] | None = None,
        is_loading: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Return the state to save or to load into.

        Rank 0 writes the step for all; it may own no trained parameter, so the largest step of
        any rank is what every rank hands over.
        """
        if self.is_torch_adam and not is_loading:
            self._allocate_moments()
        state = super().sharded_state_dict(model_sharded_state_dict or {}, is_loading, **options)
        common = state.get("optimizer")
        if self.is_torch_adam and not is_loading and isinstance(common, dict):
            step = largest(self.last_step())
            for group in common["param_groups"]:
                group["step"] = step
        return state

    def _allocate_moments(self) -> None:
        """Give parameters that were not updated yet the state that torch makes at the first update.

        A run may be saved before: when every step so far was skipped for an overflow.
        """
        for _, main, state in self.states():
            if not state:
                zeros = {key: torch.zeros_like(main) for key in self.optimizer_state_keys}
                self.optimizer.state[main] = {"step": torch.tensor(0.0), **zeros}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and give each parameter its own step; what the file lacks starts afresh."""
        self._add_missing_groups(state_dict["optimizer"]["param_groups"])
        if self._without_state() and "param_state" not in state_dict:
            state_dict = {**state_dict, "param_state": {}}
            state_dict["param_state_sharding_type"] = "fully_reshardable"
        shared.step_offsets = dict(state_dict.get("step_offsets") or {})
        super().load_state_dict(state_dict)
        if not self.is_torch_adam:
            return
        step = max(float(group["step"]) for group in self.optimizer.param_groups)
        for parameter, _, state in self.states():
            part = part_name(parameter)
            began = step if part in shared.fresh else shared.step_offsets.get(part, 0.0)
            state["step"] = torch.tensor(step - began, dtype=torch.float32)

    def _add_missing_groups(self, saved: list[dict[str, Any]]) -> None:
        """Let groups that nothing of the saved plan was in begin with the settings of this run."""
        keys = megatron_optimizer.distrib_optimizer.param_group_identifier_keys
        step = max((group.get("step") or 0 for group in saved), default=0)

        def identity(group: dict[str, Any]) -> tuple[Any, ...]:
            return tuple(group.get(key, group.get(f"pre_{key}")) for key in keys)

        known = {identity(group) for group in saved}
        for group in self.optimizer.param_groups:
            if identity(group) not in known:
                own = {key: value for key, value in group.items() if key != "params"}
                saved.append({**own, "step": step})

    def _set_main_param_and_optimizer_states(
        self, model_param: torch.nn.Parameter, tensors: dict[str, Any]
    ) -> None:
        # The step is set with the groups; Megatron looks for it among the tensors all the same.
        super()._set_main_param_and_optimizer_states(model_param, {"step": None, **tensors})

    def sharded_param_state_fully_reshardable(
        self, model_sharded_state_dict: Any, is_loading: bool = False, metadata: Any = None
    ) -> Any:
        """Return the state in the shape of the parameters, cut out at the right places.

        For loading, only what the checkpoint holds.
        """
        with self._offsets_without_padding():
            state = super().sharded_param_state_fully_reshardable(
                model_sharded_state_dict, is_loading, metadata
            )
        if not is_loading or state is None or shared.keys_in_file is None:
            return state
        held = {
            index: tensors
            for index, tensors in state.items()
            if all(_in_file(tensor.key, shared.keys_in_file) for tensor in tensors.values())
        }
        self._indices_without_state = state.keys() - held.keys()
        parameters = self._parameters_by_index()
        shared.fresh |= {part_name(parameters[index]) for index in self._without_state()}
        return held

    def _without_state(self) -> set[int]:
        return getattr(self, "_indices_without_state", set())

    def _parameters_by_index(self) -> list[torch.nn.Parameter]:
        return [parameter for buffer in self.buffers for parameter in buffer.param_index_map]

    def load_parameter_state_from_fully_reshardable(self, state_dict: dict[int, Any]) -> None:
        """Load; parameters that the checkpoint has no state for get moments of zero."""
        parameters = self._parameters_by_index()
        fresh = {}
        for index in self._without_state():
            weight = parameters[index].detach()
            zeros = torch.zeros((), device=weight.device).expand(weight.shape)
            fresh[index] = {"param": weight} | dict.fromkeys(self.optimizer_state_keys, zeros)
        super().load_parameter_state_from_fully_reshardable({**state_dict, **fresh})

    @contextmanager
    def _offsets_without_padding(self) -> Iterator[None]:
        """Shift every parameter's range by the padding of the buckets before its own."""
        kept = [buffer.param_index_map for buffer in self.buffers]
        for buffer in self.buffers:
            before, padding = [], 0
            for bucket in buffer.buckets:
                before.append(padding)
                padding += bucket.grad_data.numel() - bucket.numel_unpadded
            buffer.param_index_map = {
                parameter: (start - before[bucket], end - before[bucket], bucket)
                for parameter, (start, end, bucket) in buffer.param_index_map.items()
            }
        try:
            yield
        finally:
            for buffer, original in zip(self.buffers, kept, strict=True):
                buffer.param_index_map = original


def _in_file(key: str, keys: frozenset[str]) -> bool:
    # Some tensors are stored in pieces whose names go on after the parameter's.
    return key in keys or any(other.startswith(key) for other in keys)


def largest(value: float) -> float:
    """Return the largest ``value`` of all ranks (a collective call)."""
    tensor = torch.tensor(value, dtype=torch.float64, device="cuda")
    torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return tensor.item()


def agree_on_fresh_parts(optimizer: Any) -> None:
    """After a load, note on every rank which parts of any rank began afresh (collective)."""
    every: list[set[str]] = [set()] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, shared.fresh)
    exact = [one for one in optimizer.chained_optimizers if not one.is_stub_optimizer]
    step = largest(max((one.last_step() for one in exact), default=0.0))
    shared.step_offsets |= dict.fromkeys(set().union(*every), step)
    shared.fresh = set()


def apply() -> None:
    """Put the subclass where Megatron looks the optimizer up."""
    megatron_optimizer.DistributedOptimizer = ExactDistributedOptimizer
