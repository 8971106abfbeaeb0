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
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that tokenize. Default: one a CPU.")
    ] = None,
    json_key: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    text_unit: Annotated[
        TextUnit, typer.Option(help="What ends a document in a .txt file.")
    ] = TextUnit.BLANK_LINE,
    append_eod: Annotated[
        bool, typer.Option(help="End each document with the end-of-document token.")
    ] = True,
    eod_token: Annotated[
        str | None,
        typer.Option(help="That token, as text. Default: the tokenizer's end-of-sequence token."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run tokenizer code from the folder.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing dataset.")] = False,
) -> None:
    """Tokenize a corpus into a Megatron indexed dataset.

    A document is a JSON line, a row of a parquet file or, in a .txt file, what stands between
    blank lines (`--text-unit` for others). The tokens are the same for any number of workers.

    Example: `layertracer prepare-data corpus/ --out data/zh --tokenizer weights/`
    """
    from layertracer.data.documents import Corpus, find_files
    from layertracer.data.prepare import default_workers, prepare

    corpus = Corpus(find_files(inputs), json_key, text_unit)
    written = prepare(
        corpus,
        out,
        tokenizer,
        workers=workers or default_workers(),
        append_eod=append_eod,
        eod_token=eod_token,
        trust_code=trust_remote_code,
        overwrite=overwrite,
    )
    typer.echo(
        f"wrote {out}.bin and .idx: {written.documents:,} documents, {written.tokens:,} tokens"
    )
