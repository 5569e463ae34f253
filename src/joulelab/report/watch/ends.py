"""Read the ends of a run's journals again and again, only what is new: power of each scope now and lately, states."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS
from joulelab.core.errors import StoreError
from joulelab.core.scope import find_family, find_parent
from joulelab.store.journal import JournalHeader, read_header
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.core.spec import Spec, Stream

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rank = tuple[bool, bool, float, float]
Told = tuple[Rank, float, bool]  # how well it shows power, W, whether it is an estimate
HISTORY = 120  # powers that are kept of each scope, one for each interval
LEFT_OUT = ("job", "host", "workload")
HELD = 2.5  # a reading stands for so many periods of its meter; after that there is none
STEPS = 5  # of a counter that its power is told over at least: the times of single steps are not known well
LEAST_HELD_S = 1.5  # the recorder writes twice a second
LONGEST_S = 120.0  # slower meters are not followed over so many of their periods
MOST_BYTES = 64 << 20  # of one journal that are read at once


@dataclass
class _Journal:
    """Hold what was read last of one journal: rows of the last stretch, as arrays."""

    header: JournalHeader
    offset: int
    index: Ints
    t_ns: Ints
    values: Floats
    kept_ns: int
    taken: int = 0

    def add(self, data: bytes) -> None:
        """Add whole rows."""
        rows = np.frombuffer(data, dtype="<i8").reshape(-1, self.header.row_bytes // 8)
        self.index = np.append(self.index, rows[:, 0])
        self.t_ns = np.append(self.t_ns, rows[:, 2])
        self.values = np.vstack((self.values, rows[:, 3:].copy().view("<f8")))

    def forget(self, before_ns: int) -> None:
        """Drop rows before a time."""
        if self.t_ns.size and int(self.t_ns[0]) < before_ns:
            kept = self.t_ns >= before_ns
            self.index, self.t_ns, self.values = self.index[kept], self.t_ns[kept], self.values[kept]


@dataclass
class Scope:
    """Hold the power of one scope: now and lately (W; NaN = no reading)."""

    host: str
    scope: str
    parent: str | None
    estimate: bool
    powers: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    peak_w: float = math.nan

    @property
    def now_w(self) -> float:
        """Return the power of the last interval."""
        return self.powers[-1] if self.powers else math.nan


class Ends:
    """Follow the journals of one host of a run; all times are that host's monotonic ns."""

    def __init__(self, folder: Path, every_s: float) -> None:
        """Take a host's folder, and how long an interval is."""
        self.folder, self.every_ns = folder, max(round(every_s * NS), 1)
        self.scopes: dict[str, Scope] = {}
        self.states: dict[str, dict[str, float]] = {}
        self.last_ns: dict[str, int] = {}
        self.periods: dict[str, float] = {}
        self.boot = ""
        self._journals: dict[Path, _Journal] = {}
        self._to_ns = 0

    @property
    def newest_ns(self) -> int:
        """Return the time of the last reading of all, 0 where there is none."""
        return max(self.last_ns.values(), default=0)

    def read(self) -> None:
        """Read what has come and add the power of each interval that has passed. Raises OSError."""
        for path in sorted(self.folder.glob("*.journal")):
            self._read(path)
        newest = self._reached()
        if not newest:
            return
        first = self._to_ns or newest - (HISTORY // 2) * self.every_ns
        if newest - first >= self.every_ns // 2:
            # As many equal parts as fit best: nothing between two looks is left out, but what no history would keep.
            count = max(round((newest - first) / self.every_ns), 1)
            edges = [first + (newest - first) * k // count for k in range(count + 1)]
            for a, b in list(pairwise(edges))[-HISTORY:]:
                self._add(a, b)
            self._to_ns = newest
        self._take_states()
        for journal in self._journals.values():
            journal.forget(newest - max(3 * self.every_ns, journal.kept_ns))

    def _reached(self) -> int:
        """Return up to when fast meters have been read: the newest reading of the one that lags behind a little."""
        newest = self.newest_ns
        fast = [t for m, t in self.last_ns.items() if self.periods[m] <= 1.0 and newest - t < LEAST_HELD_S * NS]
        return min(fast, default=newest)

    def _read(self, path: Path) -> None:
        journal = self._journals.get(path)
        if journal is None:
            try:
                header = read_header(path)
            except StoreError:
                return  # being begun
            journal = self._journals[path] = _begun(path, header, HISTORY * self.every_ns)
            self.boot = header.boot_id or self.boot
            for stream in header.streams:
                self.periods[header.meter] = max(stream.period_s, self.periods.get(header.meter, 0.0))
        with open_regular(path) as file:
            size = file.seek(0, 2) - journal.offset
            file.seek(journal.offset)
            data = file.read(min(size - size % journal.header.row_bytes, MOST_BYTES))
        data = data[: len(data) - len(data) % journal.header.row_bytes]
        if data:
            journal.offset += len(data)
            journal.add(data)
            meter = journal.header.meter
            self.last_ns[meter] = max(int(journal.t_ns[-1]), self.last_ns.get(meter, 0))

    def _add(self, a_ns: int, b_ns: int) -> None:
        """Add the power of one interval to every scope: by the best of its channels that tells one."""
        told: dict[str, Told] = {}
        cords: dict[str, dict[str, int]] = {}
        for journal in self._journals.values():
            for k, stream in enumerate(journal.header.streams):
                if find_family(stream.scope) in LEFT_OUT or not any(map(_tells, stream.channels)):
                    continue
                found = _power(journal, k, stream, a_ns, b_ns)
                self._declare(stream.scope, stream.parent)
                if found is not None and (stream.scope not in told or found[0] < told[stream.scope][0]):
                    told[stream.scope] = found
                if stream.sums:
                    cords.setdefault(stream.sums, {})[stream.scope] = stream.parts
        for name, parts in cords.items():
            whole = [told[scope] for scope in parts if scope in told]
            if len(whole) < max(*parts.values(), len(parts)):
                continue  # a sum that lacks one is none
            rank = max(found[0] for found in whole)
            if name not in told or rank < told[name][0]:
                self._declare(name, None)
                told[name] = rank, sum(found[1] for found in whole), any(found[2] for found in whole)
        if not told and not any(scope.powers for scope in self.scopes.values()):
            return  # nothing was read yet
        for name, scope in self.scopes.items():
            _, watts, scope.estimate = told.get(name, (None, math.nan, scope.estimate))
            scope.powers.append(watts)
            scope.peak_w = watts if math.isnan(scope.peak_w) else max(scope.peak_w, watts)

    def _declare(self, scope: str, declared: str | None) -> None:
        if scope not in self.scopes:
            self.scopes[scope] = Scope(self.folder.name, scope, find_parent(scope, declared), estimate=False)

    def _take_states(self) -> None:
        for journal in self._journals.values():
            if journal.taken == journal.offset:
                continue
            journal.taken = journal.offset
            last = {i: k for k, i in enumerate(journal.index.tolist())}
            for i, k in last.items():
                stream = journal.header.streams[i] if 0 <= i < len(journal.header.streams) else None
                if stream is None:
                    continue
                states = self.states.setdefault(stream.scope, {})
                for spec, value in zip(stream.channels, journal.values[k].tolist(), strict=True):
                    if spec.kind == "state":
                        states[spec.name] = value


def _begun(path: Path, header: JournalHeader, back_ns: int) -> _Journal:
    """Return a journal that nothing is read of yet, from the row on that so long a history needs."""
    low, width = 0, header.row_bytes
    with open_regular(path) as file:
        rows = max(file.seek(0, 2) - header.data_offset, 0) // width
        high = rows
        if rows:
            file.seek(header.data_offset + (rows - 1) * width + 8)
            from_ns = int.from_bytes(file.read(8), "little", signed=True) - back_ns
        while low < high:
            middle = (low + high) // 2
            file.seek(header.data_offset + middle * width + 8)
            if int.from_bytes(file.read(8), "little", signed=True) < from_ns:
                low = middle + 1
            else:
                high = middle
    slowest = max(_pace_s(stream, spec) for stream in header.streams for spec in stream.channels)
    kept_ns = round((LEAST_HELD_S + (STEPS + HELD) * min(slowest, LONGEST_S)) * NS)
    offset, nothing = header.data_offset + low * width, np.empty(0, np.int64)
    return _Journal(header, offset, nothing, nothing, np.empty((0, len(header.columns))), kept_ns)


def _tells(spec: Spec) -> bool:
    return (spec.kind == "power" and spec.unit == "W") or (spec.kind == "counter" and spec.unit == "J")


def _power(journal: _Journal, k: int, stream: Stream, a_ns: int, b_ns: int) -> Told | None:
    """Return the power of a stream in ]a, b] by the first of its channels that tells it, with the channel's rank."""
    of = (journal.index == k) & (journal.t_ns <= b_ns)
    t, rows = journal.t_ns[of], journal.values[of]
    for c, spec in enumerate(stream.channels):
        if spec.quantity == "age":  # the rest of the row is so much older than the read
            t = t - np.nan_to_num(rows[:, c] * NS).astype(np.int64)
    for c, spec in sorted(enumerate(stream.channels), key=lambda pair: _rank(stream, pair[1])):
        if not _tells(spec):
            continue
        read = ~np.isnan(rows[:, c])
        pace_s = _pace_s(stream, spec)
        held_ns = round(max(HELD * pace_s, LEAST_HELD_S) * NS)
        of_channel = (t[read], rows[read, c])
        if spec.kind == "power":
            watts = _mean(*of_channel, a_ns)
        else:
            watts = _rise(*of_channel, spec, min(a_ns, b_ns - round(STEPS * pace_s * NS)))
        if watts is not None and b_ns - watts[0] <= held_ns:
            return _rank(stream, spec), watts[1], spec.estimate
    return None


def _pace_s(stream: Stream, spec: Spec) -> float:
    """Return how often something new is read of a channel (s)."""
    return max(stream.period_s, spec.update_s or 0.0)


def _rank(stream: Stream, spec: Spec) -> Rank:
    """Put what shows power best first, as the analysis does: measured, a power with the shortest window, a counter."""
    return spec.estimate, spec.kind != "power", spec.window_s or 0.0, stream.period_s


def _mean(t: Ints, watts: Floats, a_ns: int) -> tuple[int, float] | None:
    """Return the mean of the readings after a time, or the last one before it, with its time."""
    if not t.size:
        return None
    inside = watts[t > a_ns]
    return int(t[-1]), float(inside.sum() / inside.size if inside.size else watts[-1])


def _rise(t: Ints, joules: Floats, spec: Spec, a_ns: int) -> tuple[int, float] | None:
    """Return what a counter rose by between its last step and the one before a time, over what lies between them (W).

    None where it did not step twice, or fell and nobody knows where it wraps.
    """
    steps = np.flatnonzero(np.diff(joules) != 0) + 1
    if steps.size < 2:
        return None
    last = int(steps[-1])
    earlier = steps[:-1][t[steps[:-1]] <= a_ns]
    first = int(earlier[-1] if earlier.size else steps[0])
    rises = np.diff(joules[first : last + 1])
    if rises.min() < 0:
        if spec.modulus is None:
            return None
        rises = np.where(rises < 0, rises + spec.modulus, rises)
    return int(t[last]), float(rises.sum()) * NS / int(t[last] - t[first])
