"""Behave as a Yokogawa WT300E does on its interfaces: one state for all clients and cables."""

from __future__ import annotations

import itertools
import math
import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.instruments.analyzer.accuracy import Ranges
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.truth import Truth

_NODE = re.compile(r"(\[?):?([A-Za-z]+)(<x>)?(\]?)")
_TOKEN = re.compile(r"([A-Z]+)(\d*)\Z")


@dataclass(frozen=True, slots=True)
class MessageUnit:
    """Hold one unit of a message: its header's words in capitals, whether it asks, and its data."""

    words: tuple[str, ...]
    asks: bool
    data: str


@dataclass(frozen=True, slots=True)
class CommandMatch:
    """Hold the pattern that a header matches, and the number at its end (1 by default)."""

    pattern: str
    number: int


def split_message(message: str) -> list[MessageUnit]:
    """Return the units of a message; a header without a colon continues the path of the one before."""
    found: list[MessageUnit] = []
    path: tuple[str, ...] = ()
    for part in message.split(";"):
        header, _, data = part.strip().partition(" ")
        if not header:
            continue
        asks = header.endswith("?")
        header = header.removesuffix("?").upper()
        if header.startswith("*"):
            found.append(MessageUnit((header,), asks, data.strip()))
            continue
        words = tuple(header.removeprefix(":").split(":"))
        if not header.startswith(":"):
            words = path + words
        path = words[:-1]
        found.append(MessageUnit(words, asks, data.strip()))
    return found


class CommandDictionary:
    """Match headers with the known patterns; `[:NORMal]` is optional, `<x>` is a number."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._forms = [(form, pattern) for pattern in patterns for form in _list_forms(pattern)]

    def find_command(self, words: tuple[str, ...]) -> CommandMatch | None:
        """Return the command of a header, None for an unknown one."""
        for form, pattern in self._forms:
            if len(form) == len(words) and (number := _match_form(form, words)) is not None:
                return CommandMatch(pattern, number)
        return None


def is_word(token: str, mnemonic: str) -> bool:
    """Return whether a token is a mnemonic: its capitals, then any part of the rest."""
    short = "".join(itertools.takewhile(lambda c: c.isupper() or c.isdigit(), mnemonic))
    return token.startswith(short) and mnemonic.upper().startswith(token)


def _list_forms(pattern: str) -> list[tuple[tuple[str, bool], ...]]:
    nodes = [(name, bool(x), bool(optional)) for optional, name, x, _ in _NODE.findall(pattern)]
    choices = [((), ((name, x),)) if optional else (((name, x),),) for name, x, optional in nodes]
    return [tuple(itertools.chain.from_iterable(pick)) for pick in itertools.product(*choices)]


def _match_form(form: tuple[tuple[str, bool], ...], words: tuple[str, ...]) -> int | None:
    number = 1
    for (mnemonic, numbered), word in zip(form, words, strict=True):
        token = _TOKEN.match(word)
        if token is None or not is_word(token[1], mnemonic) or (token[2] and not numbered):
            return None
        number = int(token[2]) if token[2] else number
    return number


VOLTS, FACTOR, HERTZ = 230.0, 0.98, 50.0
OVER = 1.4  # of a range; beyond, the instrument shows no number
NO_DATA, OVER_RANGE = "NAN", "INF"
ELEMENTS = {"WT310E": (1,), "WT310EH": (1,), "WT332E": (1, 3), "WT333E": (1, 2, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerFlaws(PanelFlaws):
    """Describe the twin's analyzer on top of a panel: its model, its clock, and the settings of its last user.

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
    late_s: float = 0.0  # the longest delay of an update
    skip_share: float = 0.0  # share of missing updates
    stall_at_s: float | None = None  # no updates from then on for `stall_for_s`
    stall_for_s: float = math.inf
    wt200: bool = False  # left in the mode of an older model
    integrating: bool = False  # an integration of another user runs
    has_wait: bool = True  # the header :COMMunicate:WAIT is known
    identity: str = ""  # another answer to *IDN?


def format_digits(value: float, count: int) -> str:
    """Format a number with `count` digits and an exponent that is a multiple of three."""
    if value == 0:
        return f"{0:.{count - 1}f}E+00"
    exponent = math.floor(math.log10(abs(value)) / 3 + 1e-9) * 3
    scaled = value / 10.0**exponent
    whole = len(f"{abs(scaled):.0f}")
    return f"{scaled:.{max(count - whole, 0)}f}E{exponent:+03d}"


def round_to_range(value: float, range_value: float) -> float:
    """Round to the last of five digits of a range."""
    step = 10.0 ** (math.floor(math.log10(range_value)) - 4)
    return round(value / step) * step


class UpdateClock:
    """Compute when the instrument updates: number and time (ns) of the current update, time of the next one."""

    def __init__(self, truth: Truth, flaws: AnalyzerFlaws) -> None:
        self._truth = truth
        self.flaws = flaws
        self.panel = Panel(truth, "node.ac", flaws, number=70)

    def with_period(self, period_s: float) -> UpdateClock:
        """Return a clock with another update interval; the window goes with it."""
        return UpdateClock(self._truth, replace(self.flaws, period_s=period_s, window_s=period_s))

    def find_update(self, now_ns: int) -> tuple[int, int]:
        """Return number and due time (ns) of the last update."""
        number, _ = self.panel.find_update(now_ns)
        while not self._has_update(number) or self._came_ns(number) > now_ns:
            number -= 1
        return number, self._due_ns(number)

    def next_ns(self, now_ns: int) -> int:
        """Return the time of the next update."""
        number = self.find_update(now_ns)[0] + 1
        for candidate in range(number, number + 600):
            if self._has_update(candidate):
                return self._came_ns(candidate)
        return self._came_ns(number + 600)

    def _due_ns(self, number: int) -> int:
        return self._truth.start_ns + round((self.flaws.phase_s + number * self.flaws.period_s) * NS)

    def _came_ns(self, number: int) -> int:
        return self._due_ns(number) + round(self.flaws.late_s * NS * _draw_chance(number, 11))

    def _has_update(self, number: int) -> bool:
        flaws, at_s = self.flaws, (self._due_ns(number) - self._truth.start_ns) / NS
        if flaws.stall_at_s is not None and flaws.stall_at_s <= at_s < flaws.stall_at_s + flaws.stall_for_s:
            return False
        return _draw_chance(number, 12) >= flaws.skip_share


def _draw_chance(number: int, stream: int) -> float:
    """Return a pseudo-random number in [0, 1), always the same for an update."""
    mixed = (number * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 29)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed >> 11) / 2**53


@dataclass(slots=True)
class Integration:
    """Integrate as the instrument does: reset, started, stopped; a new start adds to the old value."""

    state: str = "RES"
    since_ns: int = 0
    kept_j: float = 0.0
    kept_ns: int = 0

    def start_counting(self, now_ns: int) -> None:
        """Start or continue."""
        self.state, self.since_ns = "STAR", now_ns

    def stop_counting(self, panel: Panel, now_ns: int) -> None:
        """Stop and hold the values."""
        self.kept_j, self.kept_ns = self.read_joules(panel, now_ns), self.elapsed_ns(now_ns, panel)
        self.state = "STOP"

    def reset_count(self) -> None:
        """Set the values to zero."""
        self.state, self.kept_j, self.kept_ns = "RES", 0.0, 0

    def elapsed_ns(self, now_ns: int, panel: Panel) -> int:
        """Return the time of integration."""
        if self.state != "STAR":
            return self.kept_ns
        began, fresh = self._find_begin(panel, now_ns)
        return (0 if fresh else self.kept_ns) + max(now_ns - began, 0)

    def read_joules(self, panel: Panel, now_ns: int) -> float:
        """Return the integrated energy in J."""
        if self.state != "STAR" or now_ns <= self.since_ns:
            return self.kept_j
        flaws, (began, fresh) = panel.flaws, self._find_begin(panel, now_ns)
        true = panel.true_j(began, now_ns)
        shown = (0.0 if fresh else self.kept_j) + (1 + flaws.gain_error) * true + flaws.offset_w * (now_ns - began) / NS
        return shown if flaws.modulus_j is None else shown % flaws.modulus_j

    def _find_begin(self, panel: Panel, now_ns: int) -> tuple[int, bool]:
        """Return when counting began, and whether a reset did it."""
        if panel.flaws.reset_at_s is not None:
            reset_ns = panel.truth.start_ns + round(panel.flaws.reset_at_s * NS)
            if self.since_ns < reset_ns <= now_ns:
                return reset_ns, True
        return self.since_ns, False


def list_element_items(watts: float, given: Ranges, hertz: float = HERTZ) -> dict[str, str]:
    """Return the values that one element shows for a power; beyond its ranges they are words."""
    apparent = watts / FACTOR
    amperes = apparent / VOLTS
    over_u, over_i = OVER * given.volts < VOLTS, amperes > OVER * given.amperes * given.scale
    over = over_u or over_i
    nothing = amperes < 0.005 * given.amperes * given.scale
    shown = 0.0 if nothing else 1.0
    return {
        "U": OVER_RANGE if over_u else format_digits(round_to_range(VOLTS, given.volts), 5),
        "I": OVER_RANGE if over_i else format_digits(shown * round_to_range(amperes, given.amperes * given.scale), 5),
        "P": OVER_RANGE if over else format_digits(shown * round_to_range(watts, given.watts), 5),
        "S": OVER_RANGE if over else format_digits(shown * round_to_range(apparent, given.watts), 5),
        "Q": OVER_RANGE
        if over
        else format_digits(shown * round_to_range(math.sqrt(apparent**2 - watts**2), given.watts), 5),
        "LAMB": NO_DATA if over or nothing else format_digits(round(FACTOR, 4), 5),
        "FU": OVER_RANGE if over_u else format_digits(hertz, 5),
        "FI": NO_DATA if nothing else format_digits(hertz, 5),
    }


RATES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
VOLT_RANGES = (15.0, 30.0, 60.0, 150.0, 300.0, 600.0)
_LARGE = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
AMPERE_RANGES = {
    "WT310E": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, *_LARGE),
    "WT310EH": (1.0, 2.0, 5.0, 10.0, 20.0, 40.0),
    "WT332E": _LARGE,
    "WT333E": _LARGE,
}
# Settings: header, kind of its data, value at power-on.
SETTINGS: dict[str, tuple[str, str]] = {
    "COMMunicate:HEADer": ("bool", "1"),
    "COMMunicate:VERBose": ("bool", "1"),
    "COMMunicate:REMote": ("bool", "0"),
    "SYSTem:COMMunicate:COMMand": ("WT300|WT200", "WT300"),
    "[INPut]:CFACtor": ("3|6", "3"),
    "[INPut]:WIRing": ("P1W2|P1W3|P3W3|P3W4|V3A3", "P1W2"),
    "[INPut]:MODE": ("RMS|VMEan|DC", "RMS"),
    "[INPut]:VOLTage:RANGe": ("volts", "300"),
    "[INPut]:VOLTage:AUTO": ("bool", "0"),
    "[INPut]:CURRent:RANGe": ("amperes", "5"),
    "[INPut]:CURRent:AUTO": ("bool", "0"),
    "[INPut]:SCALing[:STATe]": ("bool", "0"),
    "[INPut]:SCALing:CT[:ELEMent<x>]": ("ratio", "1"),
    "[INPut]:SCALing:VT[:ELEMent<x>]": ("ratio", "1"),
    "[INPut]:SCALing:SFACtor[:ELEMent<x>]": ("ratio", "1"),
    "[INPut]:FILTer[:LINE]": ("bool", "0"),
    "RATE": ("rate", "0.1"),
    "HOLD": ("bool", "0"),
    "MEASure:AVERaging[:STATe]": ("bool", "0"),
    "MEASure:MHOLd": ("bool", "0"),
    "NUMeric:FORMat": ("ASCii|FLOat", "ASCii"),
    "NUMeric[:NORMal]:NUMber": ("count", "3"),
    "NUMeric[:NORMal]:ITEM<x>": ("item", "NONE"),
    "STATus:FILTer<x>": ("RISE|FALL|BOTH|NEVer", "RISE"),
    "INTEGrate:MODE": ("NORMal|CONTinuous", "NORMal"),
    "INTEGrate:TIMer": ("text", "0,0,0"),
}
ACTIONS = (
    "COMMunicate:WAIT", "INTEGrate:STARt", "INTEGrate:STOP", "INTEGrate:RESet", "INTEGrate:STATe",
    "NUMeric[:NORMal]:VALue", "STATus:EESR", "STATus:CONDition", "STATus:ERRor",
)  # fmt: skip
# Refused while an integration runs.
FIXED = ("RANGe", "AUTO", "CFACtor", "WIRing", "INPut]:MODE", "RATE", "SCALing", "INTEGrate")
FUNCTIONS = ("U", "I", "P", "S", "Q", "LAMBda", "FU", "FI", "WH", "WHP", "WHM", "TIME", "NONE")
_MULTIPLIERS = {"": 1.0, "M": 1e-3, "K": 1e3}
_QUANTITY = re.compile(r"([+-]?\d+(?:\.\d*)?(?:E[+-]?\d+)?)(M|K)?(V|A|S)?\Z")


class WaitTimeout(Exception):
    """Raised when a wait does not end before its timeout."""


class Instrument:
    """Execute messages; `execute` may be called from several threads."""

    def __init__(self, truth: Truth, flaws: AnalyzerFlaws, *, now: Callable[[], int] = monotonic_ns) -> None:
        self.flaws = flaws
        self._now = now
        self._lock = threading.RLock()
        self._clock = UpdateClock(truth, flaws)
        actions = ACTIONS if flaws.has_wait else ACTIONS[1:]
        self._headers = CommandDictionary((*SETTINGS, *actions))
        self._set: dict[tuple[str, int], str] = {
            ("RATE", 1): str(flaws.period_s),
            ("[INPut]:VOLTage:RANGe", 1): str(flaws.voltage_v),
            ("[INPut]:CURRent:RANGe", 1): str(flaws.current_a),
            ("[INPut]:CURRent:AUTO", 1): str(int(flaws.auto_range)),
            ("[INPut]:WIRing", 1): {"WT332E": "P3W3", "WT333E": "P3W4"}.get(flaws.model, "P1W2"),
            ("SYSTem:COMMunicate:COMMand", 1): "WT200" if flaws.wt200 else "WT300",
            ("[INPut]:SCALing[:STATe]", 1): str(int(flaws.ct_ratio != 1)),
        } | {("[INPut]:SCALing:CT[:ELEMent<x>]", e): str(flaws.ct_ratio) for e in (1, 2, 3)}
        self._errors: list[tuple[int, str]] = []
        self._integration = Integration()
        if flaws.integrating:
            self._integration.start_counting(now())
        self._seen = self._clock.find_update(now())[0]
        self._latched = self._condition = 0

    @property
    def panel_is_silent(self) -> bool:
        """Return whether requests get no answer now."""
        return self._clock.panel.is_silent(self._now())

    @property
    def panel_is_garbled(self) -> bool:
        """Return whether answers are noise now."""
        return self._clock.panel.is_garbled(self._now())

    def execute_message(self, message: str, timeout_s: float = 60.0) -> str:
        """Execute a message; return the answers in one line, empty without a question. Raises WaitTimeout."""
        until = self._now() + round(timeout_s * NS)
        answers: list[str] = []
        for unit in split_message(message):
            wait_ns = 0
            with self._lock:
                answer = self._execute_unit(unit)
                if answer is not None:
                    answers.append(answer)
            if self._is_wait(unit):
                while (wait_ns := self._wait_ns(unit.data)) > 0:
                    if self._now() + wait_ns > until:
                        threading.Event().wait(max(until - self._now(), 0) / NS)
                        raise WaitTimeout
                    threading.Event().wait(wait_ns / NS)
        return ";".join(answers)

    def _is_wait(self, unit: MessageUnit) -> bool:
        found = self._headers.find_command(unit.words)
        return found is not None and found.pattern == "COMMunicate:WAIT" and not unit.asks

    def _wait_ns(self, data: str) -> int:
        """Return the time until the register may change, 0 if it has one of the bits already."""
        with self._lock:
            now = self._now()
            self._latch_conditions(now)
            if self._read_events(now) & int(data or 0):
                return 0
            return max(self._clock.next_ns(now) - now, 1)

    def _execute_unit(self, unit: MessageUnit) -> str | None:
        if unit.words[0].startswith("*"):
            return self._execute_common(unit)
        found = self._headers.find_command(unit.words)
        if found is None:
            self._add_error(113, "Undefined header")
            return None
        if found.pattern in ACTIONS:
            return self._execute_action(found.pattern, unit)
        if unit.asks:
            return self._format_setting(found.pattern, found.number)
        self._change_setting(found.pattern, found.number, unit.data)
        return None

    def _execute_common(self, unit: MessageUnit) -> str | None:
        match unit.words[0], unit.asks:
            case "*IDN", True:
                return self.flaws.identity or f"YOKOGAWA,{self.flaws.model},C2QG12345V,F1.04"
            case "*OPT", True:
                return "C7,EX1,G5"
            case "*OPC", True:
                return "1"
            case "*CLS", False:
                self._errors.clear()
                self._latched = 0
                self._seen = self._clock.find_update(self._now())[0]
            case _:
                self._add_error(113, "Undefined header")
        return None

    def _format_setting(self, pattern: str, number: int) -> str:
        value = self._get_setting(pattern, number)
        kind = SETTINGS[pattern][0]
        if kind in ("volts", "amperes", "ratio", "rate"):
            value = format_digits(float(value), 5)
        if self._get_setting("COMMunicate:HEADer") == "0":
            return value
        header = pattern.replace("[:", ":").replace("[", "").replace("]", "").replace("<x>", str(number)).upper()
        return f":{header} {value}"

    def _get_setting(self, pattern: str, number: int = 1) -> str:
        return self._set.get((pattern, number), SETTINGS[pattern][1])

    def _change_setting(self, pattern: str, number: int, data: str) -> None:
        value = self._check_value(SETTINGS[pattern][0], data.upper())
        if value is None:
            self._add_error(131, "Invalid suffix or data")
        elif self._integration.state == "STAR" and any(part in pattern for part in FIXED):
            self._add_error(813, "Cannot be set while integration is running")
        else:
            self._set[pattern, number] = value
            if SETTINGS[pattern][0] == "rate":
                self._clock = self._clock.with_period(float(value))
                self._seen = self._clock.find_update(self._now())[0]

    def _check_value(self, kind: str, data: str) -> str | None:
        if kind == "bool":
            return {"1": "1", "ON": "1", "0": "0", "OFF": "0"}.get(data)
        if "|" in kind:
            return next((word.upper() for word in kind.split("|") if is_word(data, word)), None)
        if kind == "item":
            function, _, element = data.partition(",")
            known = next((f.upper() for f in FUNCTIONS if is_word(function, f)), None)
            return None if known is None else f"{known},{element[:4] or '1'}"
        if kind == "text":
            return data
        parsed = _QUANTITY.match(data)
        if parsed is None:
            return None
        value = float(parsed[1]) * _MULTIPLIERS[parsed[2] or ""]
        half = 0.5 if self._get_setting("[INPut]:CFACtor") == "6" else 1.0
        allowed: dict[str, tuple[float, ...]] = {
            "rate": RATES,
            "volts": tuple(half * v for v in VOLT_RANGES),
            "amperes": tuple(half * a for a in AMPERE_RANGES[self.flaws.model]),
        }
        if kind in allowed:
            return next((repr(v) for v in allowed[kind] if abs(v - value) <= 1e-6 * v), None)
        if kind == "count":
            return str(int(value)) if 1 <= value <= 255 else None
        return repr(value) if value > 0 else None

    def _execute_action(self, pattern: str, unit: MessageUnit) -> str | None:
        now = self._now()
        match pattern, unit.asks:
            case "NUMeric[:NORMal]:VALue", True:
                return self._list_values(now)
            case "STATus:EESR", True:
                return self._event_register(now)
            case "STATus:CONDition", True:
                return str(self._read_conditions(now))
            case "STATus:ERRor", True:
                code, text = self._errors.pop(0) if self._errors else (0, "No error")
                return f'{code},"{text}"'
            case "INTEGrate:STATe", True:
                return self._integration.state
            case "COMMunicate:WAIT", False:
                pass
            case (("INTEGrate:STARt" | "INTEGrate:STOP" | "INTEGrate:RESet"), False):
                self._control_integration(pattern, now)
            case _:
                self._add_error(113, "Undefined header")
        return None

    def _control_integration(self, pattern: str, now: int) -> None:
        running = self._integration.state == "STAR"
        if pattern == "INTEGrate:STARt" and not running:
            self._integration.start_counting(now)
        elif pattern == "INTEGrate:STOP" and running:
            self._integration.stop_counting(self._clock.panel, now)
        elif pattern == "INTEGrate:RESet" and not running:
            self._integration.reset_count()
        else:
            self._add_error(844, "Not possible in this state of the integration")

    def _list_values(self, now: int) -> str:
        number, at = self._clock.find_update(now)
        shown: dict[tuple[str, str], str] = {}
        elements = ELEMENTS[self.flaws.model]
        watts = self._clock.panel.power_w(self._clock.panel.truth.start_ns if number < 0 else at) / len(elements)
        joules = self._integration.read_joules(self._clock.panel, at) / len(elements)
        for element in elements:
            for name, value in list_element_items(watts, self._get_ranges(element)).items():
                shown[name, str(element)] = value
            shown["WH", str(element)] = format_digits(joules / 3600, 6)
        over = shown["P", "1"] == OVER_RANGE
        shown |= {(name, "SIGM"): shown[name, "1"] for name in ("U", "I", "LAMB")}
        for name, each in (("P", watts), ("S", watts / FACTOR)):
            shown[name, "SIGM"] = OVER_RANGE if over else format_digits(each * len(elements), 6)
        shown["WH", "SIGM"] = format_digits(joules * len(elements) / 3600, 6)
        seconds = self._integration.elapsed_ns(at, self._clock.panel) // NS
        values = []
        for item in range(1, int(self._get_setting("NUMeric[:NORMal]:NUMber")) + 1):
            function, _, of = self._get_setting("NUMeric[:NORMal]:ITEM<x>", item).partition(",")
            known = shown.get(({"LAMBDA": "LAMB", "WHP": "WH"}.get(function, function), of), NO_DATA)
            values.append(str(seconds) if function == "TIME" else known)
        return ",".join(values)

    def _get_ranges(self, element: int) -> Ranges:
        volts = float(self._get_setting("[INPut]:VOLTage:RANGe"))
        scaled = self._get_setting("[INPut]:SCALing[:STATe]") == "1"
        ratio = float(self._get_setting("[INPut]:SCALing:CT[:ELEMent<x>]", element)) if scaled else 1.0
        amperes = float(self._get_setting("[INPut]:CURRent:RANGe"))
        if self._get_setting("[INPut]:CURRent:AUTO") == "1":
            amperes = AMPERE_RANGES[self.flaws.model][-1]
        return Ranges(volts, amperes, ratio)

    # Status: the event register collects events until it is read.

    def _read_conditions(self, now: int) -> int:
        bits = 0b10 if self._integration.state == "STAR" else 0
        _, at = self._clock.find_update(now)
        elements = ELEMENTS[self.flaws.model]
        watts = self._clock.panel.power_w(at) / len(elements)
        for element in elements:
            shown = list_element_items(watts, self._get_ranges(element))
            if OVER_RANGE in (shown["U"], shown["I"]):
                bits |= 1 << (6 + 3 * (element - 1))
        return bits

    def _latch_conditions(self, now: int) -> None:
        condition = self._read_conditions(now)
        self._latched |= condition & ~self._condition
        self._condition = condition

    def _read_events(self, now: int) -> int:
        updated = self._clock.find_update(now)[0] > self._seen
        heeded = self._get_setting("STATus:FILTer<x>", 1) in ("FALL", "BOTH")
        return self._latched & ~1 | int(updated and heeded)

    def _event_register(self, now: int) -> str:
        self._latch_conditions(now)
        events = self._read_events(now)
        self._latched, self._seen = 0, self._clock.find_update(now)[0]
        return str(events)

    def _add_error(self, code: int, text: str) -> None:
        self._errors.append((code, text))
