"""Everything that touches Megatron: the patches, in the order in which they apply."""

from __future__ import annotations

_applied = False


def apply() -> None:
    """Apply every patch once; later calls do nothing.

    Raises:
        UserError: the installed Megatron is not of the series that the patches were written for.
    """
    global _applied
    if _applied:
        return
    from megatron_patches import cpu, versions

    versions.check_version()
    cpu.apply()  # before anything imports Megatron's training package

    from megatron_patches import (
        checkpoint_load,
        distributed_adam,
        flops,
        moe_router,
        pipeline_frozen,
        recompute,
        recovery_hang,
        recovery_load,
        recovery_save,
        rope_scaling,
        tracker,
    )

    for patch in (
        distributed_adam,
        checkpoint_load,
        tracker,
        recovery_load,  # around checkpoint_load
        recovery_save,
        recovery_hang,
        recompute,
        pipeline_frozen,
        moe_router,
        flops,
        rope_scaling,
    ):
        patch.apply()
    _applied = True
