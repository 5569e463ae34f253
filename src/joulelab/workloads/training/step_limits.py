"""Decide when a training ends: after a number of steps or seconds, at a target, or when it no longer improves."""

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
        """Count a step; return whether it was the last, on all ranks at the same step."""
        self._steps += 1
        if self.max_steps and self._steps >= self.max_steps:
            self.reached = "max_steps"
        elif self.max_seconds and self._ranks.is_any(self._now() - self._began >= self.max_seconds):
            self.reached = "max_seconds"
        return bool(self.reached)


class Goal:
    """Compare the quality after each epoch with a target, and with the best so far; `reached` names what ended it.

    A target of 0 is none, a patience of 0 waits for ever.
    """

    def __init__(self, target: float, patience: int, *, is_lower_better: bool = False) -> None:
        self.reached = ""
        self._sign = -1.0 if is_lower_better else 1.0
        self._target, self._patience = target, patience
        self._best, self._waited = float("-inf"), 0

    def is_set(self) -> bool:
        """Return whether there is a target or a patience."""
        return bool(self._target or self._patience)

    def update(self, quality: float) -> bool:
        """Take the quality after one more epoch; return whether the training ends with it."""
        value = self._sign * quality
        self._waited = 0 if value > self._best else self._waited + 1
        self._best = max(self._best, value)
        if self._target and value >= self._sign * self._target:
            self.reached = "target"
        elif self._patience and self._waited >= self._patience:
            self.reached = "patience"
        return bool(self.reached)
