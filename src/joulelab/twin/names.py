"""Suggest the valid name that a wrong one is nearest to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(wrong: str, valid: Iterable[str]) -> str:
    """Return advice for a wrong name among names in any order."""
    return suggest_name(wrong, sorted(valid))
