"""Keep the numbers of a node's file within what a node can be: finite, not too large, negative only where it may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from joulelab.core.toml_reading import Place

MOST_W: Final = 1e6
MOST_S: Final = 1e9  # 30 years
MOST: Final = 1e15  # of any other number
MOST_GPUS: Final = 64
MOST_PIECES: Final = 1_000_000  # stretches of constant power in a run
_LIMITS: Final = {
    "packages": 64.0,
    "slowdown": 100.0,
    "spread": 1.0,
    "flutter": 1.0,
    "gain_sd": 1.0,
    "time_scatter": 1.0,
    "power_scatter": 1.0,
}
_ABOVE_ZERO: Final = ("ask_s", "rated_w", "flutter_s", "warm_up_s", "packages")
_SIGNED: Final = ("gain_error", "offset_w", "seed")
_ENDLESS: Final = "_for_s"  # a flaw that lasts for ever
_FREE: Final = ("sources", "title", "calibrated", "chosen")


def find_wrong_numbers(table: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the place of every number of a node's file that cannot be meant, and what is wrong with it."""
    for place, number in _find_numbers({name: part for name, part in table.items() if name not in _FREE}, ()):
        key = next(part for part in reversed(place) if isinstance(part, str))
        wrong = _check_number(key, number, free="options" in place[:-1] or "parameters" in place[:-1])
        if wrong:
            shown = "".join(f" {part + 1}" if isinstance(part, int) else f".{part}" for part in place)
            yield place, f"{shown[1:]} is {number:g}, {wrong}"


def _find_numbers(value: Any, place: Place) -> Iterator[tuple[Place, float]]:
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_numbers(part, (*place, name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place, _make_float(value)


def _make_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # whole numbers of TOML have any length
        return math.inf


def _check_number(key: str, number: float, *, free: bool) -> str:
    """Return what is wrong with a number, nothing where it may be."""
    if number == math.inf and key.endswith(_ENDLESS):
        return ""
    if not math.isfinite(number):
        return "not a finite number"
    most = find_limit(key)
    if abs(number) > most:
        return f"more than {most:g}{find_unit(key)}"
    if number <= 0 and key in _ABOVE_ZERO:
        return "not above 0"
    signed = free or key in _SIGNED or key.endswith(("_c", "phase_s"))
    return "negative" if number < 0 and not signed else ""


def find_limit(key: str) -> float:
    """Return the most that a number may be, by its key."""
    by_unit = {" W": MOST_W, " s": MOST_S}.get(find_unit(key), MOST)
    return _LIMITS.get(key, by_unit)


def find_unit(key: str) -> str:
    """Return the unit of a key behind a blank: s, W, or nothing."""
    return " W" if key.endswith("_w") else " s" if key.endswith("_s") or key == "seconds" else ""


def check_run(seconds: float, pieces: float, where: str) -> None:
    """Refuse a run that takes too long (s), or has too many pieces. Raises ConfigError."""
    if not seconds <= MOST_S:
        raise ConfigError(
            f"the run would take {seconds:.3g} s", where=where, why=f"at most {MOST_S:g} s can be laid out"
        )
    if not pieces <= MOST_PIECES:
        why = f"at most {MOST_PIECES:,} can be laid out"
        then = "fewer epochs, or a longer flutter_s of its stages"
        raise ConfigError(f"the run would have {pieces:.3g} pieces", where=where, why=why, next=then)
