"""The distributed optimizer with torch's AdamW, saved and loaded exactly.

What it changes: replaces ``megatron.core.optimizer.DistributedOptimizer`` by a subclass that

* keeps the step of torch's AdamW through saving and loading, also on ranks that own no trained
  parameter, and gives every parameter a step tensor of its own (Megatron hands all of them the
  same one, which then advances once a parameter and spoils the bias correction);
* writes the fully reshardable state at the right places when a buffer has several padded buckets
  (Megatron indexes a tensor without padding by offsets with padding).

Why: without a GPU there is no fused Adam; and plans can change only in the reshardable format.
Megatron versions: 0.19.0 to 0.19.2; the second fault is gone in later ones.
Tests: tests/megatron_patches/test_distributed_adam.py, tests/distributed/test_resume.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer


class ExactDistributedOptimizer(DistributedOptimizer):
    """Megatron's distributed optimizer, with what the module's description says mended."""

    @property
    def _is_torch_adam(self) -> bool:
        return isinstance(self.optimizer, torch.optim.Adam)

    def state_dict(self) -> dict[str, Any]:
        """Return what is common to all ranks: groups with their step, and the loss scale."""
        if not self._is_torch_adam:
            return super().state_dict()
        step = self._own_step()
        groups = []
        for group in self.optimizer.state_dict()["param_groups"]:
            groups.append({key: value for key, value in group.items() if key != "params"})
            groups[-1]["step"] = step
        state: dict[str, Any] = {"optimizer": {"param_groups": groups}}
        if self.grad_scaler:
            state["grad_scaler"] = self.grad_scaler.state_dict()
        return state

    def _own_step(self) -> float:
        steps = [float(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        loaded = [float(group.get("step") or 0) for group in self.optimizer.param_groups]
        return max(steps or loaded or [0.0])

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
        state = super().sharded_state_dict(model_sharded_state_dict or {}, is_loading, **options)
        common = state.get("optimizer")
        if self._is_torch_adam and not is_loading and isinstance(common, dict):
            step = torch.tensor(self._own_step(), dtype=torch.float64, device="cuda")
            torch.distributed.all_reduce(step, op=torch.distributed.ReduceOp.MAX)
            for group in common["param_groups"]:
                group["step"] = step.item()
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and give each parameter its own step."""
        super().load_state_dict(state_dict)
        if self._is_torch_adam:
            for state in self.optimizer.state.values():
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].clone()

    def _set_main_param_and_optimizer_states(
        self, model_param: torch.nn.Parameter, tensors: dict[str, Any]
    ) -> None:
        # The step is set with the groups; Megatron looks for it among the tensors all the same.
        super()._set_main_param_and_optimizer_states(model_param, {"step": None, **tensors})

    def sharded_param_state_fully_reshardable(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state in the shape of the parameters, cut out at the right places."""
        with self._offsets_without_padding():
            return super().sharded_param_state_fully_reshardable(*args, **kwargs)

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


def apply() -> None:
    """Put the subclass where Megatron looks the optimizer up."""
    megatron_optimizer.DistributedOptimizer = ExactDistributedOptimizer
