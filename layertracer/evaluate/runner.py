"""An evaluation from start to end: questions, model, lm-eval, files."""

from __future__ import annotations

import platform
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from layertracer import __version__
from layertracer.errors import UserError
from layertracer.evaluate.assemble import assemble
from layertracer.evaluate.files import (
    FILE,
    EvalFile,
    EvalSettings,
    ModelInfo,
    Versions,
    Work,
)
from layertracer.evaluate.harness import answer_progress, count_requests, quiet, run_lm_eval
from layertracer.evaluate.journal import Journal
from layertracer.evaluate.questions import Suite
from layertracer.evaluate.ranks import Ranks, torchrun_ranks
from layertracer.evaluate.sources import load_suites
from layertracer.files import atomic_directory, refuse_existing, write_json
from layertracer.model_folder import ModelFolder
from layertracer.trace.model import pick_device

LM_EVAL_FILE = "lm_eval.json"
_CPU_BATCH, _GPU_BATCH = 8192, 65536  # tokens


@dataclass(frozen=True)
class Machine:
    """What speed and memory depend on, and no number does.

    ``batch_tokens`` None is 8,192 on a CPU and 65,536 on a GPU.
    """

    device: str = "auto"
    batch_tokens: int | None = None
    trust_code: bool = False


def run_evaluation(
    model: Path,
    out: Path,
    settings: EvalSettings,
    *,
    data_dir: Path | None = None,
    machine: Machine | None = None,
    overwrite: bool = False,
) -> EvalFile | None:
    """Evaluate a model folder and write ``eval.json`` and lm-eval's own results into ``out``.

    Under torchrun the ranks share the questions; the first writes, the others return None. A
    killed evaluation goes on where it stopped: answers are kept beside ``out`` until it is whole.

    Raises:
        UserError: bad model folder, questions or settings; ``out`` exists.
    """
    refuse_existing(out, overwrite=overwrite)
    folder = ModelFolder(model)
    folder.fingerprint  # noqa: B018  damaged weights are reported before anything else
    suites = [
        suite.limited(settings.limit)
        for suite in load_suites(settings.tasks, data_dir, settings.shots)
    ]
    with torchrun_ranks() as ranks:
        kept = out.with_name(f".{out.name}.partial")
        journal = Journal(kept, rank=ranks.rank, identity=f"{folder.fingerprint} {settings.dtype}")
        ranks.barrier()
        with journal:
            made, results = _evaluate(
                folder, suites, settings, ranks, journal, machine or Machine()
            )
        if made is None:
            return None
        inputs = {"model": model, "data_dir": data_dir or "none"}
        with atomic_directory(out, overwrite=overwrite, inputs=inputs) as temporary:
            write_json(temporary / FILE, made.model_dump(mode="json"))
            write_json(temporary / LM_EVAL_FILE, results)
        shutil.rmtree(kept, ignore_errors=True)
    return made


def _evaluate(
    folder: ModelFolder,
    suites: list[Suite],
    settings: EvalSettings,
    ranks: Ranks,
    journal: Journal,
    machine: Machine,
) -> tuple[EvalFile | None, dict[str, Any]]:
    """Return the record and lm-eval's results; None and nothing on other ranks than the first."""
    from layertracer.evaluate.lm import OptionLM
    from layertracer.evaluate.loading import load_model, load_tokenizer

    begun = time.monotonic()
    device = pick_device(machine.device)
    tokenizer = load_tokenizer(folder.path, trust_code=machine.trust_code)
    if settings.chat_template and not tokenizer.chat_template:
        raise UserError(f"--chat-template: the tokenizer in {folder.path} has none")
    model = load_model(folder, settings.dtype, device, trust_code=machine.trust_code)
    total = count_requests(suites, settings.protocols)
    with quiet("lm_eval"), answer_progress(total, shown=ranks.first) as advance:
        lm = OptionLM(
            model,
            tokenizer,
            batch_tokens=machine.batch_tokens
            or (_CPU_BATCH if device.type == "cpu" else _GPU_BATCH),
            ranks=ranks,
            journal=journal,
            advance=advance,
        )
        results = run_lm_eval(lm, suites, settings)
    tokens = sum(ranks.gather(lm.forward.tokens))
    unshared = sum(ranks.gather(lm.tokens_unshared))
    work = Work(seconds=time.monotonic() - begun, tokens=tokens, tokens_unshared=unshared)
    samples = results.pop("samples", None)
    if samples is None:
        return None, {}
    cut = [task for task, _ in lm.truncated]
    suite_results, questions = assemble(suites, settings, samples, cut)
    record = EvalFile(
        model=_model_info(folder),
        settings=settings,
        versions=_versions(device, ranks),
        work=work,
        suites=suite_results,
        questions=questions,
    )
    return record, results


def _model_info(folder: ModelFolder) -> ModelInfo:
    return ModelInfo(
        path=str(folder.path),
        fingerprint=folder.fingerprint,
        architecture=folder.config["architectures"][0],
        num_layers=folder.num_layers,
    )


def _versions(device: torch.device, ranks: Ranks) -> Versions:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return Versions(
        layertracer=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=version("transformers"),
        lm_eval=version("lm_eval"),
        device=name,
        ranks=ranks.world,
    )
