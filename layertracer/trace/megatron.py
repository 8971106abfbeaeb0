"""``torchrun -m layertracer.trace.megatron``: the trace of a Megatron checkpoint, in place.

The work is in ``megatron_patches.trace``, where what touches Megatron lives.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("megatron_patches.trace", run_name="__main__")
