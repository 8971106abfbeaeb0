from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.session import Runs, torchrun


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the runs of ``freeze_scenarios`` leave their checkpoints."""
    return tmp_path_factory.mktemp("freeze")


@pytest.fixture(scope="session")
def runs(runs_folder: Path) -> Runs:
    """What every rank saw of the runs of ``freeze_scenarios``."""
    torchrun("freeze_scenarios:one_process", runs_folder, processes=1)
    return torchrun("freeze_scenarios:two_processes", runs_folder, processes=2)
