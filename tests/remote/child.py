"""A process of this folder, as the test sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.spec import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]


class Child:
    """A process that answers line by line; `opened` is what it said first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.opened = self._answer()

    def ask(self, line: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self._process.wait(10)}"
        return json.loads(line)


class Meter(Child):
    """A meter opened in another process."""

    @property
    def streams(self) -> dict[str, Stream]:
        return {s["name"]: Stream.from_json(s) for s in self.opened["streams"]}

    def read(self, stream: str) -> Any:
        return self.ask(f"read {stream}")

    def events(self) -> list[dict[str, Any]]:
        return self.ask("events")


class Setters(Child):
    """Setters opened in another process."""

    def __call__(self, scope: str, kind: str, method: str, *arguments: Any) -> Any:
        return self.ask(json.dumps([scope, kind, method, *arguments]))


Start = Callable[..., subprocess.Popen[str]]


@contextlib.contextmanager
def children() -> Iterator[Start]:
    """Return how to start modules of this folder: arguments, more environment, folders to import from first."""
    with contextlib.ExitStack() as stack:

        def start(module: str, *arguments: str, environment: Mapping[str, str], path: tuple[str, ...] = ()) -> Any:
            command = [sys.executable, "-m", f"tests.remote.{module}", *arguments]
            env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, str(ROOT / "src"), str(ROOT)])} | environment
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env))
            assert process.stdin
            stack.callback(process.stdin.close)  # ends it, before `with` waits for it
            return process

        yield start
