"""Make what hosts drew for tests of racks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.plan.measured_runs import HostTrace

if TYPE_CHECKING:
    from collections.abc import Sequence


def draw(
    watts: Sequence[float] | np.ndarray, run: str = "a", host: str = "node", step_s: float = 2.0, **more: Any
) -> HostTrace:
    """Return a series of powers (W) as a host drew it, by a meter without error."""
    values = np.asarray(watts, dtype=float)
    settings: dict[str, Any] = {
        "run": run, "name": run, "host": host, "side": "ac", "scopes": ("node.ac",), "start_utc_s": 1000.0,
        "duration_s": values.size * step_s, "step_s": step_s, "raw_s": step_s, "window_s": 0.0,
        "mean_w": values, "high_w": values, "gain": 0.0,
    }  # fmt: skip
    return HostTrace(**settings | more)


def wandering(size: int, memory: float, seed: int, mean: float = 7000.0, spread: float = 60.0) -> np.ndarray:
    """Return a series that forgets by a factor per step."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=size) * np.sqrt(1 - memory**2)
    found, last = np.empty(size), rng.normal()
    for n, value in enumerate(noise):
        last = memory * last + value
        found[n] = last
    return mean + spread * found
