from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.meters.analyzer_bench import Bench

from joulelab.core.spec import Stream
from joulelab.twins import profile
from joulelab.twins.model import Node
from joulelab.twins.serve import TwinServer
from joulelab.twins.servers._scpi_readings import AnalyzerFlaws
from joulelab.twins.servers.analyzer import serve
from joulelab.twins.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).parents[2]


class Remote:
    """A meter opened in another process; `opened` is what it said first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.opened = self._answer()

    @property
    def streams(self) -> dict[str, Stream]:
        return {s["name"]: Stream.from_json(s) for s in self.opened["streams"]}

    def read(self, stream: str) -> Any:
        return self._ask(f"read {stream}")

    def events(self) -> list[dict[str, Any]]:
        return self._ask("events")

    def _ask(self, line: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the meter's process ended: {self._process.wait(10)}"
        return json.loads(line)


@pytest.fixture(autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the state of instruments away from that of whoever runs the tests."""
    home = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


@pytest.fixture
def remote() -> Iterator[Callable[..., Remote]]:
    """Open a meter in another process with more environment."""
    with contextlib.ExitStack() as stack:

        def start(
            name: str, config: Mapping[str, Any] | None = None, /, *, without_override: bool = False, **environment: str
        ) -> Remote:
            environment |= {"WITHOUT_OVERRIDE": "1"} if without_override else {}
            command = [
                sys.executable,
                str(ROOT / "tests" / "meters" / "remote.py"),
                name,
                json.dumps(dict(config or {})),
            ]
            path = [str(ROOT / "src"), *filter(None, [environment.pop("PYTHONPATH", "")])]
            env = os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            )
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


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truth]:
    """Hold what truly happens on a node under half of its load; modules with a node of their own define their own."""
    path = tmp_path_factory.mktemp("node") / "truth"
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}) as truth:
        time.sleep(0.3)  # the first updates of its instruments have come
        yield truth


@pytest.fixture
def bench(truth: Truth, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Serve an analyzer in this process; return how to open meters and links to it."""
    with contextlib.ExitStack() as stack:

        def start(**flaws: Any) -> Bench:
            return Bench(stack, stack.enter_context(serve(truth, tmp_path, AnalyzerFlaws(**flaws), 0)))

        yield start
