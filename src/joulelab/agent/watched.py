"""Keep what is known of each stream between scrapes: its last values, and its energy so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, nan
from typing import TYPE_CHECKING

from joulelab.agent.energy import Counter, Integral, counter_channel, power_channels
from joulelab.core.clock import NS
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.core.spec import Stream

# Which states become which metric: by the channel's name, or by its unit where that says it.
STATES = {
    "load": "joulelab_load_ratio",
    "busy": "joulelab_load_ratio",
    "cap_enforced_w": "joulelab_cap_watts",
    "cap_requested_w": "joulelab_cap_requested_watts",
    "power_w": "joulelab_phase_power_watts",
}
UNITS = {"degC": "joulelab_temperature_celsius", "A": "joulelab_current_amperes"}
# A value older than this, or than three periods, is not shown: a gap is no number.
FRESH_S = 5.0
# A counter that steps so often tells the power between two readings.
QUICK_S = 0.2
TELLING_NS = NS // 4


@dataclass(frozen=True, slots=True)
class Place:
    """Name what a value is of: the labels that nearly all metrics have."""

    scope: str
    meter: str
    device: str


class Watched:
    """Follow one stream of one meter; rows come in the order of their time."""

    def __init__(self, meter: str, stream: Stream) -> None:
        self.stream = stream
        self.place = Place(stream.scope, meter, stream.device)
        self.fresh_ns = round(max(3 * stream.period_s, FRESH_S) * NS)
        self.good_ns = 0
        self.power_w = nan
        self.states: dict[str, float] = {}
        self._powers = power_channels(stream)
        self._at = counter_channel(stream)
        self.counter = None if self._at is None else Counter(stream.channels[self._at], stream.period_s, stream.scope)
        self.integral = Integral(stream.period_s) if self._powers else None
        self._chosen = _states(stream)
        quick = self._at is not None and (stream.channels[self._at].update_s or 1.0) <= QUICK_S
        self._derived = quick and not self._powers
        self._since_ns, self._risen_j = 0, 0.0

    @property
    def is_energy(self) -> bool:
        """Return whether it tells energy or power of its scope."""
        return self.counter is not None or self.integral is not None

    @property
    def source(self) -> str:
        """Return where its energy is from: a counter if it has one that is read, else its power, integrated."""
        return "counter" if self.counter is not None and self.counter.is_read else "integrated"

    @property
    def energy_j(self) -> float:
        """Return the energy since it was first read, NaN where it tells none."""
        if self.counter is not None and self.counter.is_read:
            return self.counter.total_j
        return nan if self.integral is None else self.integral.total_j

    @property
    def gain(self) -> float | None:
        """Return how far its energy (or power) may be off, None where nobody knows."""
        at = self._at if self.source == "counter" and self._at is not None else next(iter(self._powers), None)
        if at is None:
            return None
        accuracy = self.stream.channels[at].accuracy
        return None if accuracy.source == "unknown" else accuracy.gain

    def is_fresh(self, now_ns: int) -> bool:
        """Return whether its last reading still stands."""
        return bool(self.good_ns) and now_ns - self.good_ns <= self.fresh_ns

    def take(self, t_ns: int, values: Sequence[float]) -> None:
        """Take one row; NaN is a channel that was not read."""
        power_w = next((values[i] for i in self._powers if isfinite(values[i])), nan)
        added = 0.0 if self.counter is None or self._at is None else self.counter.add(t_ns, values[self._at], power_w)
        if self.integral is not None:
            self.integral.add(t_ns, power_w)
        if self._powers:
            self.power_w = power_w
        elif self._derived:
            self._derive(t_ns, added)
        self.states = {name: values[i] for name, i in self._chosen if isfinite(values[i])}
        self.good_ns = t_ns

    def _derive(self, t_ns: int, added_j: float) -> None:
        """Take the power from what the counter rose by over at least a quarter of a second."""
        since_ns = t_ns - self._since_ns
        if not self._since_ns or since_ns > self.fresh_ns:
            self.power_w, self._since_ns, self._risen_j = nan, t_ns, 0.0
            return
        self._risen_j += added_j
        if since_ns >= TELLING_NS:
            self.power_w = self._risen_j * NS / since_ns
            self._since_ns, self._risen_j = t_ns, 0.0


@dataclass(slots=True)
class Sum:
    """Hold the streams that together are one scope: the cords of a node."""

    scope: str
    parts: int
    members: list[Watched] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Return its labels; the meters that read its parts are all named."""
        return Place(self.scope, "+".join(sorted({m.place.meter for m in self.members})), "")

    def power_w(self, now_ns: int) -> float:
        """Return the power of all parts in W, NaN unless each has a reading that stands."""
        if len(self.members) < self.parts or not all(m.is_fresh(now_ns) for m in self.members):
            return nan
        return sum(m.power_w for m in self.members)

    @property
    def energy_j(self) -> float:
        """Return the energy of all parts in J, NaN unless all are known."""
        return sum(m.energy_j for m in self.members) if len(self.members) >= self.parts else nan

    @property
    def source(self) -> str:
        """Return `counter` if all parts have one."""
        return "counter" if all(m.source == "counter" for m in self.members) else "integrated"

    @property
    def gain(self) -> float | None:
        """Return the largest gain of the parts, None where one is not known."""
        gains = [m.gain for m in self.members]
        return None if None in gains or not gains else max(g for g in gains if g is not None)


def sums_of(watched: Iterable[Watched]) -> list[Sum]:
    """Return the scopes that are sums of streams, complete or not; what a meter reads itself is not added up again.

    As in the analysis, supplies are counted by the meter that lists them, outlets over all PDUs.
    """
    known = list(watched)
    whole = {(one.place.scope, one.place.meter) for one in known if one.is_energy}
    found: dict[tuple[str, str, str], Sum] = {}
    for one in known:
        stream = one.stream
        if stream.sums and one.is_energy:
            by = "" if find_family(stream.scope) == "outlet" else one.place.meter
            total = found.setdefault((stream.sums, find_family(stream.scope), by), Sum(stream.sums, stream.parts))
            total.parts = max(total.parts, stream.parts)
            total.members.append(one)
    return [total for total in found.values() if (total.scope, total.place.meter) not in whole]


def continued(new: Watched, old: Watched | None) -> Watched:
    """Let a stream that came back slightly different (a measured update period) keep its totals."""
    if old is not None and old.place == new.place:
        if new.counter is not None and old.counter is not None:
            new.counter.go_on(old.counter)
        if new.integral is not None and old.integral is not None:
            new.integral.total_j = old.integral.total_j
    return new


def _states(stream: Stream) -> list[tuple[str, int]]:
    """Return the metrics that the stream's states become, each once, with their channels."""
    found: dict[str, int] = {}
    for i, channel in enumerate(stream.channels):
        if channel.kind == "state":
            name = STATES.get(channel.name) or UNITS.get(channel.unit, "")
            if name:
                found.setdefault(name, i)
    return list(found.items())
