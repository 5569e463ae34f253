"""Understand what a WT300E answers: pure functions from text to numbers, and checks that the numbers fit together.

Answers have no checksum. What an element shows is redundant, though (S = U I, P = S times the power factor), and an
integral moves no faster than the ranges let it: a number that breaks either is not taken.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

NAN = float("nan")
JOULES_PER_WH = 3600.0
# What is asked of each element, in this order.
ITEMS = ("U", "I", "P", "S", "LAMB", "FU", "WH")
STATES = {"RES": "reset", "STAR": "running", "STOP": "stopped", "TIM": "timed out", "ERR": "in error"}
# An input is over its range beyond 140 % of it, both inputs of a power at once.
_OVER = 1.4**2 * 1.05
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}(?:\.[0-9]{0,9})?(?:E[+-]?[0-9]{1,2})?\Z")
_REGISTER = re.compile(r"[0-9]{1,5}\Z")
_PRINTABLE = re.compile(r"[ -~]+\Z")
_TOLD_WRONG = 3  # jumps of an integral after which it is taken as what it now is


@dataclass(frozen=True, slots=True)
class Identity:
    """Hold who answers."""

    maker: str
    model: str
    serial: str
    firmware: str


@dataclass(frozen=True, slots=True)
class Element:
    """Hold what one element shows, in V, A, W, VA, 1, Hz, J; NaN for what it has not, infinite for over its range."""

    volts: float
    amperes: float
    watts: float
    apparent: float
    factor: float
    hertz: float
    joules: float


def parse_identity(text: str, known: Sequence[str], where: str) -> Identity:
    """Return who answered `*IDN?`. Raises ReadFailed for noise, Unavailable for another instrument."""
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != 4 or not _PRINTABLE.match(text) or not all(fields[:2]):
        raise ReadFailed("it does not say who it is", where=where, why=f"*IDN? gave {text[:60]!r}", next=_next(where))
    identity = Identity(*fields)
    if identity.maker.upper() != "YOKOGAWA" or identity.model.upper() not in known:
        raise Unavailable(
            "this is not an analyzer that joulelab knows",
            where=where,
            why=f"it says {text[:80]!r}",
            next=f"known are YOKOGAWA {', '.join(known)}; check the resource",
        )
    return identity


def parse_numbers(text: str, count: int, where: str) -> list[float]:
    """Return so many numbers: NaN for NAN (no data), infinity for INF (over range). Raises ReadFailed."""
    fields = text.split(",")
    if len(fields) != count:
        why = f"{len(fields)} instead of {count}: {text[:60]!r}"
        raise ReadFailed("the answer has another number of values", where=where, why=why, next="it is tried again")
    return [parse_number(field, where) for field in fields]


def parse_number(text: str, where: str) -> float:
    """Return one number, NaN for NAN, infinity for INF. Raises ReadFailed."""
    word = text.strip().upper()
    if word == "NAN":
        return NAN
    if word == "INF":
        return math.inf
    if not _NUMBER.match(word):
        raise ReadFailed("a value is no number", where=where, why=repr(text[:40]), next="it is tried again")
    return float(word)


def parse_register(text: str, where: str) -> int:
    """Return a status register. Raises ReadFailed."""
    if not _REGISTER.match(text.strip()) or (value := int(text)) > 0xFFFF:
        raise ReadFailed("a register is no number", where=where, why=repr(text[:40]), next="it is tried again")
    return value


def parse_state(text: str, where: str) -> str:
    """Return the state of the integration in its short form. Raises ReadFailed."""
    word = text.strip().upper()
    for short in STATES:
        if word.startswith(short) and word.isalpha() and word.isascii() and len(word) <= 6:
            return short
    raise ReadFailed("the state of the integration is not known", where=where, why=repr(text[:40]), next=_next(where))


def parse_error(text: str, where: str) -> tuple[int, str]:
    """Return the oldest error of the queue and its text, (0, ...) where there is none. Raises ReadFailed."""
    number, comma, said = text.partition(",")
    if not comma or not re.fullmatch(r"-?[0-9]{1,5}", number.strip()):
        raise ReadFailed("the error queue is not understood", where=where, why=repr(text[:60]), next=_next(where))
    return int(number), said.strip().strip('"')


def split_update(text: str, where: str) -> tuple[int, str]:
    """Return the events and the values' text of an answer to both. Raises ReadFailed."""
    parts = text.split(";")
    if len(parts) != 2:
        why = repr(text[:60])
        raise ReadFailed("the answer has not two parts", where=where, why=why, next="it is tried again")
    return parse_register(parts[0], where), parts[1]


def parse_update(text: str, elements: int, where: str) -> tuple[list[Element], float]:
    """Return what the elements show, and for how long the instrument has integrated (s). Raises ReadFailed."""
    numbers = parse_numbers(text, elements * len(ITEMS) + 1, where)
    shown = []
    for k in range(elements):
        volts, amperes, watts, apparent, factor, hertz, wh = numbers[k * len(ITEMS) : (k + 1) * len(ITEMS)]
        shown.append(Element(volts, amperes, watts, apparent, factor, hertz, wh * JOULES_PER_WH))
    if math.isinf(numbers[-1]) or numbers[-1] < 0:
        raise ReadFailed("the integration's time is no time", where=where, why=text[-40:], next="it is tried again")
    return shown, numbers[-1]


def fits(element: Element, range_w: float) -> bool:
    """Tell whether an element's numbers fit together, within their digits."""
    room = 0.002 * abs(element.apparent) + 0.001 * range_w
    if abs(element.apparent - element.volts * element.amperes) > room:
        return False
    if math.isnan(element.factor):  # it has none where next to nothing flows
        return abs(element.apparent) < 0.02 * range_w and abs(element.watts) <= abs(element.apparent) + room
    return abs(element.watts - element.apparent * element.factor) <= room


def check_element(element: Element, range_w: float, where: str, *, redundant: bool) -> None:
    """Refuse what is over its range, beyond any range, or does not fit together. Raises ReadFailed."""
    numbers = (element.volts, element.amperes, element.watts, element.apparent)
    if any(map(math.isinf, (*numbers, element.factor))):
        why = "the instrument shows no number: voltage or current are above 140 % of the range"
        raise ReadFailed("over range", where=where, why=why, next="set a larger voltage_v or current_a")
    if any(map(math.isnan, numbers)):
        raise ReadFailed("the instrument has no data", where=where, why="it says NAN", next="it is tried again")
    if abs(element.watts) > _OVER * range_w:
        why = f"{element.watts:g} W on a range of {range_w:g} W"
        raise ReadFailed("the power is beyond its range", where=where, why=why, next="it is tried again")
    if redundant and not fits(element, range_w):
        why = f"U {element.volts:g} I {element.amperes:g} P {element.watts:g} S {element.apparent:g}"
        raise ReadFailed("the values do not fit together", where=where, why=why, next="it is tried again")


class Integral:
    """Follow one element's integral: it moves no faster than the ranges let it, and falls only with its time."""

    def __init__(self) -> None:
        self._joules = NAN
        self._time_s = 0.0
        self._t_ns = 0
        self._wrong = 0

    def check(self, joules: float, time_s: float, t_ns: int, range_w: float) -> bool:
        """Tell whether the integral can be what it says; after some jumps it is taken as it is."""
        passed_s = (t_ns - self._t_ns) / NS
        if math.isnan(joules) or math.isnan(time_s):
            return True  # it does not integrate
        if math.isinf(joules):
            return False
        if math.isnan(self._joules):
            fine = True
        elif time_s < self._time_s:
            fine = abs(joules) <= _OVER * range_w * (time_s + 2)
        else:
            room = _OVER * range_w * (passed_s + 0.2) + 2 * resolution_j(max(abs(joules), abs(self._joules)))
            fine = abs(joules - self._joules) <= room and time_s - self._time_s <= passed_s + 2
        self._wrong = 0 if fine else self._wrong + 1
        if not fine and self._wrong <= _TOLD_WRONG:
            return False
        self._joules, self._time_s, self._t_ns, self._wrong = joules, time_s, t_ns, 0
        return True


def resolution_j(joules: float) -> float:
    """Return the last of the six digits that an integral has, in J."""
    wh = abs(joules) / JOULES_PER_WH
    return 10.0 ** (math.floor(math.log10(wh)) - 5) * JOULES_PER_WH if wh > 0 else 0.0


def _next(where: str) -> str:
    return f"run joulelab doctor {where.removeprefix('meter ')}"
