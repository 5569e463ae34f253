"""Keep the numbers of a node's file within what a node can be: finite, not too large, negative only where it may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_FREE: Final = ("sources", "title", "calibrated")


def check(table: Mapping[str, Any], where: str) -> None:
    """Refuse a number of a node's file that cannot be meant, with its key and its limit. Raises ConfigError."""
    for path, key, number in _numbers({name: part for name, part in table.items() if name not in _FREE}, "", ""):
        wrong = _wrong(key, number, free=".options." in path or ".parameters." in path)
        if wrong:
            raise ConfigError(f"{path} is {number:g}, {wrong}", where=where)


def _numbers(value: Any, path: str, key: str) -> Iterator[tuple[str, str, float]]:
    """Return every number with its path and the last key of it; tables of a list are told by number, from 1."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _numbers(part, f"{path}.{name}" if path else name, name)
    elif isinstance(value, list):
        for place, part in enumerate(value, 1):
            yield from _numbers(part, f"{path} {place}", key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, key, _float(value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # whole numbers of TOML have any length
        return math.inf


def _wrong(key: str, number: float, *, free: bool) -> str:
    """Return what is wrong with a number, nothing where it may be."""
    if number == math.inf and key.endswith(_ENDLESS):
        return ""
    if not math.isfinite(number):
        return "not a finite number"
    most = limit_of(key)
    if abs(number) > most:
        return f"more than {most:g}{unit_of(key)}"
    if number <= 0 and key in _ABOVE_ZERO:
        return "not above 0"
    signed = free or key in _SIGNED or key.endswith(("_c", "phase_s"))
    return "negative" if number < 0 and not signed else ""


def limit_of(key: str) -> float:
    """Return the most that a number may be, by its key."""
    by_unit = {" W": MOST_W, " s": MOST_S}.get(unit_of(key), MOST)
    return _LIMITS.get(key, by_unit)


def unit_of(key: str) -> str:
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
