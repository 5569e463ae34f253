"""Compute the figures of the BNL study: power and energy of a node of eight H100 in training, by batch, and in a burn.

The PDU is read once a minute. What that costs is computed on the same runs of the twin, read more and less often:
energy by straight lines between readings, as in the analysis of any run; powers with the PDU's own error of gain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.analyse import find_span
from joulelab.analysis.readings import Readings, describe_power, find_usual_step
from joulelab.core.clock import NS
from joulelab.core.quantity import J_PER_KWH
from joulelab.papers.paper import FindingResult, MeterCost, PaperNumbers, PaperTable, Value
from joulelab.papers.study_runs import find_twin_cell, list_finished, read_channel, sum_series, write_chart
from joulelab.report.charts.chart_model import PowerLine
from joulelab.report.charts.power_chart import make_power_chart
from joulelab.report.charts.print_painter import FORMATS
from joulelab.report.charts.print_pictures import word_remark
from joulelab.report.page.run_page import load_result_and_profile
from joulelab.report.tables import Column, make_table
from joulelab.store.run_reader import open_run
from joulelab.study.results import load_trial
from joulelab.twin.timeline import RunTimes
from joulelab.twin.virtual.meters import Bench, choose_meters, find_gain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.quantity import Quantity
    from joulelab.papers.paper import Paper
    from joulelab.papers.study_runs import Floats
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.slots import Slot

NODE, OUTLET = "node.ac", "outlet"
HOUR_S = 3600.0
SMALL, LARGE, LLAVA, BURN = "resnet-512", "resnet-4096", "llava", "burn"
NAMES = (SMALL, LARGE, LLAVA, BURN, "burn-gpus")  # in the order of the paper
PERIODS_S, MINUTE_S = (1, 10, 60, 300), 60
BEGINS = 60  # a clock's minute begins anywhere within a run: the number of begins that are tried
REST_S = max(PERIODS_S)  # at rest before and after a run: there is a reading on both sides


@dataclass(frozen=True, slots=True)
class NodeRun:
    """Hold one run: time (s), median and maximum power (W) as sampled, energy (J), mean load of the GPUs (0 to 1)."""

    name: str
    batch: int | None
    time_s: float
    median_w: float | None
    max_w: float | None
    energy: Quantity | None
    load: float | None

    @property
    def mean_w(self) -> float | None:
        """Return the mean power (W)."""
        return None if self.energy is None or not self.time_s else self.energy.value / self.time_s

    @property
    def kwh(self) -> float | None:
        """Return the energy (kWh)."""
        return None if self.energy is None else self.energy.value / J_PER_KWH


def name_run(cell: PlannedCell) -> str:
    """Return the name of a cell's run: its workload, and its batch where there are several."""
    batch = cell.get_knob_values().get("batch")
    name = f"{cell.workload.name}-{batch:g}" if isinstance(batch, float | int) else cell.workload.name
    return name if name in NAMES else cell.workload.name


def find_runs(study: Study) -> dict[str, tuple[PlannedCell, Slot, Path]]:
    """Return cell, slot and folder of each run that has ended, by name; of several repeats the first."""
    found: dict[str, tuple[PlannedCell, Slot, Path]] = {}
    for cell, slot, folder in list_finished(study):
        found.setdefault(name_run(cell), (cell, slot, folder))
    return {name: found[name] for name in NAMES if name in found}


def read_runs(study: Study) -> dict[str, NodeRun]:
    """Read every run that has ended, by name: energy, time and load as any study's, power as it was sampled."""
    found = {}
    for name, (cell, slot, folder) in find_runs(study).items():
        with open_run(folder) as run:
            span = find_span(run, list(run.events()))
            powers = read_channel(run, "power_w", NODE) or read_channel(run, "power_w", OUTLET)  # or of each cord
        statistics = None
        if powers:
            times, watts = sum_series(powers)
            readings, step_s = Readings.from_rows(times, times, watts), find_usual_step(np.diff(times) * 1e-9)
            statistics = describe_power(readings, span.start_ns, span.end_ns, window_s=None, step_s=step_s)
        trial, batch = load_trial(slot), cell.get_knob_values().get("batch")
        found[name] = NodeRun(
            name,
            int(batch) if isinstance(batch, float | int) else None,
            trial.time_s,
            None if statistics is None else statistics.median,
            None if statistics is None else statistics.maximum,
            trial.get_energy(NODE),
            trial.gpu_load,
        )
    return found


def compute_numbers(study: Study, paper: Paper) -> PaperNumbers:
    """Compute every number of the paper from a study's folder."""
    runs, costs = read_runs(study), list_costs(study)
    figures: dict[str, Value] = {}
    for name, run in runs.items():
        figures[f"{name}.duration_h"] = Value(run.time_s / HOUR_S)
        figures |= {f"{name}.{key}": Value(w) for key in ("median_w", "max_w") if (w := getattr(run, key)) is not None}
        if run.energy is not None:
            energy = run.energy * (1 / J_PER_KWH)
            figures[f"{name}.energy_kwh"] = Value(energy.value, energy.expanded)
        if run.load is not None:
            figures[f"{name}.gpu_load_mean_pct"] = Value(100 * run.load)
    facts = _compare_runs(runs, paper.setup)
    derived = {
        "headline_max_w": facts.get("most_w"),
        "max_below_nameplate_pct": facts.get("below_pct"),
        "energy_factor": facts.get("factor"),
        "energy_difference_kwh": facts.get("saved_kwh"),
        "mean_power_difference_w": facts.get("mean_difference_w"),
        "burn_minus_llava_w": facts.get("burn_minus_llava_w"),
        "rack.margin": facts.get("left"),
    }
    figures |= {key: Value(value) for key, value in derived.items() if value is not None}
    findings = dict(_judge_findings(facts, paper.limits, float(paper.setup["rated_w"])))
    tables = [*_make_summary(runs, paper), *_make_sampling(costs, paper)]
    return PaperNumbers(figures=figures, findings=findings, meters=list(_describe_costs(costs)), tables=tables)


def _compare_runs(runs: Mapping[str, NodeRun], setup: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that follow from several runs; those of runs that have not ended lack."""
    facts: dict[str, float | None] = {}
    short = {SMALL: "small", LARGE: "large", LLAVA: "llava", BURN: "burn"}
    for name, key in short.items():
        run = runs.get(name)
        facts[f"{key}_w"] = None if run is None else run.median_w
        facts[f"{key}_kwh"] = None if run is None else run.kwh
        facts[f"{key}_mean_w"] = None if run is None else run.mean_w
    known = {key: value for key, value in facts.items() if value is not None}
    if {"small_kwh", "large_kwh"} <= known.keys():
        known["factor"] = known["small_kwh"] / known["large_kwh"]
        known["saved_kwh"] = known["small_kwh"] - known["large_kwh"]
        known["mean_difference_w"] = known["large_mean_w"] - known["small_mean_w"]
    if {"burn_w", "llava_w"} <= known.keys():
        known["burn_minus_llava_w"] = known["burn_w"] - known["llava_w"]
    peaks = [run.max_w for run in runs.values() if run.max_w is not None]
    if peaks and BURN in runs:
        most_w, supply_w, nodes = max(peaks), float(setup["rack_supply_w"]), int(setup["rack_nodes"])
        known |= {"most_w": most_w, "below_pct": 100 * (1 - most_w / float(setup["rated_w"])), "nodes": nodes}
        known["left"] = 1 - (nodes + 1) * most_w / supply_w
        known["designed"] = 1 - nodes * float(setup["rated_w"]) / supply_w
    return known


def _judge_findings(
    facts: Mapping[str, float], limits: Mapping[str, Mapping[str, float]], rated_w: float
) -> Iterator[tuple[str, FindingResult]]:
    if "most_w" in facts:
        yield "rack", FindingResult(facts["left"] >= facts["designed"], facts)
        near_w = (1 - limits["nameplate"]["share"]) * rated_w
        yield "nameplate", FindingResult(facts["most_w"] < near_w, facts)
    if {"small_w", "large_w", "factor"} <= facts.keys():
        yield "batch", FindingResult(facts["large_w"] > facts["small_w"] and facts["factor"] > 1, facts)
    if "burn_minus_llava_w" in facts:
        near_w = limits["burn"]["share"] * facts["burn_w"]
        yield "burn", FindingResult(0 <= facts["burn_minus_llava_w"] <= near_w, facts)
        if {"small_w", "large_w"} <= facts.keys():
            order = [facts[f"{key}_w"] for key in ("small", "large", "llava", "burn")]
            yield "order", FindingResult(order == sorted(set(order)), facts)


def _make_summary(runs: Mapping[str, NodeRun], paper: Paper) -> list[PaperTable]:
    """Make the paper's table 1."""
    if not runs:
        return []
    rated_w = float(paper.setup["rated_w"])
    columns = [
        Column("run", align="left"),
        Column("batch"),
        Column("duration", "h", factor=HOUR_S),
        Column("median", "W"),
        Column("maximum", "W"),
        Column("energy", "kWh", factor=J_PER_KWH),
        Column("maximum of nameplate", "%"),
    ]
    rows, records = [], []
    for run in runs.values():
        share = None if run.max_w is None else run.max_w / rated_w
        joules = None if run.energy is None else run.energy.value
        of_rated = None if share is None else 100 * share
        rows.append((paper.entries.labels[run.name], run.batch, run.time_s, run.median_w, run.max_w, joules, of_rated))
        records.append({
            "run": run.name, "batch": run.batch, "time_s": run.time_s, "median_w": run.median_w, "max_w": run.max_w,
            "mean_w": run.mean_w, "energy_j": joules, "gpu_load": run.load, "max_of_nameplate": share,
            "energy_expanded_j": None if run.energy is None else run.energy.expanded,
        })  # fmt: skip
    table = make_table(columns, rows, **paper.make_table("summary", {"rated_kw": rated_w / 1000}))
    return [PaperTable("summary", table, tuple(records))]


# What the meters cost


@dataclass(frozen=True, slots=True)
class SecondsOfPower:
    """Hold a run as true means of power over each second (W), with `REST_S` of rest on both sides.

    `gain` is the relative error of all that the PDU shows.
    """

    watts: Floats
    gain: float = 0.0

    @property
    def inner(self) -> Floats:
        """Return the powers of the run alone (W)."""
        return self.watts[REST_S:-REST_S]


@dataclass(frozen=True, slots=True)
class SamplingCost:
    """Hold the errors of reading a run every `period_s`, over where the readings may fall.

    `energy` is the root mean square of the relative error that reading seldom makes, `worst` the largest; `median_w`
    and `max_w` are the mean deviations of median and maximum (W), against those of readings in every second, of
    which `most_w` is the highest. Powers are as the PDU shows them: `gain` is its own relative error, in all of them.
    """

    name: str
    period_s: int
    energy: float
    worst: float
    median_w: float
    max_w: float
    most_w: float
    gain: float


def list_costs(study: Study) -> list[SamplingCost]:
    """List the cost of each period in each run that ended on a twin; nothing for runs on real nodes."""
    runs = ((name, _lay_out_seconds(study, cell, slot)) for name, (cell, slot, _) in find_runs(study).items())
    return [compute_cost(name, run, period) for name, run in runs if run is not None for period in PERIODS_S]


def _lay_out_seconds(study: Study, cell: PlannedCell, slot: Slot) -> SecondsOfPower | None:
    """Lay out a run on a twin second by second, with the gain of the meter that the study reads at the node."""
    twin = find_twin_cell(study, cell)
    if twin is None:
        return None
    run = twin.lay_out(RunTimes(0, REST_S, REST_S + 1), slot.folder.name)
    share, curve = run.curve(NODE)
    whole_s = (run.end_ns - run.start_ns) // NS
    edges = run.start_ns + NS * np.arange(-REST_S, whole_s + REST_S + 1, dtype=np.int64)
    read = choose_meters(twin.described.meters, study.get_settings(cell.workload.name))
    bench = Bench(run, twin.request, twin.make_seed(slot.folder.name), study_seed=study.seed)
    gains = [find_gain(bench, name, one) for name, one in read.items() if one.point == NODE]
    return SecondsOfPower(np.asarray(share * np.diff(curve.joules(edges))), next(iter(gains), 0.0))


def compute_cost(name: str, run: SecondsOfPower, period_s: int) -> SamplingCost:
    """Compute the errors of reading a run only once in a period."""
    begins = np.unique(np.linspace(0, period_s - 1, BEGINS).round().astype(int))
    true_j = float(run.inner.sum())
    off = np.array([integrate_readings(run, int(begin), period_s) / true_j - 1 for begin in begins])
    shown = (1 + run.gain) * run.inner
    parts = [part for begin in begins if (part := shown[begin::period_s]).size]
    return SamplingCost(
        name,
        period_s,
        float(np.sqrt(np.mean(np.square(off)))),
        float(np.abs(off).max()),
        float(np.mean([np.median(part) - np.median(shown) for part in parts])),
        float(np.mean([part.max() - shown.max() for part in parts])),
        float(shown.max()),
        run.gain,
    )


def integrate_readings(run: SecondsOfPower, begin: int, period_s: int) -> float:
    """Return the energy (J) of a run by straight lines between readings of a period, from the rest on."""
    at = np.arange(begin, len(run.watts), period_s)
    middle, power = at + 0.5, run.watts[at]  # a mean over a second is that of its middle
    first, last = float(REST_S), float(len(run.watts) - REST_S)
    times = np.concatenate(([first], middle[(middle > first) & (middle < last)], [last]))
    drawn = np.interp(times, middle, power)
    return float(np.dot(np.diff(times), drawn[1:] + drawn[:-1])) / 2


def _describe_costs(costs: Sequence[SamplingCost]) -> Iterator[MeterCost]:
    """List the cost of one reading a minute for each run beside other periods, and the PDU's own gain."""
    for own in (cost for cost in costs if cost.period_s == MINUTE_S):
        others = [c for c in costs if c.name == own.name and c is not own]
        text = ", ".join(f"{100 * c.energy:.2f} % every {c.period_s} s" for c in others)
        yield MeterCost("minute", {**asdict(own), "below_w": -own.max_w, "others": text})
    if costs:
        yield MeterCost("gain", {"gain": costs[0].gain})


def _make_sampling(costs: Sequence[SamplingCost], paper: Paper) -> list[PaperTable]:
    """Make the table of what other periods of reading would have given."""
    if not costs:
        return []
    columns = ["run", "read every, s", "energy off, %", "at worst, %", "median off, W", "maximum off, W"]
    rows = []
    for c in costs:
        errors = (f"{100 * error:.3f}" for error in (c.energy, c.worst))
        label = paper.entries.labels[c.name]
        rows.append((label, str(c.period_s), *errors, f"{c.median_w:+.1f}", f"{c.max_w:+.0f}"))
    records = tuple(
        {"run": c.name, "period_s": c.period_s, "energy_error": c.energy, "worst": c.worst, "median_off_w": c.median_w,
         "max_off_w": c.max_w, "max_each_second_w": c.most_w, "gain_error": c.gain}
        for c in costs
    )  # fmt: skip
    table = make_table(columns, rows, **paper.make_table("sampling", {"gain": costs[0].gain}))
    return [PaperTable("sampling", table, records)]


# Pictures

PICTURES = {SMALL: "1-resnet-512", LARGE: "1-resnet-4096", LLAVA: "2-llava"}


def draw_pictures(study: Study, paper: Paper, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw the paper's figures of what has run into a folder, and return the files. Raises MissingDependency."""
    burn, files = read_runs(study).get(BURN), []
    lines = [PowerLine("rated", float(paper.setup["rated_w"]), "rated")]
    if burn is not None and burn.median_w is not None:
        lines.append(PowerLine("burn control, median", burn.median_w, "mean"))
    runs = find_runs(study)
    for name in (name for name in PICTURES if name in runs):
        result, profile = load_result_and_profile(runs[name][2])
        if profile is not None:
            chart = replace(make_power_chart(profile, result), lines=tuple(lines), phases=())
            remark = f"{paper.entries.labels[name]}. {word_remark([result])} {paper.entries.pictures[name]}".strip()
            files += write_chart(chart, folder / PICTURES[name], remark, formats)
    return files
