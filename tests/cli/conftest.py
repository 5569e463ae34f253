from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
from click.testing import CliRunner, Result

from joulelab.cli.group import commands

if TYPE_CHECKING:
    from pathlib import Path


class Call(Protocol):
    def __call__(self, *words: str | Path, code: int = 0) -> Result: ...


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def call(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call joulelab in this process, with the store of the test."""
    monkeypatch.setenv("JOULELAB_RUNS", str(runs))
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", "JOULELAB_POWERCAP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(commands, [str(w) for w in words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return result

    return call
