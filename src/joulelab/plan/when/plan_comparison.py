"""Compare a run with the plan that it followed: energy, money, carbon and time, by stretch and in total."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import zoneinfo
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.study_cells import Note
from joulelab.core.clock import NS
from joulelab.core.quantity import J_PER_KWH, Quantity, add_quantities
from joulelab.plan.plan_output import lay_out_answer
from joulelab.plan.when.when_plan import quantity_to_json
from joulelab.report import format as fmt
from joulelab.report.tables import Column, TableRow, make_table, scale_column
from joulelab.report.terminal import BLANK_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import Result
    from joulelab.plan.rates.rate import Label, Rate
    from joulelab.plan.when.when_plan import PlanStretch, WhenPlan
    from joulelab.report.tables import TableCell
    from joulelab.report.terminal import TextBlock

MOST_ROWS = 10  # more stretches are added up by what the job did
SHORTEST_S = 1e-6
ON_TIME_S, ON_TIME = 5.0, 0.02  # a smaller difference from the planned end needs no note
ACTIONS = {"run": "run", "pause": "pause", "after": "after the plan"}


@dataclass(frozen=True, slots=True)
class StretchRecord:
    """Hold what was done from a time on (s since 1970, monotonic ns): `run`, `pause`, or `after` the last stretch."""

    planned: PlanStretch | None
    action: str
    cap_w: float | None
    start_s: float
    start_ns: int


@dataclass(frozen=True, slots=True)
class RateSeries:
    """Hold a rate (per kWh, in the label's unit) between each two of some times (s since 1970)."""

    label: Label
    edges_s: tuple[float, ...]
    values: tuple[float, ...]

    def average(self, start_s: float, end_s: float) -> float:
        """Return the mean rate between two times; NaN where it is not known for all of it."""
        if start_s < self.edges_s[0] - 1 or end_s > self.edges_s[-1] + 1:
            return math.nan
        edges = np.asarray(self.edges_s)
        shares = np.clip(np.minimum(edges[1:], end_s) - np.maximum(edges[:-1], start_s), 0.0, None)
        if shares.sum() <= 0:  # within a second before or after the series
            return self.values[0] if end_s <= self.edges_s[0] else self.values[-1]
        return float(np.dot(shares, self.values) / shares.sum())


@dataclass(frozen=True, slots=True)
class ComparedStretch:
    """Hold a stretch as planned and as measured; a part is None where there was none. Costs are by rate.

    Times in s, energies in J; `costs` hold None where a rate or the energy is not known.
    """

    action: str
    cap_w: float | None
    start_s: float
    planned_s: float
    planned_j: float
    planned_costs: tuple[float, ...]
    actual_s: float
    energy: Quantity | None
    costs: tuple[Quantity | None, ...]

    @property
    def title(self) -> str:
        """Return what the job did, and its cap."""
        return ACTIONS[self.action] + (f" at {self.cap_w:g} W" if self.action == "run" and self.cap_w else "")

    def add(self, other: ComparedStretch) -> ComparedStretch:
        """Return both together."""
        return replace(
            self,
            planned_s=self.planned_s + other.planned_s,
            planned_j=self.planned_j + other.planned_j,
            planned_costs=tuple(a + b for a, b in zip(self.planned_costs, other.planned_costs, strict=True)),
            actual_s=self.actual_s + other.actual_s,
            energy=_add_known([self.energy, other.energy]),
            costs=tuple(_add_known(pair) for pair in zip(self.costs, other.costs, strict=True)),
        )

    def to_json(self, units: Sequence[str]) -> dict[str, Any]:
        """Return plain data."""
        costs = zip(units, self.planned_costs, self.costs, strict=True)
        return {
            "action": self.action, "cap_w": self.cap_w, "start_utc_s": self.start_s,
            "planned": {"time_s": self.planned_s, "energy_j": self.planned_j},
            "measured": {"time_s": self.actual_s, "energy_j": self.energy and quantity_to_json(self.energy)},
            "costs": [
                {"unit": unit, "planned": _drop_nan(planned), "measured": cost and quantity_to_json(cost)}
                for unit, planned, cost in costs
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """Hold the stretches of a plan and their sum, planned and measured; `late_s` is the end against the planned one."""

    plan: WhenPlan
    units: tuple[str, ...]
    stretches: tuple[ComparedStretch, ...]
    total: ComparedStretch
    late_s: float
    notes: tuple[Note, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        notes = [{"code": note.code, **note.numbers, **note.texts} for note in self.notes]
        return {
            "followed": self.plan.to_json(), "late_s": self.late_s, "notes": notes,
            "stretches": [one.to_json(self.units) for one in self.stretches],
            "total": self.total.to_json(self.units),
        }  # fmt: skip


def compare_with_plan(
    plan: WhenPlan,
    records: Sequence[StretchRecord],
    run: Path,
    result: Result,
    notes: Sequence[Note] = (),
    also: Sequence[Rate] = (),
) -> PlanComparison:
    """Compare a run with its plan; `also` are rates to count beside that of the plan. Raises StoreError."""
    from joulelab.study.tuning import windows

    rates = [RateSeries(plan.label, plan.rate_edges_s, plan.rate_values), *(_sample_rate(one, plan) for one in also)]
    whole = result.group("measured")
    scopes = () if whole is None else whole.scopes
    channels = windows.read_scopes(run, result.start_ns, result.end_ns) if scopes else []
    measured = _Measured(plan, rates, channels, scopes)
    spans = [(max(one.start_ns, result.start_ns), one) for one in records]
    spans[0] = (result.start_ns, records[0])  # the job starts a moment before the first record
    ends = [start for start, _ in spans[1:]] + [result.end_ns]
    found = [
        measured.compare(one, start, min(end, result.end_ns)) for (start, one), end in zip(spans, ends, strict=True)
    ]
    reached = {id(one.planned) for one in records}
    left = [one for one in plan.stretches if one.action in ("run", "pause") and id(one) not in reached]
    found += [measured.compare(StretchRecord(one, one.action, one.cap_w, one.start_s, 0), 0, 0) for one in left]
    found.sort(key=lambda one: one.start_s)
    total = found[0]
    for one in found[1:]:
        total = total.add(one)
    late_s = records[0].start_s + (result.end_ns - records[0].start_ns) / NS - plan.finish_s
    return PlanComparison(
        plan, tuple(one.label.money for one in rates), tuple(found), total, late_s,
        tuple(_list_notes(plan, total, late_s, notes)),
    )  # fmt: skip


def _list_notes(plan: WhenPlan, total: ComparedStretch, late_s: float, notes: Sequence[Note]) -> Iterable[Note]:
    yield from notes
    if abs(late_s) > max(ON_TIME_S, ON_TIME * (plan.finish_s - plan.begin_s)):
        yield Note("when.ended-late" if late_s > 0 else "when.ended-early", {"difference_s": abs(late_s)})
    if total.energy is None:
        yield Note("when.not-measured")
    elif None in total.costs:
        yield Note("when.rate-unknown")


class _Measured:
    """Measure the energy and the costs of spans of a run."""

    def __init__(
        self, plan: WhenPlan, rates: Sequence[RateSeries], channels: Sequence[ScopeChannels], scopes: Sequence[str]
    ) -> None:
        self._plan, self._rates, self._channels, self._scopes = plan, rates, channels, scopes

    def compare(self, record: StretchRecord, start_ns: int, end_ns: int) -> ComparedStretch:
        """Compare a stretch with its time in the run (monotonic ns); an empty one was not reached."""
        planned = record.planned
        planned_s, planned_j, planned_costs = 0.0, 0.0, (0.0,) * len(self._rates)
        if planned is not None:
            planned_s, planned_j = planned.end_s - planned.start_s, planned.energy_j
            others = [self._price(planned_j, r.average(planned.start_s, planned.end_s)) for r in self._rates[1:]]
            planned_costs = (planned.cost, *others)
        start_s = record.start_s + (start_ns - record.start_ns) / NS
        actual_s = max(end_ns - start_ns, 0) / NS
        energy, costs = self._measure_span(start_s, start_ns, end_ns)
        return ComparedStretch(
            record.action, record.cap_w, start_s, planned_s, planned_j, planned_costs, actual_s, energy, costs
        )

    def _measure_span(
        self, start_s: float, start_ns: int, end_ns: int
    ) -> tuple[Quantity | None, tuple[Quantity | None, ...]]:
        from joulelab.study.tuning.windows import sum_energy

        end_s = start_s + (end_ns - start_ns) / NS
        if end_s - start_s < SHORTEST_S:
            return Quantity(0.0), (Quantity(0.0),) * len(self._rates)
        # A rate is constant in each piece, so that the cost is right where the power is not.
        inside = {edge for rate in self._rates for edge in rate.edges_s if start_s < edge < end_s}
        edges = [start_s, *sorted(inside), end_s]
        times = [start_ns + round((edge - start_s) * NS) for edge in edges]
        pieces = [sum_energy(self._channels, [span], self._scopes) for span in itertools.pairwise(times)]
        costs = []
        for rate in self._rates:
            means = [rate.average(a, b) for a, b in itertools.pairwise(edges)]
            parts = [None if e is None else e * self._price(1.0, mean) for e, mean in zip(pieces, means, strict=True)]
            costs.append(_add_known(parts))
        return _add_known(pieces), tuple(costs)

    def _price(self, energy_j: float, rate: float) -> float:
        return energy_j * rate / J_PER_KWH * self._plan.pue


def _sample_rate(rate: Rate, plan: WhenPlan) -> RateSeries:
    start, end = plan.rate_edges_s[0], plan.rate_edges_s[-1]
    edges = np.array([start, *rate.changes(start, end), end])
    return RateSeries(rate.label, tuple(map(float, edges)), tuple(map(float, rate.means(edges))))


def _add_known(parts: Iterable[Quantity | None]) -> Quantity | None:
    """Return the sum, None if a part is not known."""
    found = list(parts)
    known = [one for one in found if one is not None and math.isfinite(one.value)]
    return add_quantities(known) if len(known) == len(found) else None


def _drop_nan(value: float) -> float | None:
    return value if math.isfinite(value) else None


def format_time(time_s: float, zone: str, pattern: str = "%a %Y-%m-%d %H:%M:%S") -> str:
    """Return a time (s since 1970) in a zone, as people write it."""
    return dt.datetime.fromtimestamp(time_s, zoneinfo.ZoneInfo(zone)).strftime(pattern)


def lay_out_comparison(compared: PlanComparison) -> list[TextBlock]:
    """Return the comparison for a terminal: a sentence, a table of stretches, notes."""
    plan, total = compared.plan, compared.total
    rows = _merge_rows(compared.stretches)
    is_merged = len(rows) < len(compared.stretches)
    energies = [float(one.planned_j) for one in (*rows, total)] + [one.energy for one in (*rows, total)]
    energy = replace(scale_column("planned", "J", energies), digits=3)
    columns = [Column("start", align="left"), Column("the job", align="left"), energy, replace(energy, name="measured")]
    for k, unit in enumerate(compared.units):
        factor, scaled = _scale_cost(total.planned_costs[k], unit)
        columns.append(Column("planned", scaled, factor=factor, digits=3, is_optional=k > 0))
        columns.append(Column("measured", scaled, factor=factor, digits=3, bare=True, is_optional=k > 0))
    made = [
        TableRow((format_time(one.start_s, plan.label.time_zone, "%H:%M:%S"), one.title, *_list_figures(one)))
        for one in rows
    ]
    made[-1] = replace(made[-1], has_rule_below=True)
    made.append(TableRow(("total", "", *_list_figures(total)), "total"))
    if is_merged:  # they have no start of their own
        made = [replace(row, cells=(row.cells[1] or row.cells[0], *row.cells[2:])) for row in made]
        columns = columns[1:]
    table = make_table(columns, made, left=(0, 1))
    answer = lay_out_answer([_write_sentence(compared)], [table], compared.notes, is_explained=True)
    return [BLANK_LINE, *answer]


def _scale_cost(value: float, unit: str) -> tuple[float, str]:
    """Return divisor and unit for costs of about a value; money has thousandths, so that short runs fit a table."""
    if unit == "g":
        return fmt.choose_scale([value], unit)
    return (1.0, unit) if not 0 < value < 0.1 else (0.001, f"0.001 {unit}")


def _list_figures(one: ComparedStretch) -> list[TableCell]:
    costs = [cell for pair in zip(one.planned_costs, one.costs, strict=True) for cell in pair]
    return [one.planned_j, one.energy, *costs]


def _merge_rows(stretches: Sequence[ComparedStretch]) -> list[ComparedStretch]:
    """Return the stretches; if there are many, those that did the same together."""
    if len(stretches) <= MOST_ROWS:
        return list(stretches)
    found: dict[str, ComparedStretch] = {}
    for one in stretches:
        found[one.title] = found[one.title].add(one) if one.title in found else one
    return list(found.values())


def _write_sentence(compared: PlanComparison) -> str:
    total, late_s = compared.total, compared.late_s
    figures = ["The energy was not measured"]
    if total.energy is not None:
        planned = fmt.format_rough(total.planned_j, "J")
        figures = [f"The job used {fmt.format_quantity(total.energy, 'J')} ({planned} planned)"]
    for unit, cost, expected in zip(compared.units, total.costs, total.planned_costs, strict=True):
        if cost is not None:
            shown = fmt.format_interval(cost.value, cost.expanded)
            figures.append(f"{shown} {unit} ({fmt.format_number(expected, 3)} planned)")
    late = "later" if late_s > 0 else "earlier"
    ended = f"{fmt.format_rough_duration(abs(late_s))} {late} than planned" if abs(late_s) >= 1 else "as planned"
    return f"{', '.join(figures)}; it ended {ended}, after {fmt.format_duration(total.actual_s)}."
