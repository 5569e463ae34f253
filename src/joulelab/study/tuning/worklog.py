"""Follow the work that the processes of a run report while it goes on: how much was done, and by when."""

from __future__ import annotations

import itertools
import json
import statistics
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.marks import STAMPS
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# A process that has not reported for so many of its usual intervals, and so long, is not waited for.
LATE, LATE_NS = 4, 3 * NS
PAUSE, PAUSE_NS = 5.0, NS  # a stretch without work so many times as long as usual, and so long, is a pause
RECENT = 32  # intervals that tell how often a process reports


@dataclass(slots=True)
class _Source:
    """Hold one process: times (ns) of what is known of its work, how much was done by then, and its lines' ends."""

    offset: int = 0
    at: list[int] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, line: Mapping[str, Any], amount: float) -> None:
        """Take one line: work since `from`, by reports whose times are in `at`, the last of them at `t`."""
        t, since, count = int(line["t"]), int(line.get("from", line["t"])), max(int(line.get("count", 1)), 1)
        before = self.done[-1] if self.done else 0.0
        if since < t:
            self._point(since, before)
        stride = 1
        while -(-count // stride) > STAMPS:
            stride *= 2
        for k, stamp in enumerate(line.get("at", ())):
            if stamp < t:
                self._point(int(stamp), before + amount * min(1 + k * stride, count) / count)
        self._point(t, before + amount)
        self.ends.append(t)
        self.counts.append(count)

    def _point(self, t: int, done: float) -> None:
        # Lines of other threads or phases may overlap: what is known stays in order.
        if not self.at or (t > self.at[-1] and done >= self.done[-1]):
            self.at.append(t)
            self.done.append(done)
        else:
            self.done[-1] = max(self.done[-1], done)

    def by(self, t: int) -> float:
        """Return the work done by a time; between reports it is taken to go on evenly."""
        k = bisect_right(self.at, t)
        if k == 0:
            return 0.0
        if k == len(self.at):
            return self.done[-1]
        a, b = self.at[k - 1], self.at[k]
        return self.done[k - 1] + (self.done[k] - self.done[k - 1]) * (t - a) / (b - a)

    def interval_ns(self) -> float:
        """Return how far apart its lines usually are."""
        ends = self.ends[-RECENT:]
        return statistics.median(b - a for a, b in itertools.pairwise(ends)) if len(ends) > 1 else 0.0


class WorkLog:
    """Read the marks of all processes on this host as they grow; one `kind` of work counts, the first seen or a named.

    Every time is monotonic ns. `known_ns` is up to when the work of all processes is known; it is a report's time.
    """

    def __init__(self, marks: Path, kind: str | None = None) -> None:
        self.kind = kind
        self._marks = marks
        self._sources: dict[str, _Source] = {}

    def read(self) -> None:
        """Take what was written since the last time."""
        for path in sorted(self._marks.glob("*.jsonl")):
            source = self._sources.setdefault(path.name, _Source())
            try:
                with open_regular(path) as file:
                    file.seek(source.offset)
                    whole = file.read().rpartition(b"\n")[0]
            except OSError:
                continue
            source.offset += len(whole) + 1 if whole else 0
            for text in whole.splitlines():
                self._take(source, text)

    def _take(self, source: _Source, text: bytes) -> None:
        try:
            line = json.loads(text)
            amounts = {name: float(amount) for name, amount in line["amounts"].items()} if _is_work(line) else {}
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # a damaged line is left out
        if self.kind is None:
            self.kind = next((name for name, amount in amounts.items() if amount > 0), None)
        if self.kind in amounts:
            source.add(line, amounts[self.kind])

    @property
    def known_ns(self) -> int:
        """Return up to when all that report have reported, 0 before there was anything."""
        last = {name: s.ends[-1] for name, s in self._sources.items() if s.ends}
        newest = max(last.values(), default=0)
        current = [t for name, t in last.items() if newest - t <= self._patience_ns(name)]
        return min(current, default=0)

    def _patience_ns(self, name: str) -> float:
        return LATE_NS + LATE * self._sources[name].interval_ns()

    def done(self, a_ns: int, b_ns: int) -> float:
        """Return the work that all processes did in [a, b]."""
        return sum(s.by(b_ns) - s.by(a_ns) for s in self._sources.values())

    def reports(self, a_ns: int, b_ns: int) -> tuple[int, int]:
        """Return how many reports, and how many lines of them, the busiest process wrote in (a, b]."""
        best = (0, 0)
        for s in self._sources.values():
            i, j = bisect_right(s.ends, a_ns), bisect_right(s.ends, b_ns)
            best = max(best, (sum(s.counts[i:j]), j - i))
        return best

    def stamps(self, a_ns: int, b_ns: int) -> list[int]:
        """Return the times in [a, b] at which the busiest process is known to have reported, a and b among them."""
        inside = (s.at[bisect_right(s.at, a_ns) : bisect_left(s.at, b_ns)] for s in self._sources.values())
        return [a_ns, *max(inside, key=len, default=[]), b_ns]

    def stretches(self, a_ns: int, b_ns: int) -> list[tuple[int, int]]:
        """Return the parts of [a, b] in which work went on: pauses (an evaluation, a checkpoint) are left out."""
        stamps = self.stamps(a_ns, b_ns)
        pause = pause_ns(stamps)
        found = [(a, b) for a, b in itertools.pairwise(stamps) if 0 < b - a <= pause]
        joined: list[tuple[int, int]] = []
        for a, b in found:
            if joined and joined[-1][1] == a:
                joined[-1] = (joined[-1][0], b)
            else:
                joined.append((a, b))
        return joined


def pause_ns(stamps: Sequence[int]) -> float:
    """Return how long a stretch between stamps is at least for a pause: much longer than usual."""
    gaps = sorted(b - a for a, b in itertools.pairwise(stamps))
    return max(PAUSE * gaps[len(gaps) // 2], PAUSE_NS)


def _is_work(line: object) -> bool:
    return isinstance(line, dict) and line.get("mark") == "work" and type(line.get("t")) is int
