"""Make plans by hand for the tests that run them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from joulelab.core.quantity import J_PER_KWH, Quantity
from joulelab.plan.rates.rate import Label
from joulelab.plan.when.when_plan import PlanStretch, WhenPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

RUN, PAUSE = "run", "pause"
# What the job does, its cap (W), its length (s), its power (W).
Part = tuple[str, float | None, float, float]


def make_plan(
    start_s: float, parts: Sequence[Part], rates: Sequence[float] | None = None, tail_s: float = 60.0
) -> WhenPlan:
    """Return a plan that follows parts from a time on; each has its rate (g/kWh), the time after it the last one."""
    values = [100.0 * (k + 1) for k in range(len(parts))] if rates is None else list(rates)
    edges = [start_s + length for length in accumulate((length for _, _, length, _ in parts), initial=0.0)]
    stretches = []
    for k, (action, cap_w, length, power_w) in enumerate(parts):
        energy_j = power_w * length
        cost = energy_j * values[k] / J_PER_KWH
        stretches.append(PlanStretch(edges[k], edges[k + 1], action, cap_w, power_w, energy_j, cost))
    after = PlanStretch(edges[-1], edges[-1] + tail_s, "done", None, 0.0, 0.0, 0.0)
    return WhenPlan(
        job="job",
        way="caps",
        label=Label("carbon", "g/kWh", "by hand"),
        stretches=(*stretches, after),
        energy=Quantity(sum(one.energy_j for one in stretches)),
        cost=Quantity(sum(one.cost for one in stretches)),
        now_cost=1.0,
        rate_edges_s=(*edges, edges[-1] + tail_s),
        rate_values=(*values, values[-1]),
        idle_w=50.0,
    )
