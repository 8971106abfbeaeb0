"""``history.sqlite``: every evaluated checkpoint and how it did."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from layertracer.errors import UserError
from layertracer.evaluate.files import EvalFile, Protocol

_SCHEMA = """
CREATE TABLE IF NOT EXISTS checkpoint (
    name TEXT PRIMARY KEY,      -- folder of the checkpoint
    step INTEGER,               -- training step, where known
    status TEXT NOT NULL,       -- done or failed
    detail TEXT NOT NULL,       -- why it failed
    fingerprint TEXT,           -- of the evaluated weights
    evaluation TEXT,            -- folder that holds eval.json
    written TEXT NOT NULL       -- UTC
) STRICT;
CREATE TABLE IF NOT EXISTS result (
    checkpoint TEXT NOT NULL REFERENCES checkpoint(name) ON DELETE CASCADE,
    suite TEXT NOT NULL,
    protocol TEXT NOT NULL,
    subject TEXT NOT NULL,      -- '' is the whole suite
    questions INTEGER NOT NULL,
    correct INTEGER NOT NULL,
    accuracy REAL NOT NULL,
    low REAL NOT NULL,
    high REAL NOT NULL,
    macro REAL NOT NULL,
    chance REAL NOT NULL,
    extracted REAL NOT NULL,
    PRIMARY KEY (checkpoint, suite, protocol, subject)
) STRICT;
CREATE TABLE IF NOT EXISTS noise (
    suite TEXT NOT NULL,
    protocol TEXT NOT NULL,
    questions INTEGER NOT NULL,
    discordant INTEGER NOT NULL, -- between two runs of one checkpoint
    written TEXT NOT NULL,
    PRIMARY KEY (suite, protocol)
) STRICT;
"""
_VERSION = 1
OVERALL = ""


@dataclass(frozen=True)
class Checkpoint:
    """A line of the history."""

    name: str
    step: int | None
    status: str
    detail: str
    fingerprint: str | None
    evaluation: str | None
    written: str

    @property
    def done(self) -> bool:
        """Whether it was evaluated."""
        return self.status == "done"


@dataclass(frozen=True)
class Result:
    """How a checkpoint did in a suite, or in one ``subject`` of it."""

    checkpoint: str
    suite: str
    protocol: Protocol
    subject: str
    questions: int
    correct: int
    accuracy: float
    low: float
    high: float
    macro: float
    chance: float
    extracted: float


class History:
    """The data base; every change is one transaction, so a kill leaves the last whole state."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def record(self, name: str, step: int | None, folder: Path, made: EvalFile) -> None:
        """Store an evaluation, in place of an earlier one of the same checkpoint."""
        with self._connection as transaction:
            fingerprint, place = made.model.fingerprint, str(folder)
            self._put(name, step, "done", "", fingerprint, place)
            transaction.execute("DELETE FROM result WHERE checkpoint = ?", (name,))
            transaction.executemany(
                f"INSERT INTO result VALUES ({', '.join('?' * len(fields(Result)))})",
                [astuple(result) for result in _results(name, made)],
            )

    def record_failure(self, name: str, step: int | None, detail: str) -> None:
        """Mark a checkpoint that can't be evaluated."""
        with self._connection:
            self._put(name, step, "failed", detail, None, None)

    def record_noise(self, suite: str, protocol: Protocol, questions: int, discordant: int) -> None:
        """Store how many answers differed between two runs of one checkpoint."""
        with self._connection as transaction:
            transaction.execute(
                "INSERT OR REPLACE INTO noise VALUES (?, ?, ?, ?, ?)",
                (suite, protocol, questions, discordant, _now()),
            )

    def noise(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return questions and discordant answers by suite and protocol."""
        rows = self._connection.execute("SELECT suite, protocol, questions, discordant FROM noise")
        return {(suite, protocol): (n, d) for suite, protocol, n, d in rows}

    def checkpoints(self) -> list[Checkpoint]:
        """Return every checkpoint, by step and name."""
        rows = self._connection.execute("SELECT * FROM checkpoint ORDER BY step, name")
        return [Checkpoint(*row) for row in rows]

    def results(self) -> list[Result]:
        """Return every result, by step of its checkpoint."""
        rows = self._connection.execute(
            "SELECT result.* FROM result JOIN checkpoint ON checkpoint.name = result.checkpoint "
            "ORDER BY step, checkpoint, suite, protocol, subject"
        )
        return [Result(*row) for row in rows]

    def _put(self, name: str, step: int | None, status: str, detail: str, *rest: object) -> None:
        self._connection.execute(
            "INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT(name) DO UPDATE SET "
            "step = excluded.step, status = excluded.status, detail = excluded.detail, "
            "fingerprint = excluded.fingerprint, evaluation = excluded.evaluation, "
            "written = excluded.written",
            (name, step, status, detail, *rest, _now()),
        )


@contextmanager
def open_history(path: Path) -> Iterator[History]:
    """Open the data base, making it where there is none.

    Raises:
        UserError: the file is no history of this version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=30)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise UserError(f"{path}: history of version {version}; this one reads {_VERSION}")
        connection.executescript(_SCHEMA + f"PRAGMA user_version = {_VERSION};")
        yield History(connection)
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path}: not a usable history: {error}") from error
    finally:
        connection.close()


def _results(checkpoint: str, made: EvalFile) -> Iterator[Result]:
    for suite in made.suites:
        scores = {OVERALL: suite.overall} | {s.subject: s.score for s in suite.subjects}
        for subject, score in scores.items():
            numbers = score.model_dump(exclude={"constant"})
            yield Result(checkpoint, suite.suite, suite.protocol, subject, **numbers)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
