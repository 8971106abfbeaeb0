"""Reading a Megatron model's layers through its own head, the vocabulary split over ranks.

What it changes: nothing for good; it hooks the layers and, for a forward pass, leaves out the head.
Why: the trace of models that fit no single GPU.
Megatron versions: 0.19.x.
Test: tests/distributed/test_trace_megatron.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from layertracer.errors import UserError
from layertracer.ops import lens_combine
from layertracer.trace.comparison import Columns, compare_logits

EMBEDDING = 0  # the key of the embedding's output; layer ``l`` (0-based) has ``l + 1``
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Pass:
    """Inputs of a forward pass; as ``layertracer.trace.perturbation.batch_inputs`` makes them."""

    ids: Tensor
    visible: Tensor
    positions: Tensor
    noise: Tensor | None = None
    hides: bool = False  # whether attention must not see some tokens

    def padded(self, multiple: int) -> Pass:
        """Return it with a length that ``multiple`` divides (sequence parallelism needs that)."""
        missing = -self.ids.shape[1] % multiple
        pad = partial(torch.nn.functional.pad, pad=(0, missing))
        noise = None
        if self.noise is not None:
            noise = torch.nn.functional.pad(self.noise, (0, 0, 0, missing))
        return Pass(pad(self.ids), pad(self.visible), self.positions, noise, self.hides)

    def attention_mask(self) -> Tensor | None:
        """Return ``[rows, 1, length, length]``, true where hidden; None for plain causal."""
        if not self.hides:
            return None
        length = self.ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).triu(1)
        return later | (self.visible == 0)[:, None, None, :]


class MegatronLens:
    """The residual stream of a ``GPTModel`` under tensor and pipeline parallelism.

    Args:
        chunks: the model of this rank, as Megatron's set-up returns it, unwrapped.
        vocab_size: without the padding that tensor parallelism adds.

    Raises:
        UserError: the layout is one that can't be read.
    """

    def __init__(self, chunks: list[Any], vocab_size: int) -> None:
        from megatron.core import mpu

        if len(chunks) > 1:
            raise UserError("leave out virtual pipeline stages: a trace runs one chunk per stage")
        if mpu.get_context_parallel_world_size() > 1:
            raise UserError("--context-parallel-size: a trace needs 1")
        self.model = chunks[0]
        self.vocab_size = vocab_size
        self.tensor_group = mpu.get_tensor_model_parallel_group()
        self.stage_group = mpu.get_pipeline_model_parallel_group()
        self.is_last = mpu.is_pipeline_last_stage()
        self.tensor_rank = mpu.get_tensor_model_parallel_rank()
        self.tensor_size = mpu.get_tensor_model_parallel_world_size()

    @property
    def device(self) -> torch.device:
        """Where this rank's weights are."""
        return next(self.model.parameters()).device

    @property
    def description(self) -> str:
        """Device and layout, for the record."""
        stages = dist.get_world_size(self.stage_group)
        return f"{self.device.type}, tensor parallel {self.tensor_size}, pipeline stages {stages}"

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks of the whole model."""
        return self.model.config.num_layers

    @torch.no_grad()
    def read(self, given: Pass) -> Tensor:
        """Return the states at the answers, ``[layers + 1, rows, hidden]``, on every stage."""
        given = given.padded(self.tensor_size if self.model.config.sequence_parallel else 1)
        states: dict[int, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(self._hooked(given, states))
            stack.enter_context(self._without_head())
            self._run(given, lambda _output: None)
        return self._from_all_stages(states)

    @torch.no_grad()
    def check(self, given: Pass) -> float:
        """Return the largest relative difference of decoded and own logits (last stage, else 0).

        Raises:
            UserError: it is above the tolerance.
        """
        own: list[Tensor] = []
        rows = torch.arange(len(given.positions))
        padded = given.padded(self.tensor_size if self.model.config.sequence_parallel else 1)
        self._run(padded, lambda output: own.append(output[rows, given.positions].float()))
        last = self.read(given)[-1]
        if not self.is_last:
            return 0.0
        decoded = self._local_logits(last)
        largest = max(1.0, own[0].abs().max().item())
        difference = (decoded - own[0]).abs().max().item() / largest
        tolerance = TOLERANCE if last.dtype == torch.float32 else 3e-2
        if not difference <= tolerance:
            raise UserError(
                f"the model can't be traced: decoding its last state differs from its own logits "
                f"by {difference:.1e} (allowed: {tolerance:.0e})"
            )
        return difference

    def logits(self, states: Tensor) -> Tensor:
        """Return this rank's columns of the logits of ``[n, hidden]``; padding is -inf."""
        logits = self._local_logits(states)
        logits[:, max(0, self.vocab_size - self.tensor_rank * logits.shape[1]) :] = -torch.inf
        return logits

    def most_probable(self, logits: Tensor) -> Tensor:
        """Return the most probable token of each row of this rank's columns, ``[n]``."""
        value, index = logits.max(dim=-1)
        values = self._from_all_parts(value)
        indices = self._from_all_parts(index + self.tensor_rank * logits.shape[1])
        return indices.gather(0, values.argmax(dim=0, keepdim=True))[0]

    def compare(self, logits: Sequence[Tensor], target: Tensor) -> Tensor:
        """Return what ``compare_logits`` does, over the vocabulary of all ranks."""
        columns = Columns(
            self.tensor_rank * logits[0].shape[1],
            combine=lambda states: lens_combine(self._from_all_parts(states)),
            add=lambda sums: self._from_all_parts(sums).sum(dim=0),
        )
        return compare_logits(logits, target, columns)

    def _from_all_parts(self, values: Tensor) -> Tensor:
        parts = [torch.empty_like(values) for _ in range(self.tensor_size)]
        dist.all_gather(parts, values.contiguous(), group=self.tensor_group)
        return torch.stack(parts)

    def _local_logits(self, states: Tensor) -> Tensor:
        """Final norm and head, as ``GPTModel`` applies them: ``[n, columns of this rank]``."""
        model, head = self.model, self.model.output_layer
        weight = None
        if model.share_embeddings_and_output_weights:
            weight = model.shared_embedding_or_output_weight()
        split, head.sequence_parallel = head.sequence_parallel, False
        try:
            normed = model.decoder.final_layernorm(states[:, None])
            logits = head(normed, weight=weight, runtime_gather_output=False)[0]
        finally:
            head.sequence_parallel = split
        return model._scale_logits(logits)[:, 0].float()

    @contextmanager
    def _hooked(self, given: Pass, states: dict[int, Tensor]) -> Iterator[None]:
        """Keep what the embedding and the layers of this rank give at the answers."""
        rows = torch.arange(len(given.positions), device=given.ids.device)

        def keep(key: int, _module: Any, _inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            states[key] = self._whole_sequence(hidden)[given.positions, rows]

        handles = []
        if self.model.pre_process:
            if given.noise is not None:
                noisy = partial(self._add_noise, given.noise)
                handles.append(self.model.embedding.register_forward_hook(noisy))
            handles.append(self.model.embedding.register_forward_hook(partial(keep, EMBEDDING)))
        for layer in self.model.decoder.layers:
            handles.append(layer.register_forward_hook(partial(keep, layer.layer_number)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _whole_sequence(self, hidden: Tensor) -> Tensor:
        if not self.model.config.sequence_parallel:
            return hidden
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        return gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)

    def _add_noise(self, noise: Tensor, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        noise = noise.transpose(0, 1)
        if self.model.config.sequence_parallel:
            noise = noise.chunk(self.tensor_size)[self.tensor_rank]
        scale = output.float().square().mean(-1, keepdim=True).sqrt()
        return output + (noise * scale).to(output.dtype)

    @contextmanager
    def _without_head(self) -> Iterator[None]:
        """The head at every position is waste: the last stage returns its hidden states."""
        own, self.model.post_process = self.model.post_process, False
        try:
            yield
        finally:
            self.model.post_process = own

    def _run(self, given: Pass, take: Callable[[Tensor], None]) -> None:
        from megatron.core.pipeline_parallel import get_forward_backward_func

        def step(_batches: Any, model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
            positions = torch.arange(given.ids.shape[1], device=given.ids.device)
            positions = positions.expand_as(given.ids)
            return model(given.ids, positions, given.attention_mask()), finish

        def finish(output: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            take(output)
            return output.new_zeros(()), {}

        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=None,
            model=[self.model],
            num_microbatches=1,
            seq_length=given.ids.shape[1],
            micro_batch_size=given.ids.shape[0],
            forward_only=True,
        )

    def _from_all_stages(self, states: dict[int, Tensor]) -> Tensor:
        """Return the states of every stage, in the order of depth."""
        stages = dist.get_process_group_ranks(self.stage_group)
        keys: list[list[int]] = [[] for _ in stages]
        dist.all_gather_object(keys, sorted(states), group=self.stage_group)
        example = next(iter(states.values()))
        found: dict[int, Tensor] = {}
        for rank, mine in zip(stages, keys, strict=True):
            if rank == dist.get_rank():
                block = torch.stack([states[key] for key in mine])
            else:
                block = example.new_empty((len(mine), *example.shape))
            dist.broadcast(block, rank, group=self.stage_group)
            found.update(zip(mine, block, strict=True))
        return torch.stack([found[key] for key in sorted(found)])
