"""Make readings of known power in virtual time."""

from __future__ import annotations

import numpy as np

from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec

NS = 1_000_000_000
BASE = 1_000 * NS  # second 0 of the tests, in monotonic ns
TOOK = 20_000  # ns from before a read to after it


def ns(seconds: float) -> int:
    return BASE + round(seconds * NS)


def stamps(seconds) -> np.ndarray:
    return BASE + np.rint(np.asarray(seconds, dtype=np.float64) * NS).astype(np.int64)


def readings(seconds, values, took=TOOK) -> Readings:
    """Return readings whose middle lies at these seconds."""
    t0 = stamps(seconds) - took // 2
    return Readings.from_rows(t0, t0 + took, np.asarray(values, dtype=np.float64))


def accuracy(gain=0.0, **more) -> Accuracy:
    return Accuracy("assumed", gain, **{"shared": "", "reference": "test", **more})


def power_spec(update_s=0.1, window_s=0.1, *, gain=0.0, limits=None, seen=1.0, **more) -> Spec:
    return Spec(
        "power_w", "power", "W", "power", update_s, window_s, seen, limits=limits, accuracy=accuracy(gain, **more)
    )


def counter_spec(update_s=0.1, *, gain=0.0, limits=None, seen=1.0, modulus=None, **more) -> Spec:
    return Spec(
        "energy_j", "energy", "J", "counter", update_s, None, seen, modulus, limits, accuracy=accuracy(gain, **more)
    )


def stepped(seconds, watts: float, tick_s: float = 0.1, phase_s: float = 0.0):
    """Return what a counter of constant power shows that steps every tick, in J."""
    t = np.asarray(seconds, dtype=np.float64)
    return watts * (np.floor((t - phase_s) / tick_s + 1e-9) * tick_s + phase_s)
