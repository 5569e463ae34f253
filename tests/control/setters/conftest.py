from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.twins.serve import TwinServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]


class Remote:
    """Setters opened in another process; `opened` is what it said first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.opened = self._answer()

    def __call__(self, scope: str, kind: str, method: str, *arguments: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([scope, kind, method, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait(10)}"
        return json.loads(line)


@pytest.fixture
def remote() -> Iterator[Callable[..., Remote]]:
    """Open the setters of a family in another process with more environment."""
    with contextlib.ExitStack() as stack:

        def start(family: str, environment: dict[str, str] | None = None, *path: Path, **more: str) -> Remote:
            command = [sys.executable, str(ROOT / "tests" / "control" / "setters" / "remote.py"), family]
            found = {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT / "src"]))}
            env = os.environ | found | (environment or {}) | more
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env))
            assert process.stdin
            stack.callback(process.stdin.close)  # ends it, before `with` waits for it
            return Remote(process)

        yield start


@pytest.fixture
def twin() -> Iterator[Callable[..., TwinServer]]:
    """Serve a simulated node, or skip where no C compiler is found."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> TwinServer:
            server = stack.enter_context(TwinServer(*arguments, **options))
            if server.missing is not None:
                pytest.skip(str(server.missing))
            return server

        yield start
