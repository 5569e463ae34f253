"""Serve a small twin and run `joulelab cap` on it as users do, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import pytest
from tests.cli.entry import JOULELAB
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.store.run_folder import list_runs
from joulelab.twin.model import RTX6000, Node
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Call joulelab several times, each in a fork of one process: it is imported once.
REFUSED = """
import json, os, sys, tempfile
from joulelab.cli import group, main
group.commands.get_command(None, json.loads(sys.argv[1])[0][0])
said = []
for words in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile("w+") as text:
        if (pid := os.fork()) == 0:
            os.dup2(text.fileno(), 1)
            try:
                main(words)
            except SystemExit as end:
                os._exit(end.code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        text.seek(0)
        said.append([code, text.read()])
print(json.dumps(said))
"""
FOUND_W = 250.0  # a site's own policy: neither the default nor the highest


class CapBench:
    """Hold a twin of two RTX 6000 whose caps were set to 250 W by somebody before us."""

    def __init__(self, folder: Path, gpus: int = 2, **flaws: Any) -> None:
        self.folder = folder
        self.gpus = gpus
        self._server = TwinServer(Node(gpus=(RTX6000,) * gpus, packages=1), directory=folder)
        self._flaws = flaws
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        if shutil.which("cc") is None:
            pytest.skip("the twin's NVML library is built with cc, not here")
        self._server.__enter__()
        self.truth = self._server.truth
        for gpu in range(self.gpus):
            self.truth.set_cap(gpu, FOUND_W)
            if self._flaws:
                self.truth.change_flaws(gpu, **self._flaws)
        base = dict(os.environ)
        self.environ = base | self._server.environment | {"JOULELAB_RUNS": str(self.folder / "runs")}
        self.state = self._server.directory / "state" / "caps"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a workload of its own would keep the pipes open
            process.communicate()
        self._server.__exit__()

    def call(self, *words: str, code: int | None = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*JOULELAB, *words],
            env=self.environ | environ,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def refuse(self, command: str, cases: Sequence[tuple[tuple[str, ...], str, str]], code: int) -> None:
        """Check that each case is refused with an exit code, an error code that begins so, and a name or number."""
        words = json.dumps([[command, "--json", *each] for each, _, _ in cases])
        called = [sys.executable, "-c", REFUSED, words]
        done = subprocess.run(called, env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=300)
        for (each, kind, text), (ended, said) in zip(cases, json.loads(done.stdout), strict=True):
            assert ended == code, (each, said)
            assert json.loads(said)["error"]["code"].startswith(kind), (each, said)
            assert text in said, each
        assert self.caps() == [FOUND_W] * self.gpus
        assert not self.journals()

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*JOULELAB, *words],
            env=self.environ,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            **more,
        )
        self._started.append(process)
        return process

    def caps(self) -> list[float]:
        """Return the caps that are requested now, in W."""
        return [self.truth.caps(gpu, monotonic_ns())[0] for gpu in range(self.gpus)]

    def wait_caps(self, *caps_w: float) -> None:
        until(lambda: self.caps() == list(caps_w))

    def journals(self) -> list[Path]:
        return sorted(self.state.glob("*.json"))

    def keeper(self) -> int:
        """Return the pid of the process that holds the caps, as its journal tells."""
        return int(json.loads(until(self.journals)[0].read_text())["pid"])

    def events(self) -> list[dict[str, Any]]:
        (run,) = list_runs(self.folder / "runs")
        return [json.loads(line) for path in run.glob("*/events.*.jsonl") for line in path.read_text().splitlines()]

    def checks(self) -> list[dict[str, str]]:
        (run,) = list_runs(self.folder / "runs")
        found: list[dict[str, str]] = json.loads(self.call("show", str(run), "--json").stdout)["checks"]
        return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
