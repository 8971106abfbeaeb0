"""What a nightly job is asked to do, and where its files are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from layertracer.evaluate.files import EvalSettings
from layertracer.evaluate.runner import Machine


@dataclass(frozen=True)
class Nightly:
    """Settings of a nightly job.

    Attributes:
        watch: the training's ``--save`` folder.
        history: the data base; lock and files stand beside it unless ``out`` says otherwise.
        out: folder for evaluations, traces and the dashboard.
        settings: of the evaluation; the same every night, or nothing could be compared.
        data_dir: the questions.
        baseline: checkpoint that the others are compared with; None is the earliest one evaluated.
        min_effect: smallest fall that is a regression, as a share.
        noise: whether the first checkpoint is evaluated twice, for the noise floor.
        trace: whether each checkpoint is traced as well.
        retry: whether checkpoints that failed before are tried again.
        notify: shell command that gets the summary on standard input.
        machine: device and batch size.
    """

    watch: Path
    history: Path
    out: Path
    settings: EvalSettings = field(default_factory=EvalSettings)
    data_dir: Path | None = None
    baseline: str | None = None
    min_effect: float = 0.01
    noise: bool = True
    trace: bool = False
    retry: bool = False
    notify: str | None = None
    machine: Machine = field(default_factory=Machine)

    @property
    def lock(self) -> Path:
        """The file that a running job holds."""
        return self.history.with_name(f"{self.history.name}.lock")

    @property
    def dashboard(self) -> Path:
        """The page."""
        return self.out / "dashboard.html"

    def evaluation(self, checkpoint: str) -> Path:
        """Folder of a checkpoint's ``eval.json``."""
        return self.out / "evaluations" / checkpoint

    def traced(self, checkpoint: str) -> Path:
        """Folder of a checkpoint's trace."""
        return self.out / "traces" / checkpoint

    def weights(self, checkpoint: str) -> Path:
        """Folder of the converted weights, while they are needed."""
        return self.out / "converted" / checkpoint
