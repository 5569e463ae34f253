"""Follow the marks and events of a run that goes on, reading only new lines: phases, work, gaps, meters' health."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.marked_phases import list_phases
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.marked_phases import MarkedPhase
    from joulelab.analysis.readings import Ints

Line = dict[str, Any]
MOST_LINES = 800  # of phases, of which the later half is kept with what is still open
MOST_STEPS = 24_000  # times of single steps of a process
MOST_BYTES = 64 << 20


class Lines:
    """Read the whole lines that were added to files since the last time; what is damaged is left out."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def new(self, path: Path) -> list[Line]:
        """Return the new lines of a file, each an object with an integer `t`. Raises OSError."""
        with open_regular(path) as file:
            offset = self._offsets.get(path, 0)
            file.seek(offset)
            data = file.read(MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole)
        found = []
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and type(line.get("t")) is int:
                found.append(line)
        return found


class Marks:
    """Follow what the processes of one host mark."""

    def __init__(self, folder: Path) -> None:
        """Take a host's folder."""
        self.folder = folder
        self.work: dict[str, float] = {}
        self._files = Lines()
        self._kept: list[Line] = []
        self._steps: dict[str, deque[int]] = {}

    def read(self) -> None:
        """Read what has come. Raises OSError."""
        for path in sorted(self.folder.glob("marks/*.jsonl")):
            name = path.name.removesuffix(".jsonl")
            for line in self._files.new(path):
                if line.get("mark") == "work":
                    self._add(name, line)
                elif line.get("mark") in ("begin", "end", "switch"):
                    self._kept.append({**line, "host": self.folder.name, "source": name})
        if len(self._kept) > MOST_LINES:
            self._forget()

    def steps(self) -> Ints | None:
        """Return the times of single steps, one process after the other, None where there are none."""
        known = [np.sort(np.array(times, dtype=np.int64)) for times in self._steps.values() if times]
        return np.concatenate(known) if known else None

    def phases(self, now_ns: int) -> list[MarkedPhase]:
        """Return the phases that began before a time, in order; older ones that have ended are forgotten."""
        found = list_phases(self._kept, -(2**62), now_ns)[0]
        for phase in found:
            phase.open_end |= phase.script is not None and phase.end_ns == now_ns
        return found

    def _add(self, name: str, line: Line) -> None:
        amounts, at = line.get("amounts"), line.get("at")
        for kind, amount in amounts.items() if isinstance(amounts, dict) else ():
            if isinstance(amount, (int, float)):
                self.work[kind] = self.work.get(kind, 0.0) + amount
        if isinstance(at, list):
            steps = self._steps.setdefault(name, deque(maxlen=MOST_STEPS))
            steps.extend(t for t in at if type(t) is int)

    def _forget(self) -> None:
        self._kept.sort(key=lambda line: line["t"])
        ended = {(line.get("id"), line["source"]) for line in self._kept if line["mark"] == "end"}
        switches = {line["source"]: k for k, line in enumerate(self._kept) if line["mark"] == "switch"}
        later = len(self._kept) - MOST_LINES // 2

        def goes_on(k: int, line: Line) -> bool:
            begun = line["mark"] == "begin" and (line.get("id"), line["source"]) not in ended
            return begun or switches.get(line["source"]) == k

        still = [line for k, line in enumerate(self._kept[:later]) if goes_on(k, line)]
        self._kept = still[-MOST_LINES // 4 :] + self._kept[later:]


@dataclass
class Health:
    """Hold how one meter gets on: open or why not, readings that were late or missed, gaps, the one that goes on."""

    status: str = ""
    why: str = ""
    late: int = 0
    missed: int = 0
    gaps: int = 0
    silent: dict[str, str] = field(default_factory=dict)


class Events:
    """Follow what recorder and supervisor note on one host."""

    def __init__(self, folder: Path) -> None:
        """Take a host's folder."""
        self.folder = folder
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.meters: dict[str, Health] = {}
        self.pair: tuple[int, int] | None = None
        self._files = Lines()

    def read(self) -> None:
        """Read what has come. Raises OSError."""
        for path in sorted(self.folder.glob("events.*.jsonl")):
            for line in self._files.new(path):
                self._take(line)

    def _take(self, line: Line) -> None:
        kind, t = line.get("event"), int(line["t"])
        meter = str(line.get("meter", ""))
        if kind == "workload":
            self.start_ns = int(line.get("start_ns") or t)
        elif kind == "workload-end":
            self.end_ns = int(line.get("end_ns") or t)
        elif kind == "clock" and "utc_ns" in line:
            self.pair = int(line["mono_ns"]), int(line["utc_ns"])
        elif kind in ("meter", "late", "gap", "gap-end") and meter:
            self._of_meter(self.meters.setdefault(meter, Health()), line)

    @staticmethod
    def _of_meter(health: Health, line: Line) -> None:
        kind, stream = line["event"], str(line.get("stream", ""))
        if kind == "meter":
            health.status = str(line.get("status", ""))
            health.why = str(line.get("why") or line.get("what") or "")
        elif kind == "late":
            health.late += int(line.get("count", 0))
            health.missed += int(line.get("missed", 0))
        elif kind == "gap":
            health.gaps += 1
            health.silent[stream] = str(line.get("reason", ""))
        else:
            health.silent.pop(stream, None)
