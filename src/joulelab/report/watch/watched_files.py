"""Follow the marks and events of a live run, reading only new lines: phases, work, gaps, state of meters."""

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

MarkLine = dict[str, Any]
MOST_LINES = 800  # with more lines of phases, the later half and those of open phases are kept
MOST_STEPS = 24_000  # times of single steps of a process
MOST_BYTES = 64 << 20


class NewLines:
    """Read the complete lines that were added to files since the last read; damaged lines are left out."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}

    def read(self, path: Path) -> list[MarkLine]:
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


class MarkFollower:
    """Follow the marks of one host: phases, work, times of steps."""

    def __init__(self, folder: Path) -> None:
        """Take a host's folder."""
        self.folder = folder
        self.work: dict[str, float] = {}
        self._files = NewLines()
        self._lines: list[MarkLine] = []
        self._steps: dict[str, deque[int]] = {}

    def read(self) -> None:
        """Read new lines. Raises OSError."""
        for path in sorted(self.folder.glob("marks/*.jsonl")):
            name = path.name.removesuffix(".jsonl")
            for line in self._files.read(path):
                if line.get("mark") == "work":
                    self._add_work(name, line)
                elif line.get("mark") in ("begin", "end", "switch"):
                    self._lines.append({**line, "host": self.folder.name, "source": name})
        if len(self._lines) > MOST_LINES:
            self._drop_old_lines()

    def list_steps(self) -> Ints | None:
        """Return the times of single steps, one process after the other; None without steps."""
        known = [np.sort(np.array(times, dtype=np.int64)) for times in self._steps.values() if times]
        return np.concatenate(known) if known else None

    def list_phases(self, now_ns: int) -> list[MarkedPhase]:
        """Return the phases that began before a time, in order; older ones that have ended are dropped."""
        found = list_phases(self._lines, -(2**62), now_ns)[0]
        for phase in found:
            phase.open_end |= phase.script is not None and phase.end_ns == now_ns
        return found

    def _add_work(self, name: str, line: MarkLine) -> None:
        amounts, at = line.get("amounts"), line.get("at")
        for kind, amount in amounts.items() if isinstance(amounts, dict) else ():
            if isinstance(amount, (int, float)):
                self.work[kind] = self.work.get(kind, 0.0) + amount
        if isinstance(at, list):
            steps = self._steps.setdefault(name, deque(maxlen=MOST_STEPS))
            steps.extend(t for t in at if type(t) is int)

    def _drop_old_lines(self) -> None:
        self._lines.sort(key=lambda line: line["t"])
        ended = {(line.get("id"), line["source"]) for line in self._lines if line["mark"] == "end"}
        switches = {line["source"]: k for k, line in enumerate(self._lines) if line["mark"] == "switch"}
        later = len(self._lines) - MOST_LINES // 2

        def is_open(k: int, line: MarkLine) -> bool:
            begun = line["mark"] == "begin" and (line.get("id"), line["source"]) not in ended
            return begun or switches.get(line["source"]) == k

        still = [line for k, line in enumerate(self._lines[:later]) if is_open(k, line)]
        self._lines = still[-MOST_LINES // 4 :] + self._lines[later:]


@dataclass
class MeterEvents:
    """Hold the events of one meter: its status and why, late and missed readings, gaps, and the open gaps."""

    status: str = ""
    why: str = ""
    late: int = 0
    missed: int = 0
    gaps: int = 0
    silent: dict[str, str] = field(default_factory=dict)  # streams with an open gap, and its reason

    def add(self, line: MarkLine) -> None:
        """Take one event."""
        kind, stream = line["event"], str(line.get("stream", ""))
        if kind == "meter":
            self.status = str(line.get("status", ""))
            self.why = str(line.get("why") or line.get("what") or "")
        elif kind == "late":
            self.late += int(line.get("count", 0))
            self.missed += int(line.get("missed", 0))
        elif kind == "gap":
            self.gaps += 1
            self.silent[stream] = str(line.get("reason", ""))
        else:
            self.silent.pop(stream, None)


class EventFollower:
    """Follow the events that recorder and supervisor write on one host."""

    def __init__(self, folder: Path) -> None:
        """Take a host's folder."""
        self.folder = folder
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.meters: dict[str, MeterEvents] = {}
        self.pair: tuple[int, int] | None = None  # monotonic and UTC ns of one moment
        self._files = NewLines()

    def read(self) -> None:
        """Read new lines. Raises OSError."""
        for path in sorted(self.folder.glob("events.*.jsonl")):
            for line in self._files.read(path):
                self._add(line)

    def _add(self, line: MarkLine) -> None:
        kind, t = line.get("event"), int(line["t"])
        meter = str(line.get("meter", ""))
        if kind == "workload":
            self.start_ns = int(line.get("start_ns") or t)
        elif kind == "workload-end":
            self.end_ns = int(line.get("end_ns") or t)
        elif kind == "clock" and "utc_ns" in line:
            self.pair = int(line["mono_ns"]), int(line["utc_ns"])
        elif kind in ("meter", "late", "gap", "gap-end") and meter:
            self.meters.setdefault(meter, MeterEvents()).add(line)
