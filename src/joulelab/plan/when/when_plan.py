"""A plan as data: from when to when a job waits, runs at which cap and pauses, and what that is expected to use.

`plan when` makes it, `plan when --run` follows it, and the comparison afterwards reads it from the folder of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import J_PER_KWH, Quantity
from joulelab.plan.rates.rate import Label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.readings import Floats

SCHEMA = 3  # 1 and 2 were kept plans of older versions

Action = Literal["wait", "run", "pause", "done"]


@dataclass(frozen=True, slots=True)
class PlanStretch:
    """Hold one action from `start_s` to `end_s` (UTC, s since 1970), with its expected power, energy and cost.

    `cap_w` is the cap of each GPU in W, None without a cap. `power_w` and `energy_j` are of all nodes, without PUE; a
    job that waits or is done uses 0 unless its node idles for it. `cost` includes PUE, in the unit of the plan.
    """

    start_s: float
    end_s: float
    action: Action
    cap_w: float | None
    power_w: float
    energy_j: float
    cost: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "start_utc_s": self.start_s, "end_utc_s": self.end_s, "action": self.action, "cap_w": self.cap_w,
            "power_w": self.power_w, "energy_j": self.energy_j, "cost": self.cost,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WhenPlan:
    """Hold the plan of one job: its stretches without gaps from the time of planning to the deadline.

    `way` names the kind of plan (`start`, `pauses`, `caps`). `rate_values` (per kWh, in the unit of `label`) are the
    rate between each two of `rate_edges_s` (UTC, s since 1970). `energy` (J) is without PUE, `cost` with it; `now_cost`
    is the cost of running at once. `idle_w` is the power of all nodes in a pause.
    """

    job: str
    way: str
    label: Label
    stretches: tuple[PlanStretch, ...]
    energy: Quantity
    cost: Quantity
    now_cost: float
    rate_edges_s: tuple[float, ...]
    rate_values: tuple[float, ...]
    idle_w: float
    nodes: int = 1
    pue: float = 1.0
    twin: str = ""

    @property
    def unit(self) -> str:
        """Return the unit of costs: g, or a currency."""
        return self.label.unit.partition("/")[0]

    @property
    def begin_s(self) -> float:
        """Return when the job starts (UTC, s since 1970)."""
        return next(one.start_s for one in self.stretches if one.action == "run")

    @property
    def finish_s(self) -> float:
        """Return when the job ends (UTC, s since 1970)."""
        return max(one.end_s for one in self.stretches if one.action == "run")

    @property
    def deadline_s(self) -> float:
        """Return the latest end (UTC, s since 1970)."""
        return self.rate_edges_s[-1]

    def find_rates(self, times_s: Floats) -> Floats:
        """Return the rate (per kWh) at times (UTC, s since 1970); NaN outside of the plan."""
        edges = np.asarray(self.rate_edges_s)
        places = np.searchsorted(edges, times_s, side="right") - 1
        inside = (places >= 0) & (places < len(self.rate_values))
        values = np.asarray(self.rate_values)[np.clip(places, 0, len(self.rate_values) - 1)]
        return np.where(inside, values, np.nan)

    def compute_cost(self, times_s: Floats, energies_j: Floats) -> float:
        """Return the cost, PUE included, of energies (J, without PUE) used at times (UTC, s); NaN outside of it."""
        return float(np.asarray(energies_j) @ self.find_rates(times_s)) / J_PER_KWH * self.pue

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return {
            "joulelab_plan": SCHEMA, "job": self.job, "way": self.way, "unit": self.unit, "kind": self.label.kind,
            "nodes": self.nodes, "idle_w": self.idle_w, "pue": self.pue, "twin": self.twin,
            "energy_j": quantity_to_json(self.energy), "cost": quantity_to_json(self.cost), "now_cost": self.now_cost,
            "rate": {
                "label": self.label.to_json(), "edges_utc_s": list(self.rate_edges_s),
                "values_per_kwh": list(self.rate_values),
            },
            "stretches": [one.to_json() for one in self.stretches],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> WhenPlan:
        """Return the plan that `to_json` wrote. Raises ConfigError for other data; `where` names its file."""
        schema = data.get("joulelab_plan") if isinstance(data, dict) else None
        if schema != SCHEMA:
            why = f"schema {schema!r}, this version reads {SCHEMA}"
            raise ConfigError("this is not a plan of `plan when`", where=where or None, why=why, next="plan again")
        try:
            rate = data["rate"]
            label = Label(**(rate["label"] | {"notes": tuple(rate["label"]["notes"])}))
            stretches = tuple(
                PlanStretch(
                    s["start_utc_s"], s["end_utc_s"], s["action"], s["cap_w"], s["power_w"], s["energy_j"], s["cost"]
                )
                for s in data["stretches"]
            )  # fmt: skip
            return cls(
                data["job"], data["way"], label, stretches, _read_quantity(data["energy_j"]),
                _read_quantity(data["cost"]), data["now_cost"], tuple(rate["edges_utc_s"]),
                tuple(rate["values_per_kwh"]), data["idle_w"], data["nodes"], data["pue"], data["twin"],
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise ConfigError("the plan is damaged", where=where or None, why=why, next="plan again") from None


def quantity_to_json(q: Quantity) -> dict[str, Any]:
    """Return a quantity as plain data, with its expanded uncertainty (k = 2; None where it is not known)."""
    return {"value": q.value, "expanded": q.expanded, "known": q.known, "terms": dict(q.terms)}


def _read_quantity(data: Mapping[str, Any]) -> Quantity:
    return Quantity(data["value"], dict(data["terms"]), data["known"])
