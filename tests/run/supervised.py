"""Start supervised commands from tests, and look at what they left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.recorder.driving import SRC, events_of, fake, rows_of
from tests.waiting import until

from joulelab.store.run_folder import list_runs, read_end

HERE = Path(__file__).parent
DRIVER = str(HERE / "driver.py")
CATCHER = [sys.executable, str(HERE / "catcher.py")]


class Bench:
    """A store of runs in a test's folder, and commands that are run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self._gate: int | None = None

    def environ(
        self, *, runs: Path | None = None, drive: dict[str, Any] | None = None, **options: Any
    ) -> dict[str, str]:
        options = {"meters": [fake(devices=2)], "analyse": False, "period_s": 0.02, **options}
        told = str(self.folder / "outcome.json")
        drive = {"runs": str(runs or self.runs), "options": options, "outcome": told, **(drive or {})}
        base = dict(os.environ)
        return base | {"PYTHONPATH": SRC, "DRIVE": json.dumps(drive)}

    def run(self, *command: str, text: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, DRIVER, *command],
            env=self.environ(**options),
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own."""
        return subprocess.Popen([sys.executable, DRIVER, *command], env=self.environ(**options), process_group=0)

    def held(self, then: str = "") -> list[str]:
        """Return a command that waits, without a child of its own, until `release()`."""
        gate = self.folder / "gate"
        os.mkfifo(gate)
        self._gate = os.open(gate, os.O_RDWR)  # who opens it to read does not wait
        return ["sh", "-c", f"read go < {gate}; {then}"]

    def release(self) -> None:
        """Let the command go on."""
        assert self._gate is not None
        os.write(self._gate, b"\n")

    @property
    def outcome(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "outcome.json").read_text())
        return told

    @property
    def run_folder(self) -> Path:
        (run,) = list_runs(self.runs)
        return run

    @property
    def host(self) -> Path:
        (host,) = (p for p in self.run_folder.iterdir() if p.is_dir())
        return host

    @property
    def end(self) -> dict[str, Any]:
        end = read_end(self.run_folder)
        assert end is not None
        return end

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [e for path in sorted(self.host.glob("events.*.jsonl")) for e in events_of(path, kind)]

    def rows(self, segment: int = 0) -> list[tuple[float, ...]]:
        return rows_of(self.host / f"fake.power.{segment}.journal")

    def recorder(self) -> int:
        """Return the pid of the recorder of the only run."""
        return recorders_in(self.host)[0]


def started(bench: Bench) -> bool:
    """Return whether the workload runs and readings of the recorder are on the disk."""
    return bool(list_runs(bench.runs) and bench.events("workload") and recorders_in(bench.host) and bench.rows())


def recorders_in(folder: Path) -> list[int]:
    """Return the processes that hold a journal of this folder open."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            targets = []
            with suppress(OSError):  # it ended, or is somebody else's
                for fd in (process / "fd").iterdir():
                    with suppress(OSError):  # closed since it was listed
                        targets.append(str(fd.readlink()))
            if any(t.startswith(f"{folder}/") and t.endswith(".journal") for t in targets):
                found.append(int(process.name))
    return found


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def marks(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in run.glob("*/marks/*") for line in path.read_text().splitlines()]
    return sorted((m for m in lines if kind in (None, m["mark"])), key=lambda m: m["t"])


def caught(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


__all__ = ["CATCHER", "Bench", "caught", "children", "gone", "marks", "recorders_in", "started", "until"]
