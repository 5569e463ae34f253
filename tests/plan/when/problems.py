"""Make rates and jobs that tests of shifting share."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps
from joulelab.plan.when.job import Job, Wanted, job_given
from joulelab.plan.when.slots import Slots, slots_of

MONDAY_S = 1_794_787_200.0  # 2026-11-16 00:00 UTC
HOUR_S = 3600.0


def daily(days: int = 7, *, deep: float = 150.0, noise: float = 0.0, seed: int = 1, **label: Any) -> Steps:
    """Return hourly intensities that are low at night, with noise."""
    hours = np.arange(24 * days)
    values = 350.0 + deep * np.sin(hours / 24 * 2 * np.pi) + np.random.default_rng(seed).normal(0, noise, len(hours))
    values = np.maximum(values, 5.0)  # a carbon intensity is not below 0
    about = Label(**{"kind": "average", "unit": "g/kWh", "name": "made up", **label})
    return Steps(about, MONDAY_S + HOUR_S * hours, values, MONDAY_S + 86_400.0 * days)


def slots(rate: Steps, hours: float) -> Slots:
    return slots_of(rate, MONDAY_S, MONDAY_S + hours * HOUR_S)


def job(**wanted: Any) -> Job:
    return job_given(Wanted(**{"duration_s": 10 * HOUR_S, "power_w": 7000.0, "idle_w": 2200.0, **wanted}))
