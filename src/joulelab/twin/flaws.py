"""Name what a GPU's own meter gets wrong or refuses."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
