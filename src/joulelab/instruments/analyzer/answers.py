"""Parse the answers of a WT300E, and check that their numbers are possible.

Answers have no checksum. But the values of an element are redundant (S = U I, P = S times the power factor), and an
integral rises no faster than the ranges allow: a number that contradicts either is refused.
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

JOULES_PER_WH = 3600.0
# The values of each element, in this order.
ITEMS = ("U", "I", "P", "S", "LAMB", "FU", "WH")
INTEGRATION_STATES = {"RES": "reset", "STAR": "running", "STOP": "stopped", "TIM": "timed out", "ERR": "in error"}
# An input is over its range beyond 140 % of it; a power is the product of two inputs.
_OVER_RANGE = 1.4**2 * 1.05
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}(?:\.[0-9]{0,9})?(?:E[+-]?[0-9]{1,2})?\Z")
_IMPOSSIBLE_LIMIT = 3  # an integral that stays at an impossible value longer than this is believed


@dataclass(frozen=True, slots=True)
class Identity:
    """Hold the answer to `*IDN?`."""

    maker: str
    model: str
    serial: str
    firmware: str


@dataclass(frozen=True, slots=True)
class Element:
    """Hold the values of one element in V, A, W, VA, 1, Hz, J; NaN: it has none, infinite: over its range."""

    volts: float
    amperes: float
    watts: float
    apparent: float
    factor: float
    hertz: float
    joules: float


def refuse_answer(what: str, where: str, text: str, reason: str = "wrong-answer") -> ReadFailed:
    """Return the error for an answer that is not understood or not possible."""
    return ReadFailed(what, where=where, why=repr(text[:60]), next="it is tried again", code=f"read-failed.{reason}")


def parse_identity(text: str, known: Sequence[str], where: str) -> Identity:
    """Parse the answer to `*IDN?`. Raises ReadFailed for noise, Unavailable for another instrument."""
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != 4 or not re.fullmatch(r"[ -~]+", text) or not all(fields[:2]):
        raise refuse_answer("*IDN? is not answered with an identity", where, text)
    identity = Identity(*fields)
    if identity.maker.upper() != "YOKOGAWA" or identity.model.upper() not in known:
        what, why = "this is not an analyzer that joulelab knows", f"*IDN? gives {text[:80]!r}"
        advice = f"known are YOKOGAWA {', '.join(known)}; check the resource"
        raise Unavailable(what, where=where, why=why, next=advice, code="unavailable.unknown-model")
    return identity


def parse_number(text: str, where: str) -> float:
    """Parse one number: NaN for NAN (no data), infinity for INF (over range). Raises ReadFailed."""
    word = text.strip().upper()
    if word in ("NAN", "INF"):
        return float(word)
    if not _NUMBER.match(word):
        raise refuse_answer("a value is not a number", where, text)
    return float(word)


def parse_register(text: str, where: str) -> int:
    """Parse a status register of 16 bits. Raises ReadFailed."""
    if not re.fullmatch(r"[0-9]{1,5}", text.strip()) or (value := int(text)) > 0xFFFF:
        raise refuse_answer("a status register is not a number", where, text)
    return value


def parse_range(text: str, where: str) -> float:
    """Parse a range in V or A, NaN for that of an external sensor. Raises ReadFailed."""
    if text.strip().upper().startswith("EXT"):
        return math.nan
    value = parse_number(text, where)
    if not 0 < value < 1e4:
        raise refuse_answer("a range is not possible", where, text)
    return value


def parse_integration(text: str, where: str) -> str:
    """Parse the state of the integration, to its short form. Raises ReadFailed."""
    word = text.strip().upper()
    for short in INTEGRATION_STATES:
        if word.startswith(short) and re.fullmatch(r"[A-Z]{3,6}", word):
            return short
    raise refuse_answer("the state of the integration is unknown", where, text)


def parse_error(text: str, where: str) -> tuple[int, str]:
    """Parse the oldest entry of the error queue: number (0: none) and text. Raises ReadFailed."""
    number, comma, words = text.partition(",")
    if not comma or not re.fullmatch(r"-?[0-9]{1,5}", number.strip()):
        raise refuse_answer("the error queue is not understood", where, text)
    return int(number), words.strip().strip('"')


def parse_update(text: str, elements: int, where: str) -> tuple[int, list[Element], float, int]:
    """Parse one update: status, values of the elements, seconds of integration, status after. Raises ReadFailed."""
    parts = text.split(";")
    fields = parts[1].split(",") if len(parts) == 3 else []
    if len(fields) != elements * len(ITEMS) + 1:
        raise refuse_answer("an update has the wrong number of values", where, text)
    numbers = [parse_number(field, where) for field in fields]
    if math.isinf(numbers[-1]) or numbers[-1] < 0:
        raise refuse_answer("the time of integration is not possible", where, fields[-1])
    values = []
    for k in range(0, len(numbers) - 1, len(ITEMS)):
        volts, amperes, watts, apparent, factor, hertz, wh = numbers[k : k + len(ITEMS)]
        values.append(Element(volts, amperes, watts, apparent, factor, hertz, wh * JOULES_PER_WH))
    return parse_register(parts[0], where), values, numbers[-1], parse_register(parts[2], where)


def is_consistent(element: Element, range_w: float) -> bool:
    """Return whether the values of an element agree with each other, within their digits."""
    room = 0.002 * abs(element.apparent) + 0.001 * range_w
    if abs(element.apparent - element.volts * element.amperes) > room:
        return False
    if math.isnan(element.factor):  # there is none where next to nothing flows
        return abs(element.apparent) < 0.02 * range_w and abs(element.watts) <= abs(element.apparent) + room
    return abs(element.watts - element.apparent * element.factor) <= room


def check_element(element: Element, range_w: float, where: str, *, is_redundant: bool) -> None:
    """Refuse values over range, beyond any range, or in contradiction to each other. Raises ReadFailed."""
    numbers = (element.volts, element.amperes, element.watts, element.apparent)
    if any(map(math.isinf, (*numbers, element.factor))):
        why = "voltage or current is above 140 % of its range, so the instrument has no number"
        advice = "set a larger voltage_v or current_a"
        raise ReadFailed("over range", where=where, why=why, next=advice, code="read-failed.over-range")
    shown = f"U {element.volts:g} I {element.amperes:g} P {element.watts:g} S {element.apparent:g}"
    if any(map(math.isnan, numbers)):
        raise refuse_answer("the instrument has no data", where, shown, "no-data")
    if abs(element.watts) > _OVER_RANGE * range_w:
        raise refuse_answer(f"the power is beyond its range of {range_w:g} W", where, shown, "impossible-power")
    if is_redundant and not is_consistent(element, range_w):
        raise refuse_answer("the values contradict each other", where, shown, "contradiction")


class Integral:
    """Follow one element's integral: it rises no faster than the ranges allow, and falls only with its time."""

    def __init__(self) -> None:
        self._joules = math.nan
        self._time_s = 0.0
        self._t_ns = 0
        self._impossible = 0  # values in a row

    def accept_value(self, joules: float, time_s: float, t_ns: int, range_w: float) -> bool:
        """Return whether the integral is possible; an impossible value that stays is accepted after some readings."""
        if math.isnan(joules) or math.isnan(time_s):
            return True  # it does not integrate
        if math.isinf(joules):
            return False
        passed_s = (t_ns - self._t_ns) / NS
        if math.isnan(self._joules):
            is_possible = True
        elif time_s < self._time_s:
            is_possible = abs(joules) <= _OVER_RANGE * range_w * (time_s + 2)
        else:
            room = _OVER_RANGE * range_w * (passed_s + 0.2) + 2 * find_integral_step(
                max(abs(joules), abs(self._joules))
            )
            is_possible = abs(joules - self._joules) <= room and time_s - self._time_s <= passed_s + 2
        self._impossible = 0 if is_possible else self._impossible + 1
        if not is_possible and self._impossible <= _IMPOSSIBLE_LIMIT:
            return False
        self._joules, self._time_s, self._t_ns, self._impossible = joules, time_s, t_ns, 0
        return True


def find_integral_step(joules: float) -> float:
    """Return the last of the six digits of an integral, in J."""
    wh = abs(joules) / JOULES_PER_WH
    return 10.0 ** (math.floor(math.log10(wh)) - 5) * JOULES_PER_WH if wh > 0 else 0.0
