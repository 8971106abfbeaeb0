"""What the launch scripts share: the command line, what is said before the start, ``--dry-run``.

What it changes: nothing in Megatron.
Why: the scripts hold settings only.
Test: tests/cluster/test_cpt_scripts.py
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from layertracer.checkpoint.sidecar import SOURCE
from layertracer.errors import EXIT_USER_ERROR, UserError
from layertracer.estimate.launch import memory_line
from layertracer.estimate.settings import Layout

DRY_RUN = "--dry-run"


def or_end[Result](function: Callable[..., Result], *arguments: object) -> Result:
    """Call ``function``; a UserError becomes one line from rank 0 and exit code 2."""
    try:
        return function(*arguments)
    except UserError as error:
        _end(error)


def _end(error: UserError) -> NoReturn:
    if _first_rank():
        print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(EXIT_USER_ERROR)


def _first_rank() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class Launch:
    """A run that a script describes.

    ``settings`` are Megatron's flags with their values, ``switches`` those without; ``world`` is
    the number of ranks.
    """

    settings: dict[str, object]
    switches: list[str]
    layout: Layout
    world: int
    on_gpu: bool

    def start(self, more: list[str]) -> None:
        """Say what will run, then run it with the flags ``more``, or print it under --dry-run."""
        # Saving a checkpoint starts processes that would read the script and all it imports again;
        # they need nothing of it.
        vars(sys.modules["__main__"]).pop("__file__", None)
        dry = DRY_RUN in more
        arguments = [str(word) for pair in self.settings.items() for word in pair]
        arguments += [*self.switches, *(word for word in more if word != DRY_RUN)]
        or_end(self._refuse_what_does_not_divide)
        if _first_rank():
            self._announce()
        if dry:
            self._show(arguments)
            return
        from megatron_patches.pretrain import main

        main(arguments)

    def _refuse_what_does_not_divide(self) -> None:
        layout = self.layout
        if self.world % (layout.tensor * layout.pipeline):
            raise UserError(
                f"TP={layout.tensor} PP={layout.pipeline}: {layout.tensor * layout.pipeline} ranks "
                f"do not divide the {self.world} that there are; set TP, PP, NPROC or the number "
                "of nodes"
            )
        batch = self.settings["--global-batch-size"]
        if int(str(batch)) % (layout.data * layout.micro_batch):
            raise UserError(
                f"GLOBAL_BATCH={batch} is no multiple of MICRO_BATCH={layout.micro_batch} times "
                f"{layout.data} data-parallel ranks"
            )

    def _announce(self) -> None:
        layout = self.layout
        print(
            f"{self.world} ranks: TP {layout.tensor}, PP {layout.pipeline}, DP {layout.data}; "
            f"{layout.micro_batches} micro-batches of {layout.micro_batch} x "
            f"{layout.sequence_length} tokens a step; recompute: {layout.recompute}"
        )
        for flag, value in self.settings.items():
            print(f"  {flag} {value}")
        print(memory_line(self._model(), self._plan(), layout, _gpu_bytes()), flush=True)

    def _model(self) -> Path:
        return Path(str(self.settings["--load"])) / SOURCE / "config.json"

    def _plan(self) -> Path | None:
        plan = self.settings.get("--freeze-plan")
        return None if plan is None else Path(str(plan))

    def _show(self, arguments: list[str]) -> None:
        from megatron_patches.arguments import complete

        words = or_end(lambda: complete(arguments, on_cpu=not self.on_gpu))
        print(shlex.join(["python", "-m", "megatron_patches.pretrain", *words]))


def _gpu_bytes() -> int | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_properties(0).total_memory
