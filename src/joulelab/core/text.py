"""Keep texts and numbers that others wrote from breaking files, databases and terminals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# What stands for a twin's name where its meters were served and read as real ones are.
SERVED_TWIN = "node served by joulelab twin"


def finite_or_none(value: float | None) -> float | None:
    """Return a number, None for NaN and infinity: JSON has neither."""
    return value if value is not None and math.isfinite(value) else None


def escape_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: lone surrogates (bytes that were no UTF-8) are written as `\udc80`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def escape_unprintable(text: str) -> str:
    r"""Return a text that moves no cursor and sets no colour: what is not printable is written as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def suggest_name(wrong: str, valid: Iterable[str]) -> str:
    """Return advice for a wrong name: the nearest valid one if there is one, and all of them."""
    import difflib

    names = list(valid)
    if not names:
        return "there is none"
    # Whoever types a part of a name means that one; of equally near ones, people mean the one that begins alike.
    near = [name for name in names if wrong and wrong in name] or difflib.get_close_matches(wrong, names, 5, 0.5)
    listed = f"valid: {', '.join(names)}"
    if not near:
        return listed

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, name, wrong).ratio() + 0.02 * _count_alike(name, wrong)

    return f"did you mean {max(near, key=likeness)!r}? {listed}"


def _count_alike(one: str, other: str) -> int:
    """Return how many letters two names begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))
