"""``layertracer prepare-data``: text to what Megatron trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layertracer.data.documents import TextUnit


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("prepare-data")(prepare_data)


def prepare_data(
    inputs: Annotated[
        list[Path], typer.Argument(help=".txt, .jsonl, .jsonl.gz or .parquet files, or folders.")
    ],
    out: Annotated[Path, typer.Option(help="Prefix of the .bin and .idx files to write.")],
    tokenizer: Annotated[
        Path, typer.Option(help="A Hugging Face folder, or a SentencePiece .model file.")
    ],
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenize.")] = 2,
    json_key: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    text_unit: Annotated[
        TextUnit, typer.Option(help="What ends a document in a .txt file.")
    ] = TextUnit.BLANK_LINE,
    append_eod: Annotated[
        bool, typer.Option(help="End each document with the end-of-sequence token.")
    ] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing dataset.")] = False,
) -> None:
    """Tokenize a corpus into a Megatron indexed dataset.

    The result is the same for any number of workers.

    Example: `layertracer prepare-data corpus/ --out data/zh --tokenizer weights/`
    """
    from layertracer.data.documents import Corpus, find_files
    from layertracer.data.prepare import prepare

    corpus = Corpus(find_files(inputs), json_key, text_unit)
    written = prepare(
        corpus, out, tokenizer, workers=workers, append_eod=append_eod, overwrite=overwrite
    )
    typer.echo(
        f"wrote {out}.bin and .idx: {written.documents:,} documents, {written.tokens:,} tokens"
    )
