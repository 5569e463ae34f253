"""Show what an instrument at one point of a node reads: its updates, window, resolution, errors and silences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.twin.noise import normal

if TYPE_CHECKING:
    from joulelab.twin.truth import Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelFlaws:
    """Describe a node-level instrument; times named `_at_s` count from the start of the truth file, None means never.

    Periods, windows, phases and latencies in s, powers in W, energies in J, `gain_error` as a fraction. Servers take
    those of their own protocol on top.
    """

    period_s: float = 1.0  # between updates; 0: updated at every reading
    window_s: float = 1.0  # the stretch before an update that is averaged; 0: a point
    phase_s: float = 0.0
    gain_error: float = 0.0  # of power and counter alike
    offset_w: float = 0.0  # of power and counter alike
    noise_w: float = 0.0  # standard deviation of power per update; the same for every reader
    quantum_w: float = 1.0
    quantum_j: float = 3600.0
    base_j: float = 0.0  # what the counter starts with
    modulus_j: float | None = None  # where it wraps
    reset_at_s: float | None = None  # the counter falls to zero
    latency_s: float = 0.0  # before every answer
    drop_share: float = 0.0  # share of requests that get no answer
    silent_at_s: float | None = None  # no answers from here on for `silent_for_s`
    silent_for_s: float = math.inf
    refuse: bool = False  # no login is right
    garble_at_s: float | None = None  # answers are nonsense from here on for `garble_for_s`
    garble_for_s: float = math.inf

    def __post_init__(self) -> None:
        if min(self.period_s, self.window_s, self.latency_s) < 0 or min(self.quantum_w, self.quantum_j) <= 0:
            raise ConfigError("periods and latency are at least 0, quanta above 0", where="instrument")
        if not 0 <= self.drop_share <= 1:
            raise ConfigError(f"drop_share is {self.drop_share}, not within 0 to 1", where="instrument")


class Panel:
    """Read one point of a truth file as an instrument would; all times are monotonic ns (None: now).

    `number` makes the noise of this instrument its own.
    """

    def __init__(self, truth: Truth, point: str, flaws: PanelFlaws, *, number: int = 0) -> None:
        truth.power(point, truth.start_ns)  # raises ConfigError for an unknown point
        self.truth = truth
        self.point = point
        self.flaws = flaws
        self._number = number

    def tick(self, t_ns: int | None = None) -> tuple[int, int]:
        """Return number and time (ns) of the last update."""
        now = monotonic_ns() if t_ns is None else t_ns
        period = round(self.flaws.period_s * NS)
        if period <= 0:
            return now, now
        first = self.truth.start_ns + round(self.flaws.phase_s * NS)
        number = (now - first) // period
        return number, first + number * period

    def power_w(self, t_ns: int | None = None) -> float:
        """Return the power shown, in W."""
        number, at = self.tick(t_ns)
        flaws = self.flaws
        window = round(flaws.window_s * NS)
        if window > 0:
            true = self.truth.energy(self.point, at - window, at) / flaws.window_s
        else:
            true = self.truth.power(self.point, at)
        noise = flaws.noise_w * float(normal(self.truth.node.seed, 1_000 + self._number, number)[0])
        watts = max((1 + flaws.gain_error) * true + flaws.offset_w + (noise if flaws.noise_w else 0.0), 0.0)
        return round(watts / flaws.quantum_w) * flaws.quantum_w

    def energy_j(self, t_ns: int | None = None) -> float:
        """Return the energy counter shown, in J."""
        _, at = self.tick(t_ns)
        flaws, begin, base = self.flaws, self.truth.start_ns, self.flaws.base_j
        if flaws.reset_at_s is not None and at >= begin + round(flaws.reset_at_s * NS):
            begin, base = begin + round(flaws.reset_at_s * NS), 0.0
        true = self.truth.energy(self.point, begin, at)
        joules = base + (1 + flaws.gain_error) * true + flaws.offset_w * (at - begin) / NS
        counted = math.floor(max(joules, 0.0) / flaws.quantum_j) * flaws.quantum_j
        return counted if flaws.modulus_j is None else counted % flaws.modulus_j

    def true_j(self, a_ns: int, b_ns: int) -> float:
        """Return the true energy of [a, b] at this point, in J."""
        return self.truth.energy(self.point, a_ns, b_ns)

    def is_silent(self, t_ns: int | None = None) -> bool:
        """Return whether a request that arrives now gets no answer; one at random of those that are dropped."""
        flaws, now = self.flaws, monotonic_ns() if t_ns is None else t_ns
        if self._within(flaws.silent_at_s, flaws.silent_for_s, now):
            return True
        # From the request's own nanosecond: as good as random, and no state.
        return flaws.drop_share > 0 and (now * 0x9E3779B97F4A7C15 % (1 << 64)) / (1 << 64) < flaws.drop_share

    def is_garbled(self, t_ns: int | None = None) -> bool:
        """Return whether answers are nonsense now."""
        flaws, now = self.flaws, monotonic_ns() if t_ns is None else t_ns
        return self._within(flaws.garble_at_s, flaws.garble_for_s, now)

    def _within(self, at_s: float | None, for_s: float, now: int) -> bool:
        return at_s is not None and at_s <= (now - self.truth.start_ns) / NS < at_s + for_s
