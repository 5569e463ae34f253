"""Hold a plan against what came: what each way did cost, and what the best one known afterwards would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.terms import Quantity
from joulelab.core.errors import ConfigError
from joulelab.planner.rates.find import check_same
from joulelab.planner.shifting.baselines import shown, ways_of
from joulelab.planner.shifting.job import quantity_to_json
from joulelab.planner.shifting.slots import Slots

if TYPE_CHECKING:
    from joulelab.planner.rates.rate import Label, Rate
    from joulelab.planner.shifting.baselines import Way
    from joulelab.planner.shifting.kept_plan import Plan


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
            "actual_values_per_kwh": self.actual.values.tolist(), "forecast_error_mean_per_kwh": self.error_mean,
            "forecast_error_rms_per_kwh": self.error_rms, "rows": rows,
        }  # fmt: skip


def review(plan: Plan, rate: Rate) -> Review:
    """Hold a plan against an actual series. Raises ConfigError where it is of another kind or place, or has gaps."""
    check_actual(plan.slots.label, rate.label)
    actual = Slots(plan.slots.edges_s, rate.means(plan.slots.edges_s), rate.label)
    best = {way.name: way for way in ways_of(plan.job, actual, plan.terms)}
    rows = tuple(_row(way, plan, actual, best.get(way.name)) for way in plan.ways)
    errors = actual.values - plan.slots.values
    widths = actual.lengths_s / actual.lengths_s.sum()
    return Review(plan, actual, rows, float(errors @ widths), float((errors**2) @ widths) ** 0.5)


def _row(way: Way, plan: Plan, actual: Slots, best: Way | None) -> Row:
    value = float(way.energy_j @ actual.per_j) * plan.terms.pue
    # The energies are the same, so their terms are: by the share of the cost.
    cost = Quantity(value, {}, way.cost.known)
    if way.cost.value > 0 and value > 0:
        cost = Quantity(value, way.cost.scaled(value / way.cost.value).terms, way.cost.known)
    by_plate = None
    if plan.job.rated_w is not None:
        by_plate = float(way.running_s @ actual.per_j) * plan.job.rated_w * plan.terms.pue
    known = None if best is None else shown(best.cost, plan.job)
    return Row(way.name, way.title, shown(way.cost, plan.job), shown(cost, plan.job), known, by_plate)


def check_actual(forecast: Label, actual: Label) -> None:
    """Check that an actual series is of what the forecast was of. Raises ConfigError."""
    check_same([forecast, actual])
    for what in ("zone", "covers"):
        was, now = getattr(forecast, what), getattr(actual, what)
        if was and now and was != now:
            why = f"the plan was made for {what} {was}, this is {now}"
            raise ConfigError("the actual series is of something else", why=why, next="name another: --actual SPEC")


def _gain(value: float, against: float) -> float | None:
    return 1.0 - value / against if against > 0 else None
