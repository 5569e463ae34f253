"""Read meters from true power with the flaws of real ones: one reading at a time, or all rows of a stream at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from joulelab.core.clock import NS, monotonic_ns
from joulelab.twin.flaws import Counter, Flaws, draw_normal

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.twin.flaws import PanelFlaws
    from joulelab.twin.power_curves import Curve, Floats, Ints
    from joulelab.twin.truth import Truth

    Flags = npt.NDArray[np.bool_]


class PowerSource(Protocol):
    """Give true power (W) and energy (J) since some time, at each of several times (ns)."""

    def watts(self, t_ns: Ints) -> Floats:
        """Return the power."""

    def joules(self, t_ns: Ints) -> Floats:
        """Return the energy."""


class _TruthPoint:
    """Give the power and energy of one point of a truth file, as they are known at the time of the call."""

    def __init__(self, truth: Truth, point: str) -> None:
        self._truth, self._point = truth, point

    def watts(self, t_ns: Ints) -> Floats:
        return self._truth.power(self._point, t_ns)

    def joules(self, t_ns: Ints) -> Floats:
        return self._truth.energy(self._point, self._truth.start_ns, t_ns)


class Panel:
    """Read one point of a truth file as an instrument would, at one time (monotonic ns; None: now).

    `number` makes the noise of this instrument its own.
    """

    def __init__(self, truth: Truth, point: str, flaws: PanelFlaws, *, number: int = 0) -> None:
        truth.power(point, truth.start_ns)  # raises ConfigError for an unknown point
        self.truth, self.point, self.flaws = truth, point, flaws
        self._source, self._number = (1.0, _TruthPoint(truth, point)), number

    def find_update(self, t_ns: int | None = None) -> tuple[int, int]:
        """Return number and time (ns) of the last update."""
        number, at = _find_updates(_make_times(t_ns), self.truth.start_ns, self.flaws.period_s, self.flaws.phase_s)
        return int(number[0]), int(at[0])

    def power_w(self, t_ns: int | None = None) -> float:
        """Return the power shown, in W."""
        start, seed = self.truth.start_ns, self.truth.node.seed
        times = _make_times(t_ns)
        return float(read_panel_w(self._source, self.flaws, times, start_ns=start, seed=seed, number=self._number)[0])

    def energy_j(self, t_ns: int | None = None) -> float:
        """Return the energy counter shown, in J."""
        return float(read_panel_j(self._source, self.flaws, _make_times(t_ns), start_ns=self.truth.start_ns)[0])

    def true_j(self, a_ns: int, b_ns: int) -> float:
        """Return the true energy of [a, b] at this point, in J."""
        return self.truth.energy(self.point, a_ns, b_ns)

    def is_silent(self, t_ns: int | None = None) -> bool:
        """Return whether a request that arrives now gets no answer; one at random of those that are dropped."""
        return bool(_find_silent(self.flaws, _make_times(t_ns), self.truth.start_ns)[0])

    def is_garbled(self, t_ns: int | None = None) -> bool:
        """Return whether answers are nonsense now."""
        return bool(_find_garbled(self.flaws, _make_times(t_ns), self.truth.start_ns)[0])


def _make_times(t_ns: int | None) -> Ints:
    return np.array([monotonic_ns() if t_ns is None else t_ns], dtype=np.int64)


def _find_updates(t_ns: Ints, start_ns: int, period_s: float, phase_s: float) -> tuple[Ints, Ints]:
    """Return number and time (ns) of the last update at or before each time; a period of 0 updates always."""
    if period_s <= 0:
        return np.asarray(t_ns), np.asarray(t_ns)
    period, phase = round(period_s * NS), start_ns + round(phase_s * NS)
    number = (t_ns - phase) // period
    return number, number * period + phase


def _average_power(curve: PowerSource, until_ns: Ints, window_s: float) -> Floats:
    """Return mean power (W) over the window before each time; a window of 0 is a point."""
    window = round(window_s * NS)
    if window <= 0:
        return curve.watts(until_ns)
    return (curve.joules(until_ns) - curve.joules(until_ns - window)) / window_s


def read_instant_w(curve: Curve, flaws: Flaws, t_ns: Ints, *, start_ns: int, seed: int = 0, gpu: int = 0) -> Floats:
    """Return what `power instant` reads at each time, in W."""
    number, tick = _find_updates(t_ns, start_ns, flaws.power_period_s, flaws.power_phase_s)
    true = _average_power(curve, tick, flaws.power_window_s)
    noise = flaws.noise_w * draw_normal(seed, gpu, number) if flaws.noise_w else 0.0
    watts = np.maximum((1 + flaws.gain_error) * true + flaws.offset_w + noise, 0.0)
    return np.rint(watts * 1000 / flaws.power_step_mw) * flaws.power_step_mw / 1000


def read_average_w(curve: Curve, flaws: Flaws, t_ns: Ints, *, start_ns: int) -> Floats:
    """Return what `power average` reads at each time, in W; NaN where this generation has none."""
    if flaws.average_window_s <= 0:
        return np.full(len(t_ns), np.nan)
    _, tick = _find_updates(t_ns, start_ns, flaws.power_period_s, flaws.power_phase_s)
    watts = (1 + flaws.gain_error) * _average_power(curve, tick, flaws.average_window_s) + flaws.offset_w
    return np.rint(watts * 1000 / flaws.power_step_mw) * flaws.power_step_mw / 1000


def read_counter_j(curve: Curve, flaws: Flaws, t_ns: Ints, *, start_ns: int) -> Floats:
    """Return what the energy counter reads at each time, in J; NaN where there is none."""
    if flaws.counter is Counter.NONE:
        return np.full(len(t_ns), np.nan)
    _, tick = _find_updates(t_ns, start_ns, flaws.counter_period_s, flaws.counter_phase_s)
    since = (tick - start_ns) / NS
    energy = curve.joules(tick) - curve.joules(np.array([start_ns]))[0]
    if flaws.counter is Counter.SEEN and flaws.power_period_s > 0:
        energy = _sum_seen_energy(curve, flaws, tick, start_ns)
    millijoules = flaws.counter_base_mj + 1000 * ((1 + flaws.gain_error) * energy + flaws.offset_w * since)
    counted: Floats = np.floor(millijoules / flaws.counter_step_mj) * flaws.counter_step_mj / 1000
    return counted


def _sum_seen_energy(curve: Curve, flaws: Flaws, tick: Ints, start_ns: int) -> Floats:
    """Return the energy (J) of what the power sensor saw up to each time: window mean times period."""
    period = round(flaws.power_period_s * NS)
    last, _ = _find_updates(tick, start_ns, flaws.power_period_s, flaws.power_phase_s)
    numbers = np.arange(1, int(last.max()) + 1, dtype=np.int64)
    updates = numbers * period + start_ns + round(flaws.power_phase_s * NS)
    sums = np.concatenate(
        ([0.0], np.cumsum(_average_power(curve, updates, flaws.power_window_s) * flaws.power_period_s))
    )
    return sums[np.clip(last, 0, numbers.size)]


def read_panel_w(
    source: tuple[float, PowerSource], flaws: PanelFlaws, t_ns: Ints, *, start_ns: int, seed: int = 0, number: int = 0
) -> Floats:
    """Return what a node-level instrument shows as power at each time, in W.

    `source` is a share of a curve; `number` makes the noise of this instrument its own.
    """
    share, curve = source
    index, tick = _find_updates(t_ns, start_ns, flaws.period_s, flaws.phase_s)
    true = share * _average_power(curve, tick, flaws.window_s)
    noise = flaws.noise_w * draw_normal(seed, 1_000 + number, index) if flaws.noise_w else 0.0
    watts = np.maximum((1 + flaws.gain_error) * true + flaws.offset_w + noise, 0.0)
    return np.rint(watts / flaws.quantum_w) * flaws.quantum_w


def read_panel_j(source: tuple[float, PowerSource], flaws: PanelFlaws, t_ns: Ints, *, start_ns: int) -> Floats:
    """Return what the energy counter of a node-level instrument shows at each time, in J."""
    share, curve = source
    _, tick = _find_updates(t_ns, start_ns, flaws.period_s, flaws.phase_s)
    begin, base = np.full(len(tick), start_ns, dtype=np.int64), np.full(len(tick), flaws.base_j)
    if flaws.reset_at_s is not None:
        reset = start_ns + round(flaws.reset_at_s * NS)
        begin, base = np.where(tick >= reset, reset, begin), np.where(tick >= reset, 0.0, base)
    true = share * (curve.joules(tick) - curve.joules(begin))
    joules = base + (1 + flaws.gain_error) * true + flaws.offset_w * (tick - begin) / NS
    counted: Floats = np.floor(np.maximum(joules, 0.0) / flaws.quantum_j) * flaws.quantum_j
    return counted if flaws.modulus_j is None else counted % flaws.modulus_j


def find_answered(flaws: PanelFlaws, t_ns: Ints, *, start_ns: int) -> Flags:
    """Return which requests an instrument answers, and sensibly: not while it is silent, garbled, or drops one."""
    return ~(_find_silent(flaws, t_ns, start_ns) | _find_garbled(flaws, t_ns, start_ns))


def _find_silent(flaws: PanelFlaws, t_ns: Ints, start_ns: int) -> Flags:
    silent = _find_within(t_ns, start_ns, flaws.silent_at_s, flaws.silent_for_s)
    if flaws.drop_share > 0:  # from the request's own nanosecond: as good as random, and no state
        silent |= t_ns.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) / 2.0**64 < flaws.drop_share
    return silent


def _find_garbled(flaws: PanelFlaws, t_ns: Ints, start_ns: int) -> Flags:
    return _find_within(t_ns, start_ns, flaws.garble_at_s, flaws.garble_for_s)


def _find_within(t_ns: Ints, start_ns: int, at_s: float | None, for_s: float) -> Flags:
    """Return which times lie in the stretch that begins `at_s` (s) after the start; None: there is none."""
    since_s = (t_ns - start_ns) / NS
    return np.zeros(len(t_ns), dtype=np.bool_) if at_s is None else (at_s <= since_s) & (since_s < at_s + for_s)
