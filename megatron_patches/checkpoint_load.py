"""Loading a checkpoint: the layout of its layers is found, and nothing is left out silently.

What it changes: wraps ``megatron.training.training.load_checkpoint``.

* Layers may be stacked in one tensor (converted models, runs of Megatron itself) or stored one by
  one (runs of this entry: stacked layers can't be saved when some are frozen). The model is told
  which, by the checkpoint's own keys, for the time of the load.
* Megatron answers a failed strict load by trying again without strictness, and prints it. Here the
  missing tensor is an error.
* A checkpoint of another model is one clear line.
* Optimizer state that the checkpoint does not hold (it was saved under another plan) is not asked
  for; those parts of the model begin with moments of zero.

Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_checkpoint_load.py, tests/distributed/test_bad_input.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from layertracer.checkpoint.megatron_reader import iteration_folder
from layertracer.errors import UserError

_ONE_BY_ONE = re.compile(r"^decoder\.layers\.\d+\.")


def tensors_in(folder: Path) -> frozenset[str]:
    """Return the names of the tensors of the checkpoint in ``folder``."""
    from torch.distributed.checkpoint import FileSystemReader

    return frozenset(FileSystemReader(folder).read_metadata().state_dict_metadata)


def layers_are_single(tensors: frozenset[str]) -> bool:
    """Whether a checkpoint of these ``tensors`` stores its layers one by one."""
    return any(_ONE_BY_ONE.match(key) for key in tensors)


@contextmanager
def single_layers(chunks: list[Any], single: bool) -> Iterator[None]:
    """Let the model ask for layers one by one, or stacked."""
    configs = {id(chunk.config): chunk.config for chunk in chunks}.values()
    before = [config.hetereogenous_dist_checkpoint for config in configs]
    for config in configs:
        config.hetereogenous_dist_checkpoint = single
    try:
        yield
    finally:
        for config, kept in zip(configs, before, strict=True):
            config.hetereogenous_dist_checkpoint = kept


@contextmanager
def strict_loading(chunk: Any, source: str) -> Iterator[None]:
    """Make ``chunk.load_state_dict`` raise on any missing or unexpected tensor."""
    load = chunk.load_state_dict

    def load_state_dict(state: dict[str, Any], strict: bool = True) -> None:
        answer = load(state, strict=False)
        odd = [*answer.missing_keys, *answer.unexpected_keys] if answer is not None else []
        odd = [key for key in odd if "_extra_state" not in key]
        if odd:
            raise UserError(f"--load {source}: tensor {odd[0]} does not fit the model ({len(odd)})")

    chunk.load_state_dict = load_state_dict
    try:
        yield
    finally:
        del chunk.load_state_dict


@contextmanager
def optimizer_state_in(tensors: frozenset[str], optimizer: Any) -> Iterator[None]:
    """Let the optimizer ask for the state that the checkpoint holds; the rest begins afresh."""
    from megatron_patches import distributed_adam

    distributed_adam.shared.keys_in_file = tensors
    try:
        yield
    finally:
        distributed_adam.shared.keys_in_file = None
    if optimizer is not None:
        distributed_adam.agree_on_fresh_parts(optimizer)


@contextmanager
def without_check_for_holes(args: Any) -> Iterator[None]:
    """Don't demand that all layers of a stacked tensor are read: frozen ones have no state."""
    checked = args.ckpt_load_validate_sharding_integrity
    args.ckpt_load_validate_sharding_integrity = False
    try:
        yield
    finally:
        args.ckpt_load_validate_sharding_integrity = checked


def apply() -> None:
    """Wrap Megatron's function."""
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.utils import unwrap_model
    from megatron.training import get_args, training

    load = training.load_checkpoint

    def load_checkpoint(ddp_model: list[Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        source = get_args().load
        if source is None or get_args().ckpt_format != "torch_dist":
            return load(ddp_model, optimizer, *args, **kwargs)
        folder = iteration_folder(Path(source), get_args().ckpt_step)
        tensors = tensors_in(folder)
        with ExitStack() as stack:
            single = layers_are_single(tensors)
            stack.enter_context(single_layers(unwrap_model(ddp_model), single))
            stack.enter_context(optimizer_state_in(tensors, optimizer))
            if not single:
                stack.enter_context(without_check_for_holes(get_args()))
            for chunk in ddp_model:
                stack.enter_context(strict_loading(chunk, source))
            try:
                return load(ddp_model, optimizer, *args, **kwargs)
            except CheckpointingException as error:
                reason = str(error).splitlines()[0]
                raise UserError(f"--load {source} does not fit the model: {reason}") from error

    training.load_checkpoint = load_checkpoint
