"""Change the flaws of a server while it runs in this process, so that no test has to guess when it will be ready."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def change_flaws(running: Any, **flaws: Any) -> None:
    """Set flaws of a dataclass that is frozen for everybody else; servers look at it with every request."""
    assert set(flaws) <= {field.name for field in fields(running)}
    for name, value in flaws.items():
        object.__setattr__(running, name, value)
