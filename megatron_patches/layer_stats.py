"""Gradient statistics of every layer, every ``--layer-stats-interval`` steps.

What it changes: wraps ``megatron.training.training.train_step``; on the steps that are due, the
optimizer's ``step`` is preceded by the measurement: gradients are reduced then, not clipped yet.
Why: Megatron reports one norm for the whole model.
Cost: each rank reads its own shard of gradients and weights once; one small all-gather.
Megatron versions: 0.19.x.
Tests: tests/distributed/test_layer_stats.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from megatron.core.transformer.module import param_is_not_shared
from megatron.core.utils import unwrap_model

from layertracer.stats.gradients import Piece, Slot, combine, lines, local_statistics
from layertracer.stats.records import StepRecords
from megatron_patches.memory_report import single_optimizers
from megatron_patches.parts import Part, parameters_by_part

_OUTSIDE = ("embedding", "final_norm", "output_layer")


class LayerStats:
    """Measures and writes the statistics of a run; rank 0 writes."""

    def __init__(self, chunks: list[Any], optimizer: Any, num_layers: int, tied: bool) -> None:
        self.optimizer = optimizer
        outside = [Part(name) for name in _OUTSIDE if not (tied and name == "output_layer")]
        self.parts = [Part("layer", layer) for layer in range(num_layers)] + outside
        self._slot = {part: slot for slot, part in enumerate(self.parts)}
        self._part_of = {
            parameter: part
            for chunk in unwrap_model(chunks)
            for _, parameter, part in parameters_by_part(chunk)
        }
        self.slots = self._find_frozen()

    def _find_frozen(self) -> list[Slot]:
        trains = torch.zeros(len(self.parts), dtype=torch.int32, device="cuda")
        for parameter, part in self._part_of.items():
            if part in self._slot and parameter.requires_grad:
                trains[self._slot[part]] = 1
        torch.distributed.all_reduce(trains, op=torch.distributed.ReduceOp.MAX)
        return [
            Slot(part.group, part.layer, frozen=not trained)
            for part, trained in zip(self.parts, trains.tolist(), strict=True)
        ]

    def measure(self, step: int) -> list[dict[str, Any]]:
        """Return the lines of ``step`` (a collective call)."""
        own = local_statistics(list(self._pieces()), len(self.parts)).to("cuda")
        ranks = torch.distributed.get_world_size()
        gathered = own.new_empty(ranks, *own.shape)
        torch.distributed.all_gather(list(gathered.unbind(0)), own)
        scale = float(self.optimizer.get_loss_scale())
        return lines(step, self.slots, combine(gathered), scale)

    def _pieces(self) -> Iterator[Piece]:
        """Yield what this rank's distributed optimizer owns of each trained parameter."""
        for one in single_optimizers(self.optimizer):
            for buffer_ranges in one.gbuf_ranges:
                for bucket_ranges in buffer_ranges.values():
                    for bucket in bucket_ranges:
                        yield from self._pieces_of(bucket["param_map"])

    def _pieces_of(self, ranges: dict[torch.nn.Parameter, dict[str, Any]]) -> Iterator[Piece]:
        tensor_group = parallel_state.get_tensor_model_parallel_group()
        for parameter, places in ranges.items():
            part = self._part_of[parameter]
            counted = param_is_not_shared(parameter) and param_is_not_tensor_parallel_duplicate(
                parameter, tp_group=tensor_group
            )
            if part not in self._slot:  # the copy of a tied head
                continue
            own = slice(places["param"].start, places["param"].end)
            yield Piece(
                slot=self._slot[part],
                gradient=parameter.main_grad.view(-1)[own],
                parameter=parameter.detach().view(-1)[own],
                weight=float(counted),
            )


def apply(interval: int, folder: Path | None) -> None:
    """Wrap Megatron's step; ``stats.jsonl`` goes to ``folder``."""
    if interval <= 0:
        return
    from megatron.training import training

    step_of_megatron = training.train_step
    stats: LayerStats | None = None
    records: StepRecords | None = None

    def train_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal stats, records
        model, optimizer = args[2], args[3]
        run = training.get_args()
        step = kwargs.get("iteration", run.curr_iteration) + 1
        if stats is None:
            tied = not run.untie_embeddings_and_output_weights
            stats = LayerStats(model, optimizer, run.num_layers, tied)
            if folder is not None and torch.distributed.get_rank() == 0:
                records = StepRecords(folder / "stats.jsonl", step - 1)
        if step % interval:
            return step_of_megatron(*args, **kwargs)

        def measured_step(*step_args: Any, **step_kwargs: Any) -> Any:
            measured = stats.measure(step)
            if records is not None:
                records.write(measured)
            _to_tensorboard(measured)
            return type(optimizer).step(optimizer, *step_args, **step_kwargs)

        optimizer.step = measured_step
        try:
            return step_of_megatron(*args, **kwargs)
        finally:
            del optimizer.step

    training.train_step = train_step


def _to_tensorboard(measured: list[dict[str, Any]]) -> None:
    from megatron.training import get_tensorboard_writer

    writer = get_tensorboard_writer()
    if writer is None:
        return
    for line in measured:
        if line["frozen"]:
            continue
        name = line["group"] if line["layer"] is None else f"layer-{line['layer']:03d}"
        for quantity in ("grad_norm", "grad_max_abs", "ratio"):
            if line[quantity] is not None:
                writer.add_scalar(f"layers/{quantity}/{name}", line[quantity], line["step"])
