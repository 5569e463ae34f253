"""Old name of a module, to be deleted when `plan when` has dropped kept forecasts."""

from typing import Any


def pairs(series: str) -> list[Any]:  # noqa: ARG001
    """Return nothing: series are not kept any more."""
    return []
