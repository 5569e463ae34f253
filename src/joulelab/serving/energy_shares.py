"""Divide the measured energy of windows among requests by a fitted model, exactly; and by simpler rules, to compare."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.serving.attribution import ITERATION, count_output, sum_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.serving.attribution import Activity, EnergyModel, EnergyWindows, Floats
    from joulelab.serving.request_records import Request

DRAWS = 100  # of the model's parameters, for the uncertainty of shares
REQUEST_ERROR = 0.005  # standard uncertainty of the model itself, relative; see TOKEN_ERROR in attribution.py


@dataclass(frozen=True, slots=True)
class Shares:
    """Hold the energy of each request (J): by part (in the order of TERMS), and of idle time.

    `drawn_j` are its deviations under other parameters of the model, one row for each draw; `scatter_j` is the standard
    uncertainty by errors of single windows. The meter's own error is not included. `unassigned_j` was measured while no
    request was there, or is idle energy that no request gets. The sum of all is the measured energy.
    """

    parts_j: Floats
    idle_j: Floats
    drawn_j: Floats
    scatter_j: Floats
    unassigned_j: float

    @property
    def total_j(self) -> Floats:
        """Return the energy of each request, in J."""
        return np.asarray(self.parts_j.sum(axis=1) + self.idle_j)

    @property
    def u_j(self) -> Floats:
        """Return the standard uncertainty of each request's energy by the division, in J."""
        return np.asarray(np.hypot(np.sqrt(np.mean(self.drawn_j**2, axis=0)), self.scatter_j))

    def sum_requests(self, members: Sequence[int]) -> tuple[float, float]:
        """Return the energy of several requests together and its standard uncertainty by the division, in J."""
        chosen = np.asarray(members, dtype=np.int64)
        drawn = self.drawn_j[:, chosen].sum(axis=1)
        scatter = float(np.sum(self.scatter_j[chosen] ** 2))
        return float(self.total_j[chosen].sum()), math.sqrt(float(np.mean(drawn**2)) + scatter)


def share_energy(
    measured: EnergyWindows, activity: Activity, model: EnergyModel, *, with_idle: bool, seed: int = 0
) -> Shares:
    """Divide the energy of each window among its requests; the sum of all shares is the measured energy."""
    idle_w = np.clip(np.minimum(measured.seconds * model.idle.watts, measured.energy_j), 0.0, None)
    active_j = measured.energy_j - idle_w
    parts = _divide_windows(active_j, activity, model.values)
    spent = sum_rows(activity.request, parts, activity.requests)
    idle_j: Floats = np.zeros(activity.requests)
    if with_idle:
        total = np.bincount(activity.window, weights=activity.seconds, minlength=activity.windows)
        rows = activity.seconds / total[activity.window] * idle_w[activity.window]
        idle_j = np.asarray(np.bincount(activity.request, weights=rows, minlength=activity.requests), float)
    unassigned = float(measured.energy_j.sum() - spent.sum() - idle_j.sum())
    scatter = np.bincount(activity.request, weights=(parts.sum(axis=1) * model.scatter) ** 2, minlength=len(spent))
    drawn = _draw_shares(measured, activity, model, seed) - spent.sum(axis=1)
    own = (REQUEST_ERROR * spent.sum(axis=1)) ** 2
    return Shares(spent, idle_j, drawn, np.sqrt(scatter + own), unassigned)


def _divide_windows(active_j: Floats, activity: Activity, values: Floats) -> Floats:
    """Return the energy (J) of each pair of request and window by part; by time where the model knows no part."""
    parts = activity.amounts * values
    modelled = np.bincount(activity.window, weights=parts.sum(axis=1), minlength=activity.windows)
    unknown = modelled[activity.window] <= 0
    parts[unknown, ITERATION] = activity.seconds[unknown]
    modelled = np.bincount(activity.window, weights=parts.sum(axis=1), minlength=activity.windows)
    factor = np.divide(active_j, modelled, out=np.zeros(len(active_j)), where=modelled > 0)
    return np.asarray(parts * factor[activity.window, None])


def _draw_shares(measured: EnergyWindows, activity: Activity, model: EnergyModel, seed: int) -> Floats:
    """Return the energy above idle (J) of each request with drawn parameters and idle powers, one row for each draw."""
    rng = np.random.default_rng(seed)
    rows = np.empty((DRAWS, activity.requests))
    draws = rng.multivariate_normal(model.values, model.covariance, DRAWS, method="eigh")
    for row, values, off_w in zip(rows, draws, rng.normal(0.0, model.idle.u_w, DRAWS), strict=True):
        drawn = np.clip(values + model.idle_slope * off_w, 0.0, None)
        active_j = np.clip(measured.energy_j - measured.seconds * (model.idle.watts + off_w), 0.0, None)
        energy = _divide_windows(active_j, activity, drawn).sum(axis=1)
        row[:] = np.bincount(activity.request, weights=energy, minlength=activity.requests)
    return rows


def split_by_tokens(energy_j: float, requests: Sequence[Request]) -> Floats:
    """Divide an energy by the tokens of each request alone: what simple tools do."""
    tokens = np.array([float((r.prompt_tokens or 0) + count_output(r)) for r in requests])
    return np.asarray(energy_j * tokens / max(float(tokens.sum()), 1.0))


def split_by_time(energy_j: float, requests: Sequence[Request]) -> Floats:
    """Divide an energy by the time of each request alone."""
    seconds = np.array([r.latency_s for r in requests])
    return np.asarray(energy_j * seconds / max(float(seconds.sum()), 1e-9))
