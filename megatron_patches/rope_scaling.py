"""``--rope-scaling-factor`` reaches the model.

What it changes: wraps ``megatron.training.argument_utils.gpt_config_from_args``, which leaves the
factor out, so that the model is built with the default, 8, whatever the flag says.
Why: Llama 3.2 has 32. The loss hides it: the two differ only far from the start of a text.
Megatron versions: 0.19.x.
Tests: tests/megatron_patches/test_rope_scaling.py, tests/distributed/test_convert_logits.py
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any


def apply() -> None:
    """Wrap Megatron's function."""
    from megatron.training import argument_utils

    config_from_args = argument_utils.gpt_config_from_args

    def gpt_config_from_args(args: Namespace, *rest: Any, **named: Any) -> Any:
        config = config_from_args(args, *rest, **named)
        config.rope_scaling_factor = args.rope_scaling_factor
        return config

    argument_utils.gpt_config_from_args = gpt_config_from_args
