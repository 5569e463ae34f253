from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest
from click.testing import CliRunner, Result

from joulelab.cli.group import commands, run_commands

if TYPE_CHECKING:
    from pathlib import Path


class Call(Protocol):
    def __call__(self, *words: str | Path, code: int = 0) -> Result: ...


@dataclass(frozen=True)
class Failure:
    """Hold an error as `--json` prints it, and the sentence on standard error."""

    code: str
    what: str
    where: str | None
    why: str | None
    next: str | None
    stderr: str
    mistakes: tuple[dict[str, str | None], ...] = ()

    @property
    def kind(self) -> str:
        """Return the class of error that the code begins with."""
        return self.code.partition(".")[0]


class Fail(Protocol):
    def __call__(self, *words: str | Path, code: int = 2) -> Failure: ...


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


@pytest.fixture
def fail(call: Call) -> Fail:
    """Call joulelab with --json in this process; return the error that it ends with."""

    def fail(*words: str | Path, code: int = 2) -> Failure:
        given = [str(w) for w in words]
        given.insert(given.index("--") if "--" in given else len(given), "--json")
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            ended = run_commands(given)
        assert ended == code, err.getvalue()
        return Failure(**json.loads(out.getvalue().splitlines()[-1])["error"], stderr=err.getvalue())

    return fail
