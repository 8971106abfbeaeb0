"""One thin file a command: options and help here, the work in the package it calls.

Each module has ``register(app)``. Heavy imports (torch, transformers, megatron) stay inside the
command functions, so that ``--help`` answers at once.
"""

from layertracer.commands import (
    compare,
    convert,
    demo,
    doctor,
    estimate,
    nightly,
    plan,
    prepare_data,
    report,
    trace,
)
from layertracer.commands import eval as evaluate

COMMANDS = [
    compare.register,
    convert.register,
    demo.register,
    plan.register,
    doctor.register,
    estimate.register,
    trace.register,
    prepare_data.register,
    evaluate.register,
    nightly.register,
    report.register,
]
