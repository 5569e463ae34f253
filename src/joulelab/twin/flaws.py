"""Describe what meters get wrong or refuse, the meters of a node, and draw repeatable noise."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping  # noqa: TC003 - node files are converted by these types
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from joulelab.core.errors import ConfigError


class Counter(enum.StrEnum):
    """Say what the energy counter integrates."""

    TRUE = "true"  # the true power up to its last step
    SEEN = "seen"  # only what the power sensor saw: window mean times update period
    NONE = "none"  # there is no counter


class Plain(enum.StrEnum):
    """Say which reading plain `power usage` gives."""

    INSTANT = "instant"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaws:
    """Describe one GPU's meter; times named `_at_s` count from the start of the truth file, None means never.

    Periods, windows and phases in s, powers in W, `gain_error` as a fraction, steps in mW and mJ.
    """

    power_period_s: float = 0.1  # 0: updated at every reading
    power_window_s: float = 0.1  # the stretch before an update that is seen; 0: a point
    power_phase_s: float = 0.0
    average_window_s: float = 1.0  # 0: this generation has no average
    plain: Plain = Plain.INSTANT
    counter: Counter = Counter.TRUE
    counter_period_s: float = 0.1
    counter_phase_s: float = 0.0
    counter_base_mj: int = 123_456_789
    counter_step_mj: int = 1
    power_step_mw: int = 1
    gain_error: float = 0.0  # of power and counter alike
    offset_w: float = 0.0  # of power and counter alike
    module_w: float = 0.0  # of a superchip beside the GPU: shown as the module's power, and counted; 0: no superchip
    memory_share: float = 0.0  # of the power that is shown as the memory's; 0: it is not shown
    noise_w: float = 0.0  # standard deviation of instant power per update; the same for every reader
    latency_s: float = 0.0  # of every call
    lost_at_s: float | None = None
    fail_at_s: float | None = None  # calls fail from here on for `fail_for_s`, then work again
    fail_for_s: float = 0.0
    hang_at_s: float | None = None  # calls made in this stretch return when it is over
    hang_for_s: float = 0.0
    reset_at_s: float | None = None  # the counter falls to zero
    refuse_caps: bool = False
    caps_supported: bool = True  # else caps can neither be set nor read, as on some laptops; clocks can be locked
    ignore_caps: bool = False  # setting one succeeds and changes nothing
    unenforced_caps: bool = False  # shown as requested and enforced, but power is not limited
    refuse_processes: bool = False
    outside_cap_w: float | None = None  # a lower cap set out of band: enforced, not requested
    outside_cap_at_s: float = 0.0
    forget_cap_at_s: float | None = None  # the cap set before falls back to the default, silently


HOPPER = Flaws(power_window_s=0.025, plain=Plain.AVERAGE)
GA100 = Flaws(power_window_s=0.025, average_window_s=0.0)
GA10X = Flaws(plain=Plain.AVERAGE)
TURING = Flaws(average_window_s=0.0)
VOLTA = Flaws(power_period_s=0.02, power_window_s=0.01, average_window_s=0.0)


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


_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix_bits(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw_normal(seed: int, stream: int, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return draws of mean 0 and standard deviation 1 for each index, the same on every machine.

    Eight 16-bit uniforms are summed: nearly Gaussian, never beyond 4.9, and exact in integers.
    """
    key = np.uint64((seed + stream * _GOLDEN) & _MASK)
    where = np.atleast_1d(np.asarray(index, dtype=np.int64)).astype(np.uint64)
    first = _mix_bits(_mix_bits(where + np.uint64(_GOLDEN)) ^ key)
    second = _mix_bits(first + np.uint64(_GOLDEN))
    total = np.zeros(where.shape, dtype=np.int64)
    for word in (first, second):
        for shift in (0, 16, 32, 48):
            total += ((word >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    # Eight uniforms on 0..65535 have mean 8 * 32767.5 and variance 8 * (65536^2 - 1) / 12.
    return (total - 262140).astype(np.float64) / math.sqrt(8 * (65536.0**2 - 1) / 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedMeter:
    """Hold a meter: its family (`analyzer`, `nvml`), the point it reads, how often it is asked (s), and its flaws.

    `gain_sd` is the relative standard deviation of the gains of such instruments: that of this one is drawn from the
    node's seed and added to `gain_error` of its flaws. `options` are what a user would write in joulelab.toml.
    """

    family: str = ""
    point: str = "node.ac"
    ask_s: float = 1.0
    gain_sd: float = 0.0
    flaws: PanelFlaws = field(default_factory=PanelFlaws)
    options: Mapping[str, Any] = field(default_factory=dict)
