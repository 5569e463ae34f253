"""Behave as a Yokogawa WT300E does on its interfaces: one state, whoever asks and by whatever cable."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.twin.servers._scpi_language import Dictionary, Unit, full_header, is_word, units
from joulelab.twin.servers._scpi_readings import (
    ELEMENTS,
    FACTOR,
    NO_DATA,
    OVER_RANGE,
    AnalyzerFlaws,
    Clock,
    Input,
    Integration,
    digits,
    element_items,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.truth import Truth

RATES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
VOLT_RANGES = (15.0, 30.0, 60.0, 150.0, 300.0, 600.0)
_LARGE = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
AMPERE_RANGES = {
    "WT310E": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, *_LARGE),
    "WT310EH": (1.0, 2.0, 5.0, 10.0, 20.0, 40.0),
    "WT332E": _LARGE,
    "WT333E": _LARGE,
}
# What may be set: header, what it takes, what it is at power-on.
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


class NotYet(Exception):
    """Say that a wait did not end in time."""


class Instrument:
    """Execute messages; `execute` may be called from several threads."""

    def __init__(self, truth: Truth, flaws: AnalyzerFlaws, *, now: Callable[[], int] = monotonic_ns) -> None:
        self.flaws = flaws
        self._now = now
        self._lock = threading.RLock()
        self._clock = Clock(truth, flaws)
        actions = ACTIONS if flaws.has_wait else ACTIONS[1:]
        self._headers = Dictionary((*SETTINGS, *actions))
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
            self._integration.start(now())
        self._seen = self._clock.shown(now())[0]
        self._latched = self._condition = 0

    @property
    def panel_is_silent(self) -> bool:
        """Tell whether a request that comes now stays without an answer."""
        return self._clock.panel.is_silent(self._now())

    @property
    def panel_is_garbled(self) -> bool:
        """Tell whether answers are nonsense now."""
        return self._clock.panel.is_garbled(self._now())

    def execute(self, message: str, timeout_s: float = 60.0) -> str:
        """Execute a message; return the answers in one line, empty where nothing was asked. Raises NotYet."""
        until = self._now() + round(timeout_s * NS)
        answers: list[str] = []
        for unit in units(message):
            wait_ns = 0
            with self._lock:
                answer = self._unit(unit)
                if answer is not None:
                    answers.append(answer)
            if self._is_wait(unit):
                while (wait_ns := self._wait_ns(unit.data)) > 0:
                    if self._now() + wait_ns > until:
                        threading.Event().wait(max(until - self._now(), 0) / NS)
                        raise NotYet
                    threading.Event().wait(wait_ns / NS)
        return ";".join(answers)

    def _is_wait(self, unit: Unit) -> bool:
        found = self._headers.find(unit.words)
        return found is not None and found.pattern == "COMMunicate:WAIT" and not unit.asks

    def _wait_ns(self, data: str) -> int:
        """Return for how long the register stays as it is, 0 where it shows what is waited for."""
        with self._lock:
            now = self._now()
            self._observe(now)
            if self._events(now) & int(data or 0):
                return 0
            return max(self._clock.next_ns(now) - now, 1)

    def _unit(self, unit: Unit) -> str | None:
        if unit.words[0].startswith("*"):
            return self._common(unit)
        found = self._headers.find(unit.words)
        if found is None:
            self._error(113, "Undefined header")
            return None
        if found.pattern in ACTIONS:
            return self._action(found.pattern, unit)
        if unit.asks:
            return self._answer(found.pattern, found.number)
        self._change(found.pattern, found.number, unit.data)
        return None

    def _common(self, unit: Unit) -> str | None:
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
                self._seen = self._clock.shown(self._now())[0]
            case _:
                self._error(113, "Undefined header")
        return None

    def _answer(self, pattern: str, number: int) -> str:
        value = self._value(pattern, number)
        kind = SETTINGS[pattern][0]
        if kind in ("volts", "amperes", "ratio", "rate"):
            value = digits(float(value), 5)
        if self._value("COMMunicate:HEADer") == "0":
            return value
        return f"{full_header(pattern, number)} {value}"

    def _value(self, pattern: str, number: int = 1) -> str:
        return self._set.get((pattern, number), SETTINGS[pattern][1])

    def _change(self, pattern: str, number: int, data: str) -> None:
        value = self._checked(SETTINGS[pattern][0], data.upper())
        if value is None:
            self._error(131, "Invalid suffix or data")
        elif self._integration.state == "STAR" and any(part in pattern for part in FIXED):
            self._error(813, "Cannot be set while integration is running")
        else:
            self._set[pattern, number] = value
            if SETTINGS[pattern][0] == "rate":
                self._clock = self._clock.with_period(float(value))
                self._seen = self._clock.shown(self._now())[0]

    def _checked(self, kind: str, data: str) -> str | None:
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
        half = 0.5 if self._value("[INPut]:CFACtor") == "6" else 1.0
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

    def _action(self, pattern: str, unit: Unit) -> str | None:
        now = self._now()
        match pattern, unit.asks:
            case "NUMeric[:NORMal]:VALue", True:
                return self._numbers(now)
            case "STATus:EESR", True:
                return self._event_register(now)
            case "STATus:CONDition", True:
                return str(self._conditions(now))
            case "STATus:ERRor", True:
                code, text = self._errors.pop(0) if self._errors else (0, "No error")
                return f'{code},"{text}"'
            case "INTEGrate:STATe", True:
                return self._integration.state
            case "COMMunicate:WAIT", False:
                pass
            case (("INTEGrate:STARt" | "INTEGrate:STOP" | "INTEGrate:RESet"), False):
                self._integrate(pattern, now)
            case _:
                self._error(113, "Undefined header")
        return None

    def _integrate(self, pattern: str, now: int) -> None:
        running = self._integration.state == "STAR"
        if pattern == "INTEGrate:STARt" and not running:
            self._integration.start(now)
        elif pattern == "INTEGrate:STOP" and running:
            self._integration.stop(self._clock.panel, now)
        elif pattern == "INTEGrate:RESet" and not running:
            self._integration.reset()
        else:
            self._error(844, "Not possible in this state of the integration")

    def _numbers(self, now: int) -> str:
        number, at = self._clock.shown(now)
        shown: dict[tuple[str, str], str] = {}
        elements = ELEMENTS[self.flaws.model]
        watts = self._clock.panel.power_w(self._clock.panel.truth.start_ns if number < 0 else at) / len(elements)
        joules = self._integration.joules(self._clock.panel, at) / len(elements)
        for element in elements:
            for name, value in element_items(watts, self._input(element)).items():
                shown[name, str(element)] = value
            shown["WH", str(element)] = digits(joules / 3600, 6)
        over = shown["P", "1"] == OVER_RANGE
        shown |= {(name, "SIGM"): shown[name, "1"] for name in ("U", "I", "LAMB")}
        for name, each in (("P", watts), ("S", watts / FACTOR)):
            shown[name, "SIGM"] = OVER_RANGE if over else digits(each * len(elements), 6)
        shown["WH", "SIGM"] = digits(joules * len(elements) / 3600, 6)
        seconds = self._integration.elapsed_ns(at, self._clock.panel) // NS
        values = []
        for item in range(1, int(self._value("NUMeric[:NORMal]:NUMber")) + 1):
            function, _, of = self._value("NUMeric[:NORMal]:ITEM<x>", item).partition(",")
            known = shown.get(({"LAMBDA": "LAMB", "WHP": "WH"}.get(function, function), of), NO_DATA)
            values.append(str(seconds) if function == "TIME" else known)
        return ",".join(values)

    def _input(self, element: int) -> Input:
        volts = float(self._value("[INPut]:VOLTage:RANGe"))
        scaled = self._value("[INPut]:SCALing[:STATe]") == "1"
        ratio = float(self._value("[INPut]:SCALing:CT[:ELEMent<x>]", element)) if scaled else 1.0
        amperes = float(self._value("[INPut]:CURRent:RANGe"))
        if self._value("[INPut]:CURRent:AUTO") == "1":
            amperes = AMPERE_RANGES[self.flaws.model][-1]
        return Input(volts, amperes, ratio)

    # Status: the register of events keeps what happened since it was read.

    def _conditions(self, now: int) -> int:
        bits = 0b10 if self._integration.state == "STAR" else 0
        _, at = self._clock.shown(now)
        elements = ELEMENTS[self.flaws.model]
        watts = self._clock.panel.power_w(at) / len(elements)
        for element in elements:
            shown = element_items(watts, self._input(element))
            if OVER_RANGE in (shown["U"], shown["I"]):
                bits |= 1 << (6 + 3 * (element - 1))
        return bits

    def _observe(self, now: int) -> None:
        condition = self._conditions(now)
        self._latched |= condition & ~self._condition
        self._condition = condition

    def _events(self, now: int) -> int:
        updated = self._clock.shown(now)[0] > self._seen
        heeded = self._value("STATus:FILTer<x>", 1) in ("FALL", "BOTH")
        return self._latched & ~1 | int(updated and heeded)

    def _event_register(self, now: int) -> str:
        self._observe(now)
        events = self._events(now)
        self._latched, self._seen = 0, self._clock.shown(now)[0]
        return str(events)

    def _error(self, code: int, text: str) -> None:
        self._errors.append((code, text))
