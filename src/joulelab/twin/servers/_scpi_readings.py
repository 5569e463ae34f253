"""Show what the twin's analyzer has measured: numbers with the digits of their range, updates on its own clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel

if TYPE_CHECKING:
    from joulelab.twin.truth import Truth

VOLTS, FACTOR, HERTZ = 230.0, 0.98, 50.0
OVER = 1.4  # of a range; beyond, the instrument shows no number
NO_DATA, OVER_RANGE = "NAN", "INF"
ELEMENTS = {"WT310E": (1,), "WT310EH": (1,), "WT332E": (1, 3), "WT333E": (1, 2, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerFlaws(PanelFlaws):
    """Describe the twin's analyzer on top of a panel: its model, its clock, and how it was left by the last user.

    `period_s` and `window_s` are the update interval at power-on; times in s. The digits of the range quantise on top
    of `quantum_w`. `refuse` means that another client holds the instrument.
    """

    period_s: float = 0.1
    window_s: float = 0.1
    quantum_w: float = 0.001
    quantum_j: float = 0.001
    model: str = "WT310E"
    voltage_v: float = 300.0  # the ranges that are set
    current_a: float = 5.0
    ct_ratio: float = 20.0  # an 8-GPU node draws 45 A, beyond any direct input: a 100:5 A transformer; 1 = none
    auto_range: bool = False
    late_s: float = 0.0  # an update may come so much later than it is due
    skip_share: float = 0.0  # share of updates that do not come at all
    stall_at_s: float | None = None  # no updates from here on for `stall_for_s`
    stall_for_s: float = math.inf
    wt200: bool = False  # left in the mode that understands an older model
    integrating: bool = False  # somebody else's integration runs
    has_wait: bool = True  # the header :COMMunicate:WAIT is known
    identity: str = ""  # what *IDN? says instead


def digits(value: float, count: int) -> str:
    """Return a number in the instrument's form: so many digits before an exponent that is a multiple of three."""
    if value == 0:
        return f"{0:.{count - 1}f}E+00"
    exponent = math.floor(math.log10(abs(value)) / 3 + 1e-9) * 3
    scaled = value / 10.0**exponent
    whole = len(f"{abs(scaled):.0f}")
    return f"{scaled:.{max(count - whole, 0)}f}E{exponent:+03d}"


def stepped(value: float, range_value: float) -> float:
    """Round to the last of five digits of a range."""
    step = 10.0 ** (math.floor(math.log10(range_value)) - 4)
    return round(value / step) * step


class Clock:
    """Tell when the instrument updates: number and time (ns) of the update that shows, and when the next one comes."""

    def __init__(self, truth: Truth, flaws: AnalyzerFlaws) -> None:
        self._truth = truth
        self.flaws = flaws
        self.panel = Panel(truth, "node.ac", flaws, number=70)

    def with_period(self, period_s: float) -> Clock:
        """Return a clock with another update interval; the window goes with it."""
        return Clock(self._truth, replace(self.flaws, period_s=period_s, window_s=period_s))

    def shown(self, now_ns: int) -> tuple[int, int]:
        """Return number and time of the last update that came."""
        number, _ = self.panel.tick(now_ns)
        while not self._comes(number) or self._came_ns(number) > now_ns:
            number -= 1
        return number, self._due_ns(number)

    def next_ns(self, now_ns: int) -> int:
        """Return when the next update comes."""
        number = self.shown(now_ns)[0] + 1
        for candidate in range(number, number + 600):
            if self._comes(candidate):
                return self._came_ns(candidate)
        return self._came_ns(number + 600)

    def _due_ns(self, number: int) -> int:
        return self._truth.start_ns + round((self.flaws.phase_s + number * self.flaws.period_s) * NS)

    def _came_ns(self, number: int) -> int:
        return self._due_ns(number) + round(self.flaws.late_s * NS * _chance(number, 11))

    def _comes(self, number: int) -> bool:
        flaws, at_s = self.flaws, (self._due_ns(number) - self._truth.start_ns) / NS
        if flaws.stall_at_s is not None and flaws.stall_at_s <= at_s < flaws.stall_at_s + flaws.stall_for_s:
            return False
        return _chance(number, 12) >= flaws.skip_share


def _chance(number: int, stream: int) -> float:
    """Return a number in [0, 1) that is always the same for an update."""
    mixed = (number * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 29)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed >> 11) / 2**53


@dataclass(slots=True)
class Integration:
    """Integrate as the instrument does: reset, started, stopped; continues from where it was stopped."""

    state: str = "RES"
    since_ns: int = 0
    kept_j: float = 0.0
    kept_ns: int = 0

    def start(self, now_ns: int) -> None:
        """Start, or go on."""
        self.state, self.since_ns = "STAR", now_ns

    def stop(self, panel: Panel, now_ns: int) -> None:
        """Stop, keeping what was counted."""
        self.kept_j, self.kept_ns = self.joules(panel, now_ns), self.elapsed_ns(now_ns, panel)
        self.state = "STOP"

    def reset(self) -> None:
        """Forget what was counted."""
        self.state, self.kept_j, self.kept_ns = "RES", 0.0, 0

    def elapsed_ns(self, now_ns: int, panel: Panel) -> int:
        """Return for how long it has counted."""
        if self.state != "STAR":
            return self.kept_ns
        began, fresh = self._began(panel, now_ns)
        return (0 if fresh else self.kept_ns) + max(now_ns - began, 0)

    def joules(self, panel: Panel, now_ns: int) -> float:
        """Return what it shows, in J."""
        if self.state != "STAR" or now_ns <= self.since_ns:
            return self.kept_j
        flaws, (began, fresh) = panel.flaws, self._began(panel, now_ns)
        true = panel.true_j(began, now_ns)
        shown = (0.0 if fresh else self.kept_j) + (1 + flaws.gain_error) * true + flaws.offset_w * (now_ns - began) / NS
        return shown if flaws.modulus_j is None else shown % flaws.modulus_j

    def _began(self, panel: Panel, now_ns: int) -> tuple[int, bool]:
        """Return since when it counts, and whether it was reset since it was started."""
        if panel.flaws.reset_at_s is not None:
            reset_ns = panel.truth.start_ns + round(panel.flaws.reset_at_s * NS)
            if self.since_ns < reset_ns <= now_ns:
                return reset_ns, True
        return self.since_ns, False


@dataclass(frozen=True, slots=True)
class Input:
    """Hold how an input is set: ranges (V, A), and by what readings are scaled."""

    volts: float
    amperes: float
    scale: float = 1.0

    @property
    def watts(self) -> float:
        """Return the power range."""
        return self.volts * self.amperes * self.scale


def element_items(watts: float, given: Input, hertz: float = HERTZ) -> dict[str, str]:
    """Return what one element shows of a power; beyond its ranges it shows words."""
    apparent = watts / FACTOR
    amperes = apparent / VOLTS
    over_u, over_i = OVER * given.volts < VOLTS, amperes > OVER * given.amperes * given.scale
    over = over_u or over_i
    nothing = amperes < 0.005 * given.amperes * given.scale
    shown = 0.0 if nothing else 1.0
    return {
        "U": OVER_RANGE if over_u else digits(stepped(VOLTS, given.volts), 5),
        "I": OVER_RANGE if over_i else digits(shown * stepped(amperes, given.amperes * given.scale), 5),
        "P": OVER_RANGE if over else digits(shown * stepped(watts, given.watts), 5),
        "S": OVER_RANGE if over else digits(shown * stepped(apparent, given.watts), 5),
        "Q": OVER_RANGE if over else digits(shown * stepped(math.sqrt(apparent**2 - watts**2), given.watts), 5),
        "LAMB": NO_DATA if over or nothing else digits(round(FACTOR, 4), 5),
        "FU": OVER_RANGE if over_u else digits(hertz, 5),
        "FI": NO_DATA if nothing else digits(hertz, 5),
    }
