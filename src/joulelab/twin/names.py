"""Suggest the valid name that a wrong one is nearest to."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """Return advice for a wrong name: the nearest valid one if there is one, and all of them."""
    names = sorted(valid)
    longer = [name for name in names if wrong and wrong in name]
    close = longer or difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    listed = ", ".join(names)
    return f"did you mean {close[0]!r}? valid: {listed}" if close else f"valid: {listed}"
