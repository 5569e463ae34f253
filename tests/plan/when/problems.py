"""Make rates and jobs that tests of `plan when` share."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulelab.plan.rates.rate import Label, Steps
from joulelab.plan.when.when_job import JobFigures, ShiftableJob, make_job
from joulelab.plan.when.when_slots import Slots, cut_slots

MONDAY_S = 1_794_787_200.0  # 2026-11-16 00:00 UTC
HOUR_S = 3600.0
CAPS: dict[str, Any] = {"gpus": 8, "gpu_w": 700.0}


def make_daily_rate(days: int = 7, *, deep: float = 150.0, noise: float = 0.0, seed: int = 1) -> Steps:
    """Return hourly intensities that are low in the second half of each day, with noise."""
    hours = np.arange(24 * days)
    values = 350.0 + deep * np.sin(hours / 24 * 2 * np.pi) + np.random.default_rng(seed).normal(0, noise, len(hours))
    label = Label("average", "g/kWh", "made up")
    return Steps(label, MONDAY_S + HOUR_S * hours, np.maximum(values, 5.0), MONDAY_S + 86_400.0 * days)


def make_prices(values: list[float]) -> Steps:
    """Return prices of hours from Monday on."""
    times = MONDAY_S + HOUR_S * np.arange(len(values))
    return Steps(Label("price", "EUR/kWh", "x"), times, np.array(values, dtype=float), times[-1] + HOUR_S)


def make_slots(rate: Steps, hours: float) -> Slots:
    return cut_slots(rate, MONDAY_S, MONDAY_S + hours * HOUR_S)


def make_given_job(**figures: Any) -> ShiftableJob:
    return make_job([], JobFigures(**{"duration_s": 10 * HOUR_S, "power_w": 7000.0, "idle_w": 2200.0, **figures}))
