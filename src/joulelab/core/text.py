"""Read durations and addresses, suggest names, and make texts from outside safe for files, databases and terminals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The name of a twin whose meters were served and read like real ones.
SERVED_TWIN = "node served by joulelab twin"
TIME_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}


def finite_or_none(value: float | None) -> float | None:
    """Return a number, None for NaN and infinity: JSON has neither."""
    return value if value is not None and math.isfinite(value) else None


def escape_surrogates(text: str) -> str:
    r"""Make a text encodable: lone surrogates (bytes that were not UTF-8) are written as `\udc80`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_unprintable(text: str) -> str:
    r"""Make a text safe for terminals: unprintable characters are written as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def suggest_name(wrong: str, valid: Iterable[str]) -> str:
    """Return advice for a wrong name: the nearest valid name, if one is near, and all valid names."""
    names = list(valid)
    if not names:
        return "there is none"
    near = find_near_name(wrong, names)
    listed = f"valid: {', '.join(names)}"
    return listed if near is None else f"did you mean {near!r}? {listed}"


def find_near_name(wrong: str, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant, None if none is near."""
    import difflib

    cutoff = 0.6  # of three or four letters one may be wrong; at 0.5, `recorder` would mean `node`
    # A part of a name means that name; of equally near names, the one with the same beginning is likely.
    near = [name for name in names if wrong and wrong in name] or difflib.get_close_matches(wrong, names, 5, cutoff)

    def rate_likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, name, wrong).ratio() + 0.02 * _count_alike(name, wrong)

    return max(near, key=rate_likeness, default=None)


def _count_alike(one: str, other: str) -> int:
    """Return the length of the common beginning of two names."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


def read_seconds(value: float | str, least: float = 0.0) -> float:
    """Return a time in s; plain numbers are seconds. Raises ConfigError for other texts and times below `least`."""
    if isinstance(value, str):
        import re  # not at the top: every process that writes marks loads this module

        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)\s*", value)
        unit = match[2].replace("µ", "u") if match else ""
        found = float(match[1]) * TIME_UNITS[unit] if match and unit in TIME_UNITS else math.nan
    else:
        found = float(value)
    if not math.isfinite(found):
        raise ConfigError(f"{value!r} is not a time", next="write it as 10, 10s, 500ms or 2m", code="config.no-time")
    if found < least:
        raise ConfigError(f"{value!r} is too short", next=f"at least {least:g}s", code="config.time-too-short")
    return found


def is_loopback(host: str) -> bool:
    """Return whether a server at this address can be reached only from this machine."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def name_one(kind: str) -> str:
    """Return the name of one unit of a kind of work: `sample` of `samples`, `batch` of `batches`, `query`."""
    if kind.endswith("ies") and len(kind) > 4:
        return f"{kind[:-3]}y"
    if kind.endswith(("ches", "shes", "sses", "xes")):
        return kind[:-2]
    return kind if kind.endswith("ss") else kind.removesuffix("s")
