"""Where prompts come from: the built-in relations, AntSynNET, CMMLU and C-Eval, JSONL."""

from __future__ import annotations

import csv
import json
import random
from importlib import resources
from pathlib import Path
from typing import Any

from layertracer.errors import UserError
from layertracer.trace.prompts import Language, Prompt, PromptChoice, draw

Pair = tuple[str, str]


def _data(name: str) -> Any:
    file = resources.files("layertracer.trace") / "prompt_data" / name
    return json.loads(file.read_text("utf-8"))


def builtin(choice: PromptChoice) -> list[Prompt]:
    """Return a few-shot prompt for every pair of the relations that the package brings."""
    prompts = []
    for group, relation in _data("builtin.json").items():
        if choice.language and not group.split("/")[1].startswith(choice.language):
            continue
        pairs = [(a, b) for a, b in relation["pairs"]]
        for index, pair in enumerate(pairs):
            shots = _shots(pairs, index, choice)
            prompts.append(_pair_prompt(relation, pair, shots, group, f"builtin {group}"))
    return prompts


def antsynnet(file: Path, choice: PromptChoice) -> list[Prompt]:
    """Return prompts for word pairs: ``word<TAB>word<TAB>1`` (antonyms) or ``0`` (synonyms)."""
    templates = _data("templates.json")["pairs"]
    language = choice.language or Language.EN
    pairs: dict[str, list[Pair]] = {"antonym": [], "synonym": []}
    places = []
    for number, line in _lines(file):
        fields = line.split("\t")
        if len(fields) != 3 or fields[2] not in ("0", "1"):
            raise UserError(f"{file}:{number}: expected word, word and 0 or 1, between tabs")
        relation = "antonym" if fields[2] == "1" else "synonym"
        places.append((number, relation, len(pairs[relation])))
        pairs[relation].append((fields[0], fields[1]))
    prompts = []
    for number, relation, index in draw(places, choice.count, choice.seed):
        template = templates[relation][language]
        shots = _shots(pairs[relation], index, choice)
        pair = pairs[relation][index]
        group = f"{relation}/{language}"
        prompts.append(_pair_prompt(template, pair, shots, group, f"{file}:{number}"))
    return prompts


def _shots(pairs: list[Pair], index: int, choice: PromptChoice) -> list[Pair]:
    others = [pair for pair in pairs if pair[0] != pairs[index][0]]
    rng = random.Random(f"{choice.seed} {pairs[index]}")
    return rng.sample(others, min(choice.shots, len(others)))


def _pair_prompt(
    template: dict[str, str], pair: Pair, shots: list[Pair], group: str, source: str
) -> Prompt:
    whole = template["query"] + template["target"] + template["end"]
    text = "".join(whole.format(a=a, b=b) for a, b in shots)
    a, b = pair
    return Prompt(
        text + template["query"].format(a=a), group, source, template["target"].format(b=b)
    )


def questions(folder: Path, choice: PromptChoice) -> list[Prompt]:
    """Return multiple-choice questions from CSV files in CMMLU's or C-Eval's layout.

    ``folder`` holds ``<subject>.csv`` or ``<subject>_val.csv``, or a ``test``, ``val`` or ``dev``
    folder with them (the first that exists).
    """
    template = _data("templates.json")["question"][choice.language or Language.ZH]
    if not folder.is_dir():
        raise UserError(f"--prompts: {folder} is no folder")
    inner = [folder / name for name in ("test", "val", "dev") if (folder / name).is_dir()]
    prompts = []
    for file in sorted((inner[0] if inner else folder).glob("*.csv")):
        subject = file.stem.removesuffix("_val").removesuffix("_dev").removesuffix("_test")
        for number, row in enumerate(_csv_rows(file), 2):
            prompts.append(_question_prompt(template, row, subject, f"{file}:{number}"))
    return prompts


def _csv_rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        return [{k.lower(): v for k, v in row.items() if k} for row in csv.DictReader(stream)]


def _question_prompt(
    template: dict[str, str], row: dict[str, str], subject: str, source: str
) -> Prompt:
    missing = [name for name in ("question", "a", "b", "c", "d") if not row.get(name)]
    if missing:
        raise UserError(f"{source}: column {missing[0]} is missing or empty")
    fields = {name.upper(): row[name] for name in "abcd"}
    text = (template["head"] + template["body"] + template["query"]).format(
        subject=subject.replace("_", " "), question=row["question"], **fields
    )
    answer = row.get("answer")
    target = template["target"].format(answer=answer) if answer else None
    return Prompt(text, subject, source, target)


def jsonl(file: Path) -> list[Prompt]:
    """Return the prompts of a JSON-lines file: ``prompt``, and optional ``target``, ``group``."""
    prompts = []
    for number, line in _lines(file):
        try:
            record = json.loads(line)
            text, target = record["prompt"], record.get("target")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f'{file}:{number}: expected {{"prompt": "..."}}') from error
        if not isinstance(text, str) or not text or not isinstance(target, str | None):
            raise UserError(f"{file}:{number}: prompt must be a text, not empty; target a text")
        prompts.append(Prompt(text, str(record.get("group", "all")), f"{file}:{number}", target))
    return prompts


def _lines(file: Path) -> list[tuple[int, str]]:
    """Return number and text of the lines that are not blank."""
    if not file.is_file():
        raise UserError(f"--prompts: {file} does not exist")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}") from error
    return [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
