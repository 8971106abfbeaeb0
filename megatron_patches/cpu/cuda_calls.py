"""The ``torch.cuda`` functions that Megatron calls without asking, answered for a CPU."""

from __future__ import annotations

import contextlib
import os
import time
from types import SimpleNamespace
from typing import Any

import psutil
import torch


class CpuStream:
    """A stream on a machine where every operation has finished when its call returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0
        self.device = torch.device("cpu")

    def wait_stream(self, _stream: CpuStream) -> None:
        """Nothing is pending."""

    def wait_event(self, _event: CpuEvent) -> None:
        """Nothing is pending."""

    def record_event(self, event: CpuEvent | None = None) -> CpuEvent:
        """Record now."""
        event = event or CpuEvent()
        event.record()
        return event

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """Everything has finished."""
        return True


class CpuEvent:
    """A moment on the wall clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._moment = 0.0

    def record(self, _stream: CpuStream | None = None) -> None:
        """Note the time."""
        self._moment = time.perf_counter()

    def wait(self, _stream: CpuStream | None = None) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, later: CpuEvent) -> float:
        """Return milliseconds from here to ``later``."""
        return (later._moment - self._moment) * 1e3


_STREAM = CpuStream()


def _properties(_device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="CPU",
        major=0,
        minor=0,
        total_memory=psutil.virtual_memory().total,
        multi_processor_count=os.cpu_count(),
    )


def _resident_bytes(_device: Any = None) -> int:
    return psutil.Process().memory_info().rss


def _peak_bytes(_device: Any = None) -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory_stats(_device: Any = None) -> dict[str, int]:
    resident, peak = _resident_bytes(), _peak_bytes()
    stats = dict.fromkeys(("allocated_bytes", "reserved_bytes", "active_bytes"), resident)
    return {
        "allocation.all.current": 0,
        "num_alloc_retries": 0,
        "num_ooms": 0,
        **{f"{name}.all.current": value for name, value in stats.items()},
        **{f"{name}.all.peak": peak for name in stats},
        **{f"{name}.all.allocated": peak for name in stats},
    }


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for a call that has no meaning on a CPU."""


def _get_rng_state(_device: Any = None, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, _device: Any = None, **__: Any) -> None:
    torch.set_rng_state(state)


def apply() -> None:
    """Replace the functions in ``torch.cuda``."""
    cpu = torch.device("cpu")
    replaced = {
        # A device rather than a number, so that every factory that is handed it makes a CPU tensor.
        "current_device": lambda: cpu,
        "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "set_device": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "Stream": CpuStream,
        "Event": CpuEvent,
        "current_stream": lambda _device=None: _STREAM,
        "default_stream": lambda _device=None: _STREAM,
        "set_stream": _nothing,
        "stream": lambda _stream: contextlib.nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": _properties,
        "get_device_capability": lambda _device=None: (0, 0),
        "get_device_name": lambda _device=None: "CPU",
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "get_rng_state": _get_rng_state,
        "set_rng_state": _set_rng_state,
        "memory_allocated": _resident_bytes,
        "memory_reserved": _resident_bytes,
        "max_memory_allocated": _peak_bytes,
        "max_memory_reserved": _peak_bytes,
        "memory_stats": _memory_stats,
        "mem_get_info": lambda _device=None: (
            psutil.virtual_memory().available,
            psutil.virtual_memory().total,
        ),
        "reset_peak_memory_stats": _nothing,
        "utilization": lambda _device=None: 0,
    }
    for name, function in replaced.items():
        setattr(torch.cuda, name, function)
    torch.cuda.random.get_rng_state = _get_rng_state
    torch.cuda.random.set_rng_state = _set_rng_state
    torch.cuda.nvtx.range_push = _nothing
    torch.cuda.nvtx.range_pop = _nothing
