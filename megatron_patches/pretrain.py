"""The training entry: ``megatron.training.pretrain``, with a plan of what trains.

Run under torchrun with any Megatron flag::

    torchrun -m megatron_patches.pretrain --load megatron/ --save cpt/ --freeze-plan plan.json ...

The model's shape comes from the checkpoint in ``--load``. On a machine without a GPU what Megatron
needs there is filled in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from layertracer.errors import EXIT_USER_ERROR, UserError
from megatron_patches import quiet


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; a UserError becomes one line from rank 0, and exit code 2 on every rank."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        train(arguments)
    except UserError as error:
        if os.environ.get("LAYERTRACER_DEBUG"):
            raise
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(EXIT_USER_ERROR)  # the other ranks may wait in a collective: never join them


def train(arguments: list[str]) -> None:
    """Parse, build, load and train."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    quiet.quiet_imports()
    import megatron_patches

    megatron_patches.apply()
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import (
        gpt_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    from megatron_patches import arguments as command_line
    from megatron_patches import batch, restarts, run

    sys.argv = [sys.argv[0], *command_line.complete(arguments)]
    quiet.apply(run.records_folder(command_line.given(arguments, "--save")))
    args = parse_and_validate_args(extra_args_provider=command_line.add_arguments)
    model = gpt_config_from_args(args)
    model.rope_scaling_factor = args.rope_scaling_factor  # which gpt_config_from_args leaves out
    run.prepare(args, model)
    pretrain(
        pretrain_cfg_container_from_args(args, model),
        batch.datasets,
        ModelType.encoder_or_decoder,
        batch.forward_step,
        store=restarts.store(),
    )


if __name__ == "__main__":
    main()
