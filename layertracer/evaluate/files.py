"""What an evaluation folder holds: ``eval.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from layertracer.errors import UserError
from layertracer.files import read_model

FORMAT = "layertracer.evaluation"
FILE = "eval.json"

Protocol = Literal["logit", "generate"]
Prompt = Literal["official", "lm-eval"]
Parsed = Literal["letter", "text", "several", "nothing", "empty"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvalSettings(_Model):
    """What decides the numbers of an evaluation; batch size, device and ranks don't.

    ``limit`` keeps the first so many questions of each subject.
    """

    tasks: Annotated[tuple[str, ...], Field(min_length=1)] = ("builtin",)
    protocols: Annotated[tuple[Protocol, ...], Field(min_length=1)] = ("logit",)
    shots: Annotated[int, Field(ge=0, le=5)] = 0
    prompt: Prompt = "official"
    chat_template: bool = False
    limit: Annotated[int, Field(ge=1)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


class ModelInfo(_Model):
    """The evaluated model."""

    path: str
    fingerprint: str
    architecture: str
    num_layers: int


class Versions(_Model):
    """What computed the numbers."""

    layertracer: str
    python: str
    torch: str
    transformers: str
    lm_eval: str
    device: str
    ranks: int


class Score(_Model):
    """How many of ``questions`` were answered right.

    Attributes:
        accuracy: ``correct / questions`` (micro: every question weighs the same).
        low: lower end of the Wilson 95% interval of ``accuracy``.
        high: its upper end.
        macro: mean of the subjects' accuracies (every subject weighs the same).
        chance: accuracy of guessing; beside every number.
        constant: accuracy of the best constant letter.
        extracted: share of answers in which one option was found; 1 for logits.
    """

    questions: int
    correct: int
    accuracy: float
    low: float
    high: float
    macro: float
    chance: float
    constant: float
    extracted: float


class CategoryScore(_Model):
    """Score of a category; a subject may be in two (``Hard`` and ``China-specific`` overlap)."""

    category: str
    score: Score


class SubjectScore(_Model):
    """Score of one subject; ``title`` is its Chinese name in the prompt."""

    subject: str
    title: str
    categories: tuple[str, ...]
    score: Score


class SuiteResult(_Model):
    """A suite under one protocol.

    Attributes:
        questions_sha256: of every question, option, answer and worked example used.
        prompts_sha256: of every text given to the model.
        truncated: prompts cut on the left to the model's length.
    """

    suite: str
    protocol: Protocol
    questions_sha256: str
    prompts_sha256: str
    truncated: int
    overall: Score
    categories: tuple[CategoryScore, ...]
    subjects: tuple[SubjectScore, ...]


class QuestionResult(_Model):
    """One question under one protocol.

    Attributes:
        id: of the question in its subject's file.
        question_sha256: of its text, options and answer (16 digits): joins two evaluations.
        prompt_sha256: of the text given to the model (16 digits).
        prediction: the chosen option; None where no single option was found.
        log_probs: natural log-probability of each option's token, for ``logit``.
        answer: the generated text, for ``generate``.
        parsed: how the generated text was read, for ``generate``.
    """

    suite: str
    protocol: Protocol
    subject: str
    id: str
    question_sha256: str
    prompt_sha256: str
    gold: str
    prediction: str | None
    correct: bool
    log_probs: tuple[float, ...] | None = None
    answer: str | None = None
    parsed: Parsed | None = None


class Work(_Model):
    """What it cost.

    ``tokens`` went through the model; without sharing the options' forward and the worked examples
    it would have been ``tokens_unshared``.
    """

    seconds: float
    tokens: int
    tokens_unshared: int


class EvalFile(_Model):
    """A whole evaluation."""

    format: Literal["layertracer.evaluation"] = FORMAT
    version: Literal[1] = 1
    model: ModelInfo
    settings: EvalSettings
    versions: Versions
    work: Work
    suites: tuple[SuiteResult, ...]
    questions: tuple[QuestionResult, ...]

    @classmethod
    def load(cls, path: Path | str) -> EvalFile:
        """Read ``eval.json``; ``path`` is the folder or the file.

        Raises:
            UserError: it is missing or not an evaluation; the message names it.
        """
        path = Path(path)
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise UserError(f"{path}: holds no evaluation; make one with `layertracer eval`")
        return read_model(cls, file)

    def suite(self, name: str, protocol: Protocol = "logit") -> SuiteResult:
        """Return the result of one suite.

        Raises:
            UserError: it was not evaluated.
        """
        for result in self.suites:
            if (result.suite, result.protocol) == (name, protocol):
                return result
        raise UserError(f"{self.model.path}: {name} was not evaluated by {protocol}")
