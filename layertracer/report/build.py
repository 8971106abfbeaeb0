"""From the folders of a run to its page: which parts are there, in the order of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile
from layertracer.files import refuse_existing
from layertracer.model_folder import ModelFolder
from layertracer.plan import FreezePlan
from layertracer.report.chart import Section
from layertracer.report.evaluation_section import evaluation_section
from layertracer.report.page import write_page
from layertracer.report.plan_section import plan_section
from layertracer.report.trace_figures import trace_section
from layertracer.report.training_section import training_section
from layertracer.trace.files import TraceFile


@dataclass(frozen=True)
class RunParts:
    """Where the parts of a run are; ``None`` and empty: not there."""

    trace: Path | None = None
    plan: Path | None = None
    model: Path | None = None
    training: Path | None = None
    evaluations: Sequence[Path] = ()

    def found_in(self, run: Path) -> RunParts:
        """Return the parts, those not given looked for in ``run`` under their usual names.

        Raises:
            UserError: ``run`` is not a folder.
        """
        if not run.is_dir():
            raise UserError(f"{run}: no such run folder")

        def usual(given: Path | None, name: str) -> Path | None:
            return given or (run / name if (run / name).exists() else None)

        evaluations = list(self.evaluations) or [
            run / name for name in ("eval-before", "eval-after") if (run / name).exists()
        ]
        return replace(
            self,
            trace=usual(self.trace, "trace"),
            plan=usual(self.plan, "plan.json"),
            model=usual(self.model, "weights"),
            training=usual(self.training, "cpt"),
            evaluations=evaluations,
        )


def write_report(parts: RunParts, out: Path, *, title: str, overwrite: bool) -> list[str]:
    """Write the page of a run and its pictures; return the titles of its sections.

    Raises:
        UserError: there is nothing to show, a part is damaged, or ``out`` exists.
    """
    refuse_existing(out, overwrite=overwrite)
    sections = list(_sections(parts))
    if not sections:
        raise UserError(
            "nothing to report: give a run folder that holds trace/, plan.json, cpt/ or eval-*/, "
            "or name them with --trace, --plan, --training, --eval"
        )
    write_page(out, title=title, sections=sections)
    return [section.title for section in sections]


def _sections(parts: RunParts) -> list[Section]:
    plan = FreezePlan.load(parts.plan) if parts.plan else None
    sections = []
    if parts.trace:
        trace = TraceFile.load(parts.trace)
        sections.append(trace_section(trace, plan.boundary if plan else None))
    if plan:
        model = parts.model or (Path(plan.model) if plan.model else None)
        if model is None:
            raise UserError(f"{parts.plan} names no model: give its folder with --model")
        sections.append(plan_section(plan, ModelFolder(model).parameter_counts))
    if parts.training:
        sections.append(training_section(_records(parts.training)))
    if parts.evaluations:
        sections.append(evaluation_section([EvalFile.load(path) for path in parts.evaluations]))
    return sections


def _records(training: Path) -> Path:
    inner = training / "layertracer"
    return inner if inner.is_dir() else training
