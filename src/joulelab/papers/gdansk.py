"""Compute the figures of the Gdansk study: the best cap for each goal on one to eight GPUs, and how training scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from joulelab.analysis.cell_metrics import CellMetrics, StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.core.quantity import ONE
from joulelab.papers.paper import FindingResult, MeterCost, PaperNumbers, PaperTable, Value
from joulelab.report.charts.chart_model import ChartCurve, CurveChart
from joulelab.report.charts.print_painter import FORMATS
from joulelab.report.charts.print_pictures import write_curve_charts
from joulelab.report.charts.study_charts import make_metric_charts
from joulelab.report.tables import Column, make_table
from joulelab.study.results import gather_results
from joulelab.twin.virtual import read_truth
from joulelab.twin.virtual.slot import FILE as TRUTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.goals import BestCell
    from joulelab.analysis.study_cells import Cell
    from joulelab.core.quantity import Quantity
    from joulelab.papers.paper import Paper
    from joulelab.study.folder import Study

DEFAULT_W, CAPPED_W = 260, 170
COUNTS, ALL = (1, 2, 4, 8), 8
TWIN_NOTE = "In virtual time, on the twin of the paper's node."


class Metric(NamedTuple):
    """Name a metric of the paper's table 1, its goal, and its gain in a cell."""

    name: str
    label: str
    goal: Goal
    get_gain: Callable[[CellMetrics], Quantity | None]


METRICS = (
    Metric("energy", "energy", Goal("energy"), lambda c: c.gain),
    Metric("gain_minus_loss", "gain minus loss", Goal("gain-loss"), lambda c: c.gain_minus_loss),
    Metric("edp", "EDP", Goal("edp"), lambda c: c.edp_gain),
    Metric("eds_k1.5", "EDS(1.5)", Goal("eds", 1.5), lambda c: c.eds_gain.get(1.5)),
    Metric("eds_k2.0", "EDS(2)", Goal("eds", 2.0), lambda c: c.eds_gain.get(2.0)),
)
ENERGY, EDS15 = METRICS[0], METRICS[3]


@dataclass(frozen=True, slots=True)
class CapSweep:
    """Hold the metrics of a study by cap (W) and number of GPUs; nothing where it has not run."""

    summary: StudySummary | None

    def find_cell(self, cap_w: float, gpus: int) -> CellMetrics | None:
        """Return a cell that has run."""
        return next((c for c in self.list_cells(gpus) if get_cap(c) == cap_w), None)

    def list_cells(self, gpus: int) -> list[CellMetrics]:
        """List the cells with a GPU count that have run, by cap."""
        cells = () if self.summary is None else self.summary.cells
        return sorted((c for c in cells if c.knobs.get("gpus") == gpus and c.time is not None), key=get_cap)

    def find_best(self, metric: Metric, gpus: int = ALL) -> CellMetrics | None:
        """Return the best cell with a GPU count by a metric."""
        found = self._find_choice(metric, gpus)
        return None if found is None or self.summary is None else self.summary.cell(found.cell)

    def list_best(self, metric: Metric, gpus: int = ALL) -> list[float]:
        """List the caps (W) of the best cell and of those without a significant difference from it."""
        found = self._find_choice(metric, gpus)
        keys = () if found is None else (found.cell, *found.tied)
        return [get_cap(c) for c in self.list_cells(gpus) if c.key in keys]

    def _find_choice(self, metric: Metric, gpus: int) -> BestCell | None:
        if self.summary is None:
            return None
        key = next((line.key for line in self.summary.lines if line.knobs.get("gpus") == gpus), None)
        return None if key is None else self.summary.best_for(metric.goal, key)

    def get_gain(self, metric: Metric, gpus: int = ALL) -> Quantity | None:
        """Return what a metric gains at its best, as a share of one."""
        cell = self.find_best(metric, gpus)
        return None if cell is None else metric.get_gain(cell)

    def get_speedup(self, cap_w: float, gpus: int) -> Quantity | None:
        """Return the speed-up of a GPU count over one GPU at a cap."""
        for scaling in () if self.summary is None else self.summary.scaling:
            points = {p.gpus: p.speedup for p in scaling.points}
            if scaling.knobs.get("cap") == cap_w and 1 in points:
                return points.get(gpus)
        return None


def get_cap(cell: CellMetrics) -> float:
    """Return a cell's cap, in W."""
    return float(cell.knobs["cap"])


def read_sweep(study: Study) -> CapSweep:
    """Compute every metric of a study's cells, as for any study."""
    return compare_cells(gather_results(study, scope=study.data["scope"]).cells)


def compare_cells(cells: Sequence[Cell]) -> CapSweep:
    """Compare cells with those at the default cap by every metric; nothing where none of these has run."""
    if not any(c.trials and c.knobs.get("cap") == DEFAULT_W for c in cells):
        return CapSweep(None)
    return CapSweep(summarise_cells(cells, goals=[m.goal for m in METRICS], reference={"cap": DEFAULT_W}))


def compute_numbers(study: Study, paper: Paper) -> PaperNumbers:
    """Compute every number of the paper from a study's folder."""
    sweep = read_sweep(study)
    numbers = compute_sweep(sweep, paper)
    meters = [*_measure_analyzer(sweep), *_compare_gpu_meters(sweep, _sum_gpu_energies(study))]
    return replace(numbers, meters=meters, tables=_make_tables(sweep, paper))


def compute_sweep(sweep: CapSweep, paper: Paper) -> PaperNumbers:
    """Compute figures and findings from the metrics of the cells."""
    found = {name: Value(q.value, q.expanded) for name, q in _list_quantities(sweep) if q is not None}
    remarks: dict[str, dict[str, object]] = {}
    for metric in METRICS:
        if (best := sweep.find_best(metric)) is None:
            continue
        found[f"best.{metric.name}.cap_w"] = Value(get_cap(best))
        if others := [cap for cap in sweep.list_best(metric) if cap != get_cap(best)]:
            remarks[f"best.{metric.name}.cap_w"] = {"caps": ", ".join(f"{cap:g}" for cap in others)}
        if best.gain is not None and best.loss is not None:
            own: dict[str, object] = {"cap_w": get_cap(best), "gain": best.gain.value, "loss": best.loss.value}
            remarks[f"best.{metric.name}.gain_pct"] = own
    if similar := sweep.list_best(EDS15):
        found |= {"eds_k1.5.low_w": Value(min(similar)), "eds_k1.5.high_w": Value(max(similar))}
    return PaperNumbers(figures=found, remarks=remarks, findings=dict(_judge_findings(sweep, paper.limits)))


def _list_quantities(sweep: CapSweep) -> Iterator[tuple[str, Quantity | None]]:
    def to_percent(share: Quantity | None) -> Quantity | None:
        return None if share is None else share * 100

    for metric in METRICS:
        yield f"best.{metric.name}.gain_pct", to_percent(sweep.get_gain(metric))
    for count in COUNTS:
        yield f"energy_gain.{count}", to_percent(sweep.get_gain(ENERGY, count))
        for cap in (DEFAULT_W, CAPPED_W):
            cell = sweep.find_cell(cap, count)
            yield f"time_s.{cap}w.{count}", None if cell is None else cell.time
            yield f"speedup.{cap}w.{count}", sweep.get_speedup(cap, count)
    capped = sweep.find_cell(CAPPED_W, ALL)
    if capped is not None and capped.loss is not None and capped.gain is not None:
        yield "ratio.170w.time", ONE + capped.loss
        yield "ratio.170w.energy", ONE - capped.gain


def _judge_findings(sweep: CapSweep, limits: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, FindingResult]]:
    gains = {metric: [sweep.get_gain(metric, count) for count in COUNTS] for metric in METRICS}
    percent = {metric: [100 * q.value for q in found if q is not None] for metric, found in gains.items()}
    saved = percent[ENERGY]
    if len(saved) == len(COUNTS):
        yield "growth", FindingResult(saved == sorted(set(saved)), {"gains": ", ".join(f"{g:.1f} %" for g in saved)})
    # Judged by every cap without a significant difference from the best: chance chooses among them.
    caps = {metric: sweep.list_best(metric) for metric in METRICS}
    if all(caps.values()):
        low, high = limits["caps"]["from_w"], limits["caps"]["to_w"]
        holds = all(any(low <= cap <= high for cap in found) for found in caps.values())
        yield "caps", FindingResult(holds, {"caps": "; ".join(_format_caps(sweep, metric) for metric in METRICS)})
    if all(len(found) == len(COUNTS) for found in percent.values()):
        most = {metric: (max(few), whole) for metric, (*few, whole) in percent.items()}
        share = limits["fewer"]["share"]
        holds = all(few < share * whole for metric, (few, whole) in most.items() if metric is not ENERGY)
        energy, *others = (f"{metric.label} {few:.1f} % of {whole:.1f} %" for metric, (few, whole) in most.items())
        yield "fewer", FindingResult(holds, {"others": ", ".join(others), "energy": energy})
    fast, slow = sweep.get_speedup(DEFAULT_W, ALL), sweep.get_speedup(CAPPED_W, ALL)
    if fast is not None and slow is not None:
        yield "scaling", FindingResult(slow.value > fast.value, {"slow": slow.value, "fast": fast.value})


def _format_caps(sweep: CapSweep, metric: Metric) -> str:
    best = sweep.find_best(metric)
    own = None if best is None else get_cap(best)
    others = ", ".join(f"{cap:g}" for cap in sweep.list_best(metric) if cap != own)
    return f"{metric.label} {own:g} W" + (f" (no significant difference: {others} W)" if others else "")


def _make_tables(sweep: CapSweep, paper: Paper) -> list[PaperTable]:
    """Make table 1 of the paper: the best cap for each goal on 8 GPUs, and what it gains."""
    rows = [(m, cell, gain) for m in METRICS if (cell := sweep.find_best(m)) and (gain := m.get_gain(cell))]
    if not rows:
        return []
    columns = [
        Column("metric", align="left"),
        Column(f"gain over {DEFAULT_W} W", "%", is_share=True),
        Column("cap", "W"),
    ]
    cells = [(metric.label, gain, get_cap(cell)) for metric, cell, gain in rows]
    table = make_table(columns, cells, **paper.make_table("best-caps"))
    records = tuple({"metric": m.name, "gain": gain.value, "cap_w": get_cap(cell)} for m, cell, gain in rows)
    return [PaperTable("best-caps", table, records)]


def _measure_analyzer(sweep: CapSweep) -> Iterator[MeterCost]:
    """List the analyzer's uncertainty in one run, and in the best gain."""
    cell, best = sweep.find_cell(DEFAULT_W, ALL), sweep.find_best(ENERGY)
    energy = None if cell is None or not cell.trials else cell.trials[0].energy
    if energy is not None and energy.expanded is not None:
        yield MeterCost("run", {"share": energy.expanded / energy.value})
    if best is not None and best.gain is not None and best.gain.expanded is not None:
        yield MeterCost("gain", {"points": 100 * best.gain.expanded, "runs": best.n})


def _compare_gpu_meters(sweep: CapSweep, energies_j: Mapping[tuple[float, int], float]) -> Iterator[MeterCost]:
    """Compare with a perfect meter of the GPUs alone, which does not see the host that waits."""
    parts = []
    for count in (1, ALL):
        own = {cap: joules for (cap, gpus), joules in energies_j.items() if gpus == count}
        whole = sweep.find_best(ENERGY, count)
        if DEFAULT_W in own and whole is not None and whole.gain is not None:
            cap = min(own, key=lambda w: own[w])
            saved = 100 * (1 - own[cap] / own[DEFAULT_W])
            node = f"{100 * whole.gain.value:.1f} % at {get_cap(whole):g} W"
            parts.append(f"{count} GPU{'' if count == 1 else 's'}: {saved:.1f} % at {cap:g} W, not {node}")
    if parts:
        yield MeterCost("alone", {"parts": "; ".join(parts)})


def _sum_gpu_energies(study: Study) -> dict[tuple[float, int], float]:
    """Return the true energy of all GPUs (J, a mean over repeats) by cap (W) and number of GPUs at work."""
    found = {}
    for key, cell in study.read_cells().items():
        truths = [read_truth(file.parent) for file in sorted((study.folder / "cells" / key).glob(f"r??/{TRUTH}"))]
        sums = [sum(j for point, j in t["energy_j"].items() if point.startswith("gpu")) for t in truths]
        if sums:
            found[float(cell.knobs["cap"].value), int(cell.knobs["gpus"].value)] = fmean(sums)
    return found


# Pictures


def draw_pictures(
    study: Study,
    paper: Paper,  # noqa: ARG001 - a paper's interface
    folder: Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draw figures 2 to 7 of the paper into a folder, and return the files. Raises MissingDependency."""
    sweep = read_sweep(study)
    return [] if sweep.summary is None else write_curve_charts(make_charts(sweep.summary), folder, formats=formats)


def make_charts(summary: StudySummary) -> list[CurveChart]:
    """Make the charts of figures 2 to 7 of the paper."""
    metrics = {chart.name: chart for chart in make_metric_charts(summary)}
    charts = [_label_counts(metrics["energy-gain"], "2-energy-decrease", "Energy saved by the cap")]
    titles = {
        "time-loss": ("3-time-increase", "Time lost by the cap"),
        "edp": ("4-edp", "Energy-delay product"),
        "eds-2": ("5-eds", "Gain by EDS"),
        "gain-minus-loss": ("6-difference", "Energy saved minus time lost"),
    }
    for key, (name, title) in titles.items():
        chart = metrics[key]
        curves = _select_curves(chart)
        if key == "time-loss":  # no cap makes a training faster: the fastest one is chance
            curves = tuple(replace(curve, best=None, tied=()) for curve in curves)
        if key == "eds-2":
            both = (("k = 1.5", _select_curves(metrics["eds-1.5"])), ("k = 2", curves))
            curves = tuple(replace(curve, label=label) for label, found in both for curve in found)
            chart = replace(chart, y_label="gain by EDS(k), %")
        note = f"{chart.note} {TWIN_NOTE}".strip()
        charts.append(replace(chart, name=name, title=f"{title}, {ALL} GPUs", curves=curves, note=note))
    return [chart for chart in (*charts, _make_time_chart(summary)) if chart.curves]


def _label_counts(chart: CurveChart, name: str, title: str) -> CurveChart:
    """Return a chart whose curves are named by their number of GPUs alone."""
    curves = []
    for curve in chart.curves:
        count = next((w.removeprefix("gpus=") for w in curve.label.split() if w.startswith("gpus=")), "")
        curves.append(replace(curve, label=f"{count} GPU{'' if count == '1' else 's'}"))
    return replace(chart, name=name, title=title, curves=tuple(curves), note=f"{chart.note} {TWIN_NOTE}".strip())


def _select_curves(chart: CurveChart) -> tuple[ChartCurve, ...]:
    """Return the curve of all GPUs, without a label."""
    return tuple(replace(curve, label="") for curve in chart.curves if f"gpus={ALL}" in curve.label.split())


def _make_time_chart(summary: StudySummary) -> CurveChart:
    """Make the chart of training times against the number of GPUs, at both caps."""
    curves = []
    for cap in (DEFAULT_W, CAPPED_W):
        times = {float(c.knobs["gpus"]): c.time for c in summary.cells if c.knobs.get("cap") == cap and c.time}
        points = sorted(times.items())
        bars = tuple(time.expanded for _, time in points if time.expanded is not None)
        x, y = tuple(count for count, _ in points), tuple(time.value for _, time in points)
        if points:
            curves.append(ChartCurve(f"cap {cap} W", x, y, bars if len(bars) == len(points) else None))
    note = f"Bars: expanded uncertainty, k = 2. {TWIN_NOTE}"
    return CurveChart("7-training-times", "Training time", "GPUs", "training time, s", tuple(curves), note)
