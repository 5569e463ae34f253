"""Wait in tests for what other processes and threads do, as long as a busy machine needs and no longer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str = "it", within_s: float = 120.0, most_s: float = 0.2) -> Found:
    """Return what a condition gives once it holds, asking ever less often; fail where it does not in time."""
    end = time.monotonic() + within_s
    wait_s = min(0.01, most_s)
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {within_s:g} s"
        time.sleep(wait_s)
        wait_s = min(1.2 * wait_s, most_s)
    return found
