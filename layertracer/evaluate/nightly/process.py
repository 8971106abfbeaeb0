"""One checkpoint: converted, evaluated, traced if asked, recorded, cleaned up."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

from layertracer.checkpoint.to_hf import to_hf
from layertracer.errors import UserError
from layertracer.evaluate.files import FILE, EvalFile
from layertracer.evaluate.history import History
from layertracer.evaluate.nightly.discover import Found
from layertracer.evaluate.nightly.settings import Nightly
from layertracer.evaluate.runner import Machine, run_evaluation

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class DiskFull(UserError):
    """Nothing can be written: no checkpoint's fault, so the whole job stops."""


def process(found: Found, job: Nightly, history: History) -> EvalFile | None:
    """Evaluate a checkpoint and record it; None where it can't be, which is recorded too.

    What a killed job left is used: a whole evaluation as it is, answers of half a one.

    Raises:
        DiskFull: nothing is recorded; the next job tries again.
    """
    weights = job.weights(found.name)
    try:
        made = _earlier(found, job)
        measure_noise = job.noise and not history.noise()
        trace = job.trace and not job.traced(found.name).exists()
        if made is None or measure_noise or trace:
            to_hf(job.watch, weights, iteration=found.iteration, overwrite=True)
        made = made or _evaluate(found, job, weights)
        if measure_noise:
            _measure_noise(found, job, weights, made, history)
        if trace:
            _trace(job, weights, job.traced(found.name))
    except Exception as error:
        if _disk_is_full(error):
            raise DiskFull(f"{job.out}: no space left on the disk: free some") from error
        history.record_failure(found.name, found.step, " ".join(str(error).split())[:300])
        return None
    finally:
        shutil.rmtree(weights, ignore_errors=True)
    history.record(found.name, found.step, job.evaluation(found.name).resolve(), made)
    return made


def _earlier(found: Found, job: Nightly) -> EvalFile | None:
    """Return the evaluation that a job made which was killed before it could record it."""
    out = job.evaluation(found.name)
    if not (out / FILE).is_file():
        return None
    made = EvalFile.load(out)
    return made if made.settings == job.settings else None


def _evaluate(found: Found, job: Nightly, weights: Path) -> EvalFile:
    out = job.evaluation(found.name)
    made = run_evaluation(
        weights, out, job.settings, data_dir=job.data_dir, machine=job.machine, overwrite=True
    )
    if made is None:
        raise UserError("nightly runs in one process: start it without torchrun")
    return made


def _measure_noise(
    found: Found, job: Nightly, weights: Path, made: EvalFile, history: History
) -> None:
    """Evaluate the same weights once more, in other batches, and count the answers that differ."""
    out = job.evaluation(f"{found.name}-again")
    smaller = replace(job.machine, batch_tokens=(job.machine.batch_tokens or 4096) // 2)
    again = run_evaluation(
        weights, out, job.settings, data_dir=job.data_dir, machine=smaller, overwrite=True
    )
    if again is None:
        return
    for suite in made.suites:
        pairs = [
            (one, two)
            for one, two in zip(made.questions, again.questions, strict=True)
            if (one.suite, one.protocol) == (suite.suite, suite.protocol)
        ]
        differ = sum(one.correct != two.correct for one, two in pairs)
        history.record_noise(suite.suite, suite.protocol, len(pairs), differ)


def _trace(job: Nightly, weights: Path, out: Path) -> None:
    from layertracer.trace.files import TraceSettings
    from layertracer.trace.runner import run_trace

    machine: Machine = job.machine
    run_trace(
        weights,
        out,
        TraceSettings(num_prompts=64, dtype=job.settings.dtype),
        device=machine.device,
        trust_code=machine.trust_code,
        overwrite=True,
    )


def _disk_is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind ``error``, at any depth."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        if "disk full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
