"""Measure windows of a running workload: the work that its processes report, and the energy between two reports."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.marks import STAMPS
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity, add_quantities
from joulelab.store.run_folder import read_meta
from joulelab.store.run_reader import Run
from joulelab.store.safe_files import open_regular
from joulelab.study.tuning.grid import describe_setting
from joulelab.study.tuning.tuning_result import COMMON_SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import Result
    from joulelab.study.tuning.search import Setting

# A process that has not reported for so many of its usual intervals, and so long, is not waited for.
LATE, LATE_NS = 4, 3 * NS
PAUSE, PAUSE_NS = 5.0, NS  # a stretch without work so many times as long as usual, and so long, is a pause
RECENT = 32  # intervals to find the usual one from
LEAST_READINGS = 3
INSIDE = ("gpu", "cpu", "dram")
# Power above its cap that shows that a device does not keep to it; a difference that rounding explains.
ABOVE, ROUNDING, ROUNDING_W = 1.05, 0.02, 2.0


@dataclass(slots=True)
class _Source:
    """Hold the work of one process: times (ns), work done by then, and the ends of its lines."""

    offset: int = 0
    at: list[int] = field(default_factory=list)
    done: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, line: Mapping[str, Any], amount: float) -> None:
        """Add one line: work since `from`, by reports whose times are in `at`, the last of them at `t`."""
        t, since, count = int(line["t"]), int(line.get("from", line["t"])), max(int(line.get("count", 1)), 1)
        before = self.done[-1] if self.done else 0.0
        if since < t:
            self._add_point(since, before)
        stride = 1
        while -(-count // stride) > STAMPS:
            stride *= 2
        for k, stamp in enumerate(line.get("at", ())):
            if stamp < t:
                self._add_point(int(stamp), before + amount * min(1 + k * stride, count) / count)
        self._add_point(t, before + amount)
        self.ends.append(t)
        self.counts.append(count)

    def _add_point(self, t: int, done: float) -> None:
        # Lines of other threads or phases may overlap: the points stay in order.
        if not self.at or (t > self.at[-1] and done >= self.done[-1]):
            self.at.append(t)
            self.done.append(done)
        else:
            self.done[-1] = max(self.done[-1], done)

    def count_by(self, t: int) -> float:
        """Return the work done by a time, interpolated between reports."""
        k = bisect_right(self.at, t)
        if k == 0:
            return 0.0
        if k == len(self.at):
            return self.done[-1]
        a, b = self.at[k - 1], self.at[k]
        return self.done[k - 1] + (self.done[k] - self.done[k - 1]) * (t - a) / (b - a)

    def measure_interval_ns(self) -> float:
        """Return the usual time between its lines."""
        ends = self.ends[-RECENT:]
        return statistics.median(b - a for a, b in itertools.pairwise(ends)) if len(ends) > 1 else 0.0


class WorkLog:
    """Read the marks of all processes on this host as they grow; only one `kind` of work counts, by default the first.

    All times are monotonic ns. `known_ns` is the time up to which the work of all processes is known.
    """

    def __init__(self, marks: Path, kind: str | None = None) -> None:
        self.kind = kind
        self._marks = marks
        self._sources: dict[str, _Source] = {}

    def read_marks(self) -> None:
        """Read the lines that were written since the last call."""
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
                self._add_line(source, text)

    def _add_line(self, source: _Source, text: bytes) -> None:
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
        """Return the time up to which all reporting processes have reported, 0 before the first report."""
        last = {name: s.ends[-1] for name, s in self._sources.items() if s.ends}
        newest = max(last.values(), default=0)
        current = [t for name, t in last.items() if newest - t <= self._measure_patience_ns(name)]
        return min(current, default=0)

    def _measure_patience_ns(self, name: str) -> float:
        return LATE_NS + LATE * self._sources[name].measure_interval_ns()

    def count_work(self, a_ns: int, b_ns: int) -> float:
        """Return the work that all processes did in [a, b]."""
        return sum(s.count_by(b_ns) - s.count_by(a_ns) for s in self._sources.values())

    def count_reports(self, a_ns: int, b_ns: int) -> tuple[int, int]:
        """Return the numbers of reports and of lines that the busiest process wrote in (a, b]."""
        best = (0, 0)
        for s in self._sources.values():
            i, j = bisect_right(s.ends, a_ns), bisect_right(s.ends, b_ns)
            best = max(best, (sum(s.counts[i:j]), j - i))
        return best

    def list_stamps(self, a_ns: int, b_ns: int) -> list[int]:
        """Return the times of reports of the busiest process in [a, b], with a and b."""
        inside = (s.at[bisect_right(s.at, a_ns) : bisect_left(s.at, b_ns)] for s in self._sources.values())
        return [a_ns, *max(inside, key=len, default=[]), b_ns]

    def find_stretches(self, a_ns: int, b_ns: int) -> list[tuple[int, int]]:
        """Return the parts of [a, b] without pauses (an evaluation, a checkpoint)."""
        stamps = self.list_stamps(a_ns, b_ns)
        pause = measure_pause_ns(stamps)
        found = [(a, b) for a, b in itertools.pairwise(stamps) if 0 < b - a <= pause]
        joined: list[tuple[int, int]] = []
        for a, b in found:
            if joined and joined[-1][1] == a:
                joined[-1] = (joined[-1][0], b)
            else:
                joined.append((a, b))
        return joined


def measure_pause_ns(stamps: Sequence[int]) -> float:
    """Return the shortest time between stamps that counts as a pause: much longer than usual."""
    gaps = sorted(b - a for a, b in itertools.pairwise(stamps))
    return max(PAUSE * gaps[len(gaps) // 2], PAUSE_NS)


def _is_work(line: object) -> bool:
    return isinstance(line, dict) and line.get("mark") == "work" and type(line.get("t")) is int


@dataclass(frozen=True, slots=True)
class Window:
    """Hold a window (monotonic ns) under one setting: work done, energy (J), relative uncertainty of its rate.

    `gpu_w` is the mean power of the capped GPUs, `unheld` the evidence that one did not keep to its cap. `u_drift` is
    the relative uncertainty of the workload's own drift until then: of time and of energy.
    """

    setting: Setting
    from_ns: int
    to_ns: int
    work: float
    energy: Quantity
    u_rate: float
    paused: bool = False
    gpu_w: float | None = None
    unheld: str = ""
    u_drift: tuple[float, float] = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.to_ns - self.from_ns) / NS

    @property
    def energy_per(self) -> Quantity:
        """Return joules per unit of work; what makes the rate vary makes the energy vary."""
        per = self.energy * (1 / self.work)
        return replace(per, terms={**per.terms, **self._make_terms(per.value, self.u_drift[1])})

    @property
    def time_per(self) -> Quantity:
        """Return seconds per unit of work."""
        per = self.seconds / self.work
        return Quantity(per, self._make_terms(per, self.u_drift[0]))

    def _make_terms(self, per: float, drift: float) -> dict[str, float]:
        own = {f"drift:{self.setting.text}": per * drift} if drift else {}
        return {f"rate:{self.from_ns}": per * self.u_rate, **own}

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the run stores it."""
        return {
            **describe_setting(self.setting),
            "from": self.from_ns,
            "to": self.to_ns,
            "work": self.work,
            "paused": self.paused,
            "energy": self.energy.value,
            "u": self.energy.without(*COMMON_SOURCES).u,
            "time_per_work": self.time_per.value,
            "u_rate": self.u_rate,
            "gpu_w": self.gpu_w,
            "unheld": self.unheld,
        }


class _UnmarkedRun(Run):
    """Read a run without its marks: there may be many phases and steps, and none is needed here."""

    def marks(self) -> list[dict[str, Any]]:
        """Return none."""
        return []


def find_scopes(run: Path, a_ns: int, b_ns: int) -> tuple[list[str], bool]:
    """Return the scopes that are read often enough for [a, b], and whether these are all. Raises StoreError."""
    from joulelab.analysis.analyse import analyse_phase

    with _UnmarkedRun(run, read_meta(run)) as opened:
        result = analyse_phase(opened, a_ns, b_ns)
    return _choose_scopes(result, {s.scope for s in result.scopes if s.reading.readings >= LEAST_READINGS})


def read_scopes(run: Path, a_ns: int, b_ns: int) -> list[ScopeChannels]:
    """Return the measured channels of a run, joined for [a, b]. Raises StoreError."""
    from joulelab.analysis.channels import load_channels
    from joulelab.analysis.joining import join_meters

    with _UnmarkedRun(run, read_meta(run)) as opened:
        return join_meters(load_channels(opened), a_ns, b_ns).scopes


def sum_energy(
    found: Sequence[ScopeChannels], stretches: Sequence[tuple[int, int]], scopes: Sequence[str], least: int = 0
) -> Quantity | None:
    """Return the energy (J) of some scopes in all stretches; None if one has fewer than `least` readings in one."""
    read = {s.scope: s.best for s in found}
    if not scopes or not set(scopes) <= set(read):
        return None
    inside = [read[scope].readings.between(a, b) for scope in scopes for a, b in stretches] if least else []
    if any(part.stop - part.start < least for part in inside):
        return None
    return add_quantities(read[scope].energy(a, b) for scope in scopes for a, b in stretches)


def measure_draw(
    found: Sequence[ScopeChannels], a_ns: int, b_ns: int, asked: Mapping[str, float]
) -> tuple[float | None, str]:
    """Return the mean power (W) of all capped devices, and the evidence that one does not keep to its cap (W)."""
    means, evidence = [], []
    for scope in (s for s in found if s.scope in asked and b_ns > a_ns):
        cap, power = asked[scope.scope], scope.best.energy(a_ns, b_ns) * (NS / (b_ns - a_ns))
        means.append(power.value)
        limits = scope.state.get("cap_enforced_w")
        enforced = [] if limits is None else [float(w) for w in limits.value[limits.between(a_ns, b_ns)]]
        far = [w for w in enforced if abs(w - cap) > max(ROUNDING_W, ROUNDING * cap)]
        if far:
            evidence.append(f"{scope.scope} enforced {far[-1]:.0f} W where {cap:.0f} W were requested")
        elif power.value - COVERAGE_FACTOR * power.without(*COMMON_SOURCES).u > ABOVE * cap:
            evidence.append(f"{scope.scope} drew {power.value:.0f} W under a cap of {cap:.0f} W")
    return (sum(means) if means else None), "; ".join(evidence)


def _choose_scopes(result: Result, read: set[str]) -> tuple[list[str], bool]:
    """Return all measured scopes, or those inside the node if others are read too seldom."""
    whole = result.group("measured")
    if whole is not None and set(whole.scopes) <= read:
        return list(whole.scopes), True
    inside = [g for g in result.groups if g.name in INSIDE and set(g.scopes) <= read]
    return [scope for group in inside for scope in group.scopes], False


def estimate_rate_u(log: WorkLog, a_ns: int, b_ns: int) -> float:
    """Return the relative uncertainty of the rate in [a, b], by the deviation of reports from an even pace.

    Steps that vary independently deviate by a sixth of the variance of the whole; reports that are only late now and
    then by half of it: then this is too much rather than too little.
    """
    stamps, span = log.list_stamps(a_ns, b_ns), b_ns - a_ns
    whole = log.count_work(a_ns, b_ns)
    if len(stamps) < 3 or whole <= 0:
        return 1.0
    late = [(t - a_ns) / span - log.count_work(a_ns, t) / whole for t in stamps[1:-1]]
    return math.sqrt(6 * sum(x * x for x in late) / len(late))


def has_pause(log: WorkLog, a_ns: int, b_ns: int) -> bool:
    """Return whether work stood still in [a, b]: an evaluation, a checkpoint, another phase."""
    stamps = log.list_stamps(a_ns, b_ns)
    return max(b - a for a, b in itertools.pairwise(stamps)) > measure_pause_ns(stamps)
