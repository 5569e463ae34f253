"""Word the traps of rack PDUs and UPSs: what each is about, how bad it is, and which one ends it.

From the makers' MIBs: PowerNet (APC), PDU2 (Raritan), Sentry4 (Server Technology), EATON-EPDU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Severity = Literal["info", "warning", "critical", "unknown"]

_ENTERPRISES = "1.3.6.1.4.1."
_APC, _RARITAN = f"{_ENTERPRISES}318.", f"{_ENTERPRISES}13742.6."
_SENTRY, _EATON = f"{_ENTERPRISES}1718.4.", f"{_ENTERPRISES}534.6.6.7."
# Starts, links and logins of any device: they are counted, and are no condition that lasts.
_STANDARD = "1.3.6.1.6.3.1.1.5."
_OTHERS = re.compile(r"[^A-Za-z0-9 .:/_-]")


@dataclass(frozen=True, slots=True)
class Worded:
    """Hold what a trap says: what it is about, of which part, and how bad that is now; `ends` where it is over."""

    trap: str
    severity: Severity
    part: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """Describe a trap that tells the new state of something: in which column, and what its values mean."""

    trap: str
    column: str
    states: Mapping[int, Severity | None]  # None: it is well again


# PowerNet has one trap for each condition and one for its end.
_CONDITIONS: tuple[tuple[int, int, str, Severity], ...] = (
    (5, 9, "on battery", "critical"),
    (224, 225, "bank or phase near overload", "warning"),
    (226, 227, "bank or phase overload", "critical"),
    (274, 275, "near overload", "warning"),
    (276, 277, "overload", "critical"),
)
_PAIRS = {f"{_APC}0.{begin}": (trap, severity, False) for begin, _, trap, severity in _CONDITIONS}
_PAIRS |= {f"{_APC}0.{end}": (trap, severity, True) for _, end, trap, severity in _CONDITIONS}
_APC_PHASE = f"{_APC}1.1.12.2.3.1.1.4."

_RARITAN_STATES: dict[int, Severity | None] = {
    0: "critical", 1: None, 2: "critical", 3: "warning", 4: None, 5: "warning", 6: "critical", 7: None, 8: None,
}  # fmt: skip
_RARITAN_PARTS = {60: "unit", 61: "inlet", 62: "phase", 63: "outlet", 64: "outlet pole", 65: "breaker"}
_RARITAN_SENSORS = {
    1: "current", 2: "peak current", 3: "unbalanced current", 4: "voltage", 5: "active power", 6: "apparent power",
    7: "power factor", 10: "temperature", 14: "switch", 15: "trip",
}  # fmt: skip
_RARITAN_STATE = re.compile(rf"{re.escape(_RARITAN)}5\.\d+\.\d+\.1\.3\.([\d.]+)\.(\d+)")

_SENTRY_STATES: dict[int, Severity | None] = {
    0: None, 8: "critical", 9: "critical", 10: "critical", 11: "critical", 12: "critical", 13: "critical",
    14: "critical", 15: "warning", 16: "warning", 17: "critical", 18: "critical", 19: "warning", 20: "warning",
}  # fmt: skip
_EATON_STATES: dict[int, Severity | None] = {0: None, 1: "warning", 2: "critical", 3: "warning", 4: "critical"}
_CHANGES: dict[str, _Change] = {
    f"{_SENTRY}100.0.{number}": _Change(trap, f"{_SENTRY}1.{column}.", _SENTRY_STATES)
    for number, trap, column in (
        (2, "input cord", "3.3.1.2"),
        (3, "input cord active power", "3.3.1.4"),
        (4, "input cord apparent power", "3.3.1.6"),
        (6, "input cord out of balance", "3.3.1.13"),
        (7, "line", "4.3.1.2"),
        (8, "line current", "4.3.1.4"),
        (9, "phase", "5.3.1.2"),
        (10, "phase voltage", "5.3.1.4"),
        (12, "breaker or fuse", "6.3.1.1"),
        (13, "branch", "7.3.1.2"),
        (14, "branch current", "7.3.1.4"),
        (15, "outlet", "8.3.1.2"),
        (17, "outlet current", "8.3.1.4"),
        (18, "outlet active power", "8.3.1.8"),
    )
}
_CHANGES |= {
    f"{_EATON}0.11": _Change("input voltage", f"{_EATON}3.2.1.4.", _EATON_STATES),
    f"{_EATON}0.12": _Change("input current", f"{_EATON}3.3.1.5.", _EATON_STATES),
}


def worded(oid: str, values: Mapping[str, int | str]) -> Worded:
    """Return what a trap says; one that is not known goes by its object identifier."""
    if oid in _PAIRS:
        trap, severity, ends = _PAIRS[oid]
        phase = next((v for name, v in values.items() if name.startswith(_APC_PHASE)), None)
        return Worded(trap, severity, "" if phase is None else f"phase {_plain(phase)}", ends)
    if oid in _CHANGES:
        return _changed(_CHANGES[oid], values)
    if oid.startswith(f"{_RARITAN}0.") and oid.rpartition(".")[2] in map(str, _RARITAN_PARTS):
        return _raritan(_RARITAN_PARTS[int(oid.rpartition(".")[2])], values)
    if oid.startswith(_STANDARD):
        return Worded(oid, "info")
    return Worded(oid[:128], "unknown")


def _changed(change: _Change, values: Mapping[str, int | str]) -> Worded:
    for name, value in values.items():
        if name.startswith(change.column):
            return _stated(change.trap, name.removeprefix(change.column), change.states, value)
    return Worded(change.trap, "unknown")


def _raritan(part: str, values: Mapping[str, int | str]) -> Worded:
    for name, value in values.items():
        if match := _RARITAN_STATE.fullmatch(name):
            sensor = _RARITAN_SENSORS.get(int(match[2]), f"sensor {match[2]}")
            return _stated(f"{part} {sensor}", match[1], _RARITAN_STATES, value)
    return Worded(part, "unknown")


def _stated(trap: str, part: str, states: Mapping[int, Severity | None], value: int | str) -> Worded:
    if not isinstance(value, int) or value not in states:
        return Worded(trap, "unknown", part[:32])
    severity = states[value]
    return Worded(trap, severity or "info", part[:32], ends=severity is None)


def _plain(value: int | str) -> str:
    return _OTHERS.sub("?", str(value))[:16]
