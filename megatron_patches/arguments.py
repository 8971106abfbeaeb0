"""The command line of the training entry: our flags, and what is filled in for the user.

What it changes: adds our flags to Megatron's parser; puts the flags that the checkpoint's shape and
a machine without a GPU need before the user's own. No Megatron function is replaced.
Why: the shape is the checkpoint's, not the user's to keep in step by hand.
Megatron versions: 0.19.x.
Test: tests/megatron_patches/test_arguments.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from layertracer.checkpoint.sidecar import FILE, SOURCE, MegatronShape
from layertracer.errors import UserError
from megatron_patches import cpu

# What real Megatron needs on a machine without a GPU.
CPU_FLAGS = [
    *("--distributed-backend", "gloo"),
    *("--transformer-impl", "local"),
    "--use-cpu-initialization",
    "--no-masked-softmax-fusion",
    "--no-rope-fusion",
    "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion",
    "--no-bias-swiglu-fusion",
    "--no-bias-dropout-fusion",
]
# Defaults of every run that the user's own flags override.
COMMON_FLAGS = [
    *("--ckpt-format", "torch_dist"),
    *("--tokenizer-type", "HuggingFaceTokenizer"),
    *("--log-interval", "1"),
    *("--eval-iters", "0"),
    *("--eval-interval", "1000000000"),
    *("--logging-level", "30"),
    "--no-create-attention-mask-in-dataloader",
    # SIGTERM: save at the end of the step, and end with code 0.
    "--exit-signal-handler",
    "--use-distributed-optimizer",
    # The only format of optimizer state in which the plan can change.
    "--dist-ckpt-optim-fully-reshardable",
]
# Megatron's two spellings of a flag that keeps the checkpoint's learning-rate schedule.
CHECKPOINT_SCHEDULE = frozenset(
    {"--use-checkpoint-opt_param-scheduler", "--use-checkpoint-opt-param-scheduler"}
)


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add our flags to Megatron's parser."""
    group = parser.add_argument_group("LayerTracer")
    group.add_argument(
        "--freeze-plan",
        type=Path,
        metavar="PLAN",
        help="plan.json: which layers train. Without it every layer does.",
    )
    group.add_argument(
        "--layer-stats-interval",
        type=int,
        default=0,
        metavar="N",
        help="Write gradient statistics of every layer each N steps; 0: never.",
    )
    return parser


def given(arguments: list[str], flag: str) -> str | None:
    """Return the value that the user gave ``flag``, the last one if several, else None."""
    value = None
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            value = arguments[place + 1]
        elif argument.startswith(f"{flag}="):
            value = argument.split("=", 1)[1]
    return value


def resumed(arguments: list[str]) -> list[str]:
    """Return ``arguments`` so that a run with a checkpoint in ``--save`` goes on from there.

    Raises:
        UserError: the checkpoint in ``--save`` is of another model than that in ``--load``.
    """
    save, load = given(arguments, "--save"), given(arguments, "--load")
    if save is None or save == load or not _is_checkpoint(Path(save)):
        return arguments
    both = load is not None and all((Path(folder) / FILE).is_file() for folder in (load, save))
    if both and MegatronShape.load(Path(load)) != MegatronShape.load(Path(save)):
        raise UserError(
            f"--save {save} holds a run of another model than --load {load}: choose another "
            "folder, or remove it"
        )
    return [*arguments, "--load", save]


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "latest_checkpointed_iteration.txt").is_file()


def shape_of(arguments: list[str]) -> MegatronShape | None:
    """Return the shape that the checkpoint in ``--load`` carries, or None without one.

    Raises:
        UserError: ``--load`` is not a checkpoint folder, or its shape is damaged.
    """
    load = given(arguments, "--load")
    if load is None:
        return None
    if not _is_checkpoint(Path(load)):
        raise UserError(
            f"--load {load}: no Megatron checkpoint there; make one with "
            "`layertracer convert to-megatron`"
        )
    return MegatronShape.load(Path(load)) if (Path(load) / FILE).is_file() else None


def complete(arguments: list[str], *, on_cpu: bool | None = None) -> list[str]:
    """Return the whole command line: what is filled in, then the user's own flags.

    Args:
        on_cpu: for a machine without a GPU; None: as this one is.

    Raises:
        UserError: a flag of the user contradicts the checkpoint's shape, or a path is wrong.
    """
    arguments = resumed(arguments)
    filled = list(COMMON_FLAGS)
    shape = shape_of(arguments)
    if shape is not None:
        refuse_contradictions(shape, arguments)
        filled += shape.megatron_flags()
        filled += ["--padded-vocab-size", str(padded_vocab_size(shape, arguments))]
        filled += ["--tokenizer-model", str(Path(given(arguments, "--load") or "") / SOURCE)]
    if cpu.needed() if on_cpu is None else on_cpu:
        filled += CPU_FLAGS
    if not CHECKPOINT_SCHEDULE.intersection(arguments):
        # Megatron refuses to resume under another --train-iters or --lr unless told to take it.
        filled.append("--override-opt_param-scheduler")
    refuse_missing_data(arguments)
    return filled + arguments


def padded_vocab_size(shape: MegatronShape, arguments: list[str]) -> int:
    """Return the rows of the embedding: the model's vocabulary, as tensor parallelism divides it.

    Megatron would take the tokenizer's, rounded up to 128 times the number of tensor-parallel
    ranks. Many models have more rows than their tokenizer has tokens (Qwen3: 151,936, 151,669);
    those above would be cut off without a word, and the loss would depend on the layout.
    """
    ranks = int(given(arguments, "--tensor-model-parallel-size") or 1)
    return -(-shape.vocab_size // ranks) * ranks


def refuse_missing_data(arguments: list[str]) -> None:
    """Raise UserError when the data set that ``--data-path`` names is not there."""
    prefix = given(arguments, "--data-path")
    if prefix is None or _number(prefix) is not None:  # a blend: weights and prefixes
        return
    for suffix in (".idx", ".bin"):
        if not Path(prefix + suffix).is_file():
            raise UserError(
                f"--data-path {prefix}: no {prefix}{suffix}; make it with "
                "`layertracer prepare-data`"
            )


def refuse_contradictions(shape: MegatronShape, arguments: list[str]) -> None:
    """Raise UserError when ``arguments`` give a flag of the shape another value."""
    for flag, value in shape.flags().items():
        asked = given(arguments, flag)
        if value is None or asked is None or asked == value:
            continue
        if _number(asked) is not None and _number(asked) == _number(value):
            continue
        raise UserError(
            f"{flag} {asked}: the checkpoint's model has {value}; leave the flag out, the shape "
            "comes from the checkpoint"
        )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
