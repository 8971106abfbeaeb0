"""The nightly job from start to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile, EvalSettings
from layertracer.evaluate.history import Checkpoint, History, open_history
from layertracer.evaluate.nightly.dashboard import write_dashboard
from layertracer.evaluate.nightly.discover import Found, find_checkpoints
from layertracer.evaluate.nightly.lock import only_one
from layertracer.evaluate.nightly.process import process
from layertracer.evaluate.nightly.settings import Nightly
from layertracer.evaluate.nightly.verdict import Verdict, judge, pick_baseline

_NOTIFY_SECONDS = 60


class Status(IntEnum):
    """Exit code of a job."""

    FINE = 0
    REGRESSION = 1
    FAILED = 2


@dataclass(frozen=True)
class Outcome:
    """How a job ended, and one line that says so."""

    status: Status
    summary: str


def run_nightly(job: Nightly) -> Outcome:
    """Evaluate what is new, compare, write the dashboard, tell whoever asked to be told.

    Running it again without a new checkpoint computes nothing and ends alike.

    Raises:
        UserError: bad settings, or a full disk; what is done by then is recorded.
    """
    with only_one(job.lock) as holder:
        if holder is not None:
            return Outcome(Status.FINE, f"nightly: already running ({holder}): nothing done")
        try:
            with open_history(job.history) as history:
                outcome = _run(job, history)
        except UserError as error:
            _notify(job, Outcome(Status.FAILED, f"nightly: FAILED: {error}"))
            raise
        _notify(job, outcome)
    return outcome


def _run(job: Nightly, history: History) -> Outcome:
    known = {one.name: one for one in history.checkpoints()}
    _check_settings(job, list(known.values()))
    new = [
        found
        for found in find_checkpoints(job.watch)
        if found.name not in known or (job.retry and not known[found.name].done)
    ]
    failed = []
    for found in new:
        print(f"nightly: {found.name}", file=sys.stderr)
        if process(found, job, history) is None:
            failed.append(found)
    checkpoints = history.checkpoints()
    baseline = pick_baseline(checkpoints, job.baseline)
    done = [one for one in checkpoints if one.done]
    verdicts = [judge(one, baseline, job.min_effect) for one in done if baseline not in (None, one)]
    write_dashboard(job, history, baseline, verdicts)
    return _outcome(new, failed, done, baseline, verdicts)


def _check_settings(job: Nightly, known: Sequence[Checkpoint]) -> None:
    """Refuse, before any work, what could not be compared with the baseline.

    A named baseline may be among tonight's checkpoints: then there is nothing to check yet.
    """
    wanted = (one for one in known if one.done and job.baseline in (None, one.name))
    baseline = next(wanted, None)
    if baseline is None:
        return
    before = EvalFile.load(Path(baseline.evaluation or "")).settings
    changed = [
        f"{name} {getattr(before, name)} -> {getattr(job.settings, name)}"
        for name in EvalSettings.model_fields
        if getattr(before, name) != getattr(job.settings, name)
    ]
    if changed:
        raise UserError(
            f"--history {job.history}: {baseline.name} was evaluated with other settings "
            f"({'; '.join(changed)}): keep them, or name another history"
        )


def _outcome(
    new: Sequence[Found],
    failed: Sequence[Found],
    done: Sequence[Checkpoint],
    baseline: Checkpoint | None,
    verdicts: Sequence[Verdict],
) -> Outcome:
    """Judge the new checkpoints, or the latest where none is new."""
    judged = {found.name for found in new} or {one.name for one in done[-1:]}
    worse = [one for one in verdicts if one.checkpoint in judged and one.regressions]
    parts = [f"{len(new) - len(failed)} new"]
    if failed:
        names = ", ".join(found.name for found in failed)
        parts.append(f"{len(failed)} FAILED ({names})")
    parts += [
        f"REGRESSION at {verdict.checkpoint}: {one.suite} by {one.protocol} {one.first:.1%} -> "
        f"{one.second:.1%} (p = {one.p_holm:.2g})"
        for verdict in worse
        for one in verdict.regressions
    ]
    if baseline is not None and not worse:
        parts.append(f"no regression against {baseline.name}")
    status = Status.FAILED if failed else Status.REGRESSION if worse else Status.FINE
    return Outcome(status, f"nightly: {'; '.join(parts)}")


def _notify(job: Nightly, outcome: Outcome) -> None:
    """Give the summary to the notify command; its failure changes nothing else."""
    if not job.notify:
        return
    environment = os.environ | {
        "LAYERTRACER_STATUS": outcome.status.name.lower(),
        "LAYERTRACER_SUMMARY": outcome.summary,
    }
    try:
        done = subprocess.run(
            job.notify,
            shell=True,
            input=outcome.summary + "\n",
            text=True,
            env=environment,
            timeout=_NOTIFY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"warning: --notify-command took over {_NOTIFY_SECONDS} s", file=sys.stderr)
        return
    if done.returncode:
        print(f"warning: --notify-command ended with {done.returncode}", file=sys.stderr)
