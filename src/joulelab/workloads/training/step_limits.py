"""Stop after a number of steps or seconds, on all ranks at the same step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.workloads.training.ranks import Ranks


class Limits:
    """Count steps and time; `reached` names the limit that ended it, empty while there is none. 0 is no limit."""

    def __init__(
        self, max_steps: int, max_seconds: float, ranks: Ranks, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_steps, self.max_seconds = max_steps, max_seconds
        self.reached = ""
        self._ranks, self._now = ranks, now
        self._steps, self._began = 0, now()

    def begin(self) -> None:
        """Let the time begin now."""
        self._began = self._now()

    def step(self) -> bool:
        """Count a step; tell whether it was the last."""
        self._steps += 1
        if self.max_steps and self._steps >= self.max_steps:
            self.reached = "max_steps"
        elif self.max_seconds and self._ranks.any(self._now() - self._began >= self.max_seconds):
            self.reached = "max_seconds"
        return bool(self.reached)
