"""Hold a plan against what came: what each way did cost, and what the best one known afterwards would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.planner.rates.constant import Constant
from joulelab.planner.rates.find import check_same
from joulelab.planner.shifting.baselines import cost_at, shown, ways_of
from joulelab.planner.shifting.finer import finer
from joulelab.planner.shifting.job import quantity_to_json
from joulelab.planner.shifting.slots import cut
from joulelab.planner.shifting.slots import shown as when

if TYPE_CHECKING:
    from joulelab.analysis.terms import Quantity
    from joulelab.planner.rates.rate import Label, Rate
    from joulelab.planner.shifting.baselines import Way
    from joulelab.planner.shifting.kept_plan import Plan
    from joulelab.planner.shifting.slots import Slots


@dataclass(frozen=True)
class Row:
    """Hold one way: its cost by the forecast, by what came, and that of the best of its kind, had all been known."""

    name: str
    title: str
    forecast: Quantity
    actual: Quantity
    known: Quantity | None
    rated: float | None


@dataclass(frozen=True)
class Review:
    """Hold a plan against what came; `error` is the forecast's, as mean and root mean square of actual - forecast."""

    plan: Plan
    actual: Slots
    rows: tuple[Row, ...]
    error_mean: float
    error_rms: float

    def row(self, name: str) -> Row:
        """Return the row of a way."""
        return next(row for row in self.rows if row.name == name)

    def gain(self, name: str) -> tuple[float | None, float | None, float | None]:
        """Return which share less a way costs than `now`: by the forecast, by what came, had all been known."""
        row, now = self.row(name), self.rows[0]
        known = row.known
        return (
            _gain(row.forecast.value, now.forecast.value),
            _gain(row.actual.value, now.actual.value),
            None if known is None else _gain(known.value, now.actual.value),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the whole review as plain data."""
        rows = []
        for row in self.rows:
            forecast, actual, known = self.gain(row.name)
            rows.append({
                "name": row.name, "title": row.title, "forecast": quantity_to_json(row.forecast),
                "actual": quantity_to_json(row.actual), "cost_by_nameplate": row.rated,
                "best_known_afterwards": None if row.known is None else quantity_to_json(row.known),
                "gain_forecast": forecast, "gain_actual": actual, "gain_known_afterwards": known,
            })  # fmt: skip
        return {
            "plan": self.plan.id, "chosen": self.plan.chosen, "unit": self.plan.unit, "kind": self.actual.label.kind,
            "simulated": bool(self.plan.job.twin), "actual_label": self.actual.label.to_json(),
            "actual_edges_utc_s": self.actual.edges_s.tolist(),
            "actual_values_per_kwh": self.actual.values.tolist(), "forecast_error_mean_per_kwh": self.error_mean,
            "forecast_error_rms_per_kwh": self.error_rms, "rows": rows,
        }  # fmt: skip


def review(plan: Plan, rate: Rate, *, now_s: float) -> Review:
    """Hold a plan against an actual series, at a time (s since 1970) when the plan's deadline is over.

    Raises ConfigError where it is not over, and where the series is one figure, a forecast, of another kind or place,
    or has gaps.
    """
    check_over(plan, now_s)
    if isinstance(rate, Constant):
        raise ConfigError(
            f"{rate.label.name} is no series of what came", why="it is one figure for all times",
            next="name a series: --actual FILE.csv, kept:NAME, em:DE",
        )  # fmt: skip
    check_actual(plan.slots.label, rate.label)
    actual = cut(plan.slots.edges_s, rate)
    check_actual(plan.slots.label, rate.label)  # a service says what it tells once it was asked
    best = {way.name: way for way in ways_of(plan.job, actual, plan.terms)}
    rows = tuple(_row(way, plan, actual, best.get(way.name)) for way in plan.ways)
    planned = plan.slots.values[np.searchsorted(plan.slots.edges_s, actual.edges_s[:-1], side="right") - 1]
    errors = actual.values - planned
    widths = actual.lengths_s / actual.lengths_s.sum()
    return Review(plan, actual, rows, float(errors @ widths), float((errors**2) @ widths) ** 0.5)


def _row(way: Way, plan: Plan, actual: Slots, best: Way | None) -> Row:
    came = finer(way, plan.job, plan.slots.edges_s, actual.edges_s)
    cost = cost_at(came, plan.job, actual, plan.terms)
    by_plate = None
    if plan.job.rated_w is not None:
        by_plate = float(came.running_s @ actual.per_j) * plan.job.rated_w * plan.terms.pue
    known = None if best is None else shown(best.cost, plan.job)
    return Row(way.name, way.title, shown(way.cost, plan.job), shown(cost, plan.job), known, by_plate)


def check_over(plan: Plan, now_s: float) -> None:
    """Check that all of a plan's time is over: before, nobody knows what came. Raises ConfigError."""
    label, until_s = plan.slots.label, plan.slots.deadline_s
    if until_s > now_s:
        until = f"{when(until_s, label.time_zone)} {label.time_zone}"
        raise ConfigError(f"plan {plan.id} is not over", why=f"it goes until {until}", next="review it after that")


def check_actual(forecast: Label, actual: Label) -> None:
    """Check that an actual series is one, and of what the forecast was of. Raises ConfigError."""
    check_same([forecast, actual])
    other = "name another: --actual SPEC"
    if actual.issued_utc_s is not None:
        why = f"it was issued {when(actual.issued_utc_s, 'UTC')} UTC"
        raise ConfigError(f"{actual.name or 'the series'} is a forecast, not what came", why=why, next=other)
    for what in ("zone", "covers"):
        was, now = getattr(forecast, what), getattr(actual, what)
        if was and now and was != now:
            why = f"the plan was made for {what} {was}, this is {now}"
            raise ConfigError("the actual series is of something else", why=why, next=other)


def _gain(value: float, against: float) -> float | None:
    return 1.0 - value / against if against > 0 and value >= 0 else None
