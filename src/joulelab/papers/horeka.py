"""Compute the figures of the HoreKa study: two trainings and predictions, on a GPU, beside idle GPUs, and without any.

Energy is that of the cluster's accounting, which looks at a node every few seconds. What other intervals would cost is
computed on the same jobs of the twin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.analyse import find_span
from joulelab.analysis.cell_metrics import CellMetrics, summarise_cells
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.papers.paper import FindingResult, MeterCost, PaperNumbers, PaperTable, Value
from joulelab.papers.study_runs import find_twin_cell, list_finished, read_channel, write_chart
from joulelab.report import format as fmt
from joulelab.report.charts.power_chart import make_overlay_chart
from joulelab.report.charts.print_painter import FORMATS
from joulelab.report.charts.print_pictures import word_remark
from joulelab.report.page.run_page import load_result_and_profile
from joulelab.report.paper_tables import format_clock
from joulelab.report.tables import make_table
from joulelab.store.run_reader import open_run
from joulelab.study.matrix import TWIN
from joulelab.study.results import gather_results
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import read_panel_j
from joulelab.twin.timeline import RunTimes
from joulelab.twin.virtual import meters
from joulelab.twin.virtual.cells import read_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.papers.paper import Paper
    from joulelab.papers.study_runs import Floats
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.twin.timeline import Timeline

GPU, MIX, ONLY = "gpu", "cpu-mix", "cpu-only"
SETUPS, CASES, PHASES = (GPU, MIX, ONLY), ("energy", "health"), ("train", "predict")
ACCOUNTED = "job"  # the energy that a cluster accounted for a job
KJ = 1000.0


@dataclass(frozen=True, slots=True)
class JobRepeats:
    """Hold the repeats of a workload on a node type: energies (J) and times (s) of each run.

    `expanded` are the expanded uncertainties of the means of energy (J), power (W) and time (s), where they are known.
    """

    energies_j: tuple[float, ...]
    times_s: tuple[float, ...]
    expanded: tuple[float | None, float | None, float | None] = (None, None, None)

    @property
    def energy_j(self) -> float:
        """Return the mean energy (J)."""
        return fmean(self.energies_j)

    @property
    def time_s(self) -> float:
        """Return the mean time (s)."""
        return fmean(self.times_s)

    @property
    def powers_w(self) -> list[float]:
        """Return the mean power of each run (W)."""
        return [e / t for e, t in zip(self.energies_j, self.times_s, strict=True)]

    @property
    def mean_w(self) -> float:
        """Return the mean of the runs' mean powers (W), as the paper has it."""
        return fmean(self.powers_w)


Jobs = dict[tuple[str, str], JobRepeats]


def name_cell(cell: PlannedCell) -> tuple[str, str]:
    """Return workload and node type of a cell."""
    return cell.workload.name, cell.workload.node_type


def read_jobs(study: Study) -> Jobs:
    """Read every cell that has run, by workload and node type, as any study's."""
    try:
        cells = [cell for cell in gather_results(study, scope=ACCOUNTED).cells if cell.trials]
    except ConfigError:  # no run has been accounted
        return {}
    planned = study.read_cells()
    found = {name_cell(planned[c.key]): _read_repeats(c) for c in (summarise_cells(cells).cells if cells else ())}
    return {name: repeats for name, repeats in found.items() if repeats is not None}


def _read_repeats(cell: CellMetrics) -> JobRepeats | None:
    known = [(t.energy.value, t.time_s) for t in cell.trials if t.energy is not None]
    if not known:
        return None
    energy, power, time = (None if q is None else q.expanded for q in (cell.energy, cell.mean_w, cell.time))
    return JobRepeats(tuple(e for e, _ in known), tuple(t for _, t in known), (energy, power, time))


def compute_numbers(study: Study, paper: Paper) -> PaperNumbers:
    """Compute every number of the paper from a study's folder."""
    jobs, costs = read_jobs(study), list_costs(study)
    figures = compute_figures(jobs) | _compute_gpu_powers(study)
    short = _describe_costs([cost for cost in costs if cost.workload == SHORT], _format_watts)
    remarks = {f"health.predict.gpu.{key}": short for key in ("mean_w", "energy_kj") if "own" in short}
    return PaperNumbers(
        figures=figures,
        findings=dict(judge_findings(jobs, paper.limits)),
        remarks=remarks,
        meters=list(_list_meter_costs(costs)),
        tables=[*_make_tables(jobs, paper), *_make_cost_table(costs, paper)],
    )


def compute_figures(jobs: Jobs) -> dict[str, Value]:
    """Compute energy, mean power and runtime of every job that ran."""
    names = {f"{case}-{phase}": f"{case}.{phase}" for case in CASES for phase in PHASES}
    names |= {f"{case}-notebook": f"{case}.jupyter" for case in CASES} | {"health-train-full": "health.full"}
    found = {}
    for (workload, node), job in jobs.items():
        name = names.get(workload, workload) + (f".{node}" if workload.endswith(PHASES) else "")
        energy, power, time = job.expanded
        found[f"{name}.energy_kj"] = Value(job.energy_j / KJ, None if energy is None else energy / KJ)
        found[f"{name}.mean_w"] = Value(job.mean_w, power)
        found[f"{name}.time_s"] = Value(job.time_s, time)
    return found


def _compute_gpu_powers(study: Study) -> dict[str, Value]:
    """Compute the power of idle GPUs, of GPUs at work above these, and of a node that does nothing."""
    found = {}
    if idle := read_profiles(study, "energy-predict", MIX):
        found["gpu_idle_w"] = Value(float(np.mean([np.mean(watts) for each in idle for watts in each.watts])))
    for case in CASES:
        profiles = read_profiles(study, f"{case}-train", GPU)
        if above := [w for each in profiles if (w := each.above_idle_w) is not None]:
            found[f"{case}.gpu_above_idle_w"] = Value(float(np.mean(above)))
    kind = study.nodes.get(GPU)
    if kind is not None and kind.executor == TWIN and study.read_cells():
        node = read_description(kind).node
        heat_w = sum(node.range_w(leaf)[0] for leaf in node.leaves() if not leaf.startswith("core"))
        found["jupyter_idle_node_w"] = Value(float(np.interp(heat_w, *node.to_dc())))
    return found


def judge_findings(jobs: Jobs, limits: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, FindingResult]]:
    """Judge the paper's findings whose jobs have run."""

    def compare(workload: str, over: str, under: str) -> dict[str, float] | None:
        a, b = jobs.get((workload, over)), jobs.get((workload, under))
        return None if a is None or b is None else {"energy": a.energy_j / b.energy_j, "time": a.time_s / b.time_s}

    def is_about(finding: str, value: float, named: float) -> bool:
        return abs(value / named - 1) <= limits[finding]["about"]

    factors = {
        "idle-gpus": ("energy-train", MIX, ONLY),
        "faster": ("energy-train", ONLY, GPU),
        "factor-86": ("health-train", ONLY, GPU),
        "predict-4.5": ("health-predict", ONLY, GPU),
    }
    for name, pair in factors.items():
        if (ratios := compare(*pair)) is not None:
            yield name, FindingResult(all(is_about(name, ratios[k], limits[name][k]) for k in ratios), ratios)
    if (ratios := compare("energy-predict", ONLY, GPU)) is not None:
        is_comparable = abs(ratios["energy"] - 1) <= limits["predict"]["comparable"]
        is_faster = is_about("predict", ratios["time"], limits["predict"]["time"])
        yield "predict", FindingResult(is_faster and is_comparable, ratios)
    rows = {f"{case}-{phase}": [jobs.get((f"{case}-{phase}", s)) for s in (MIX, GPU, ONLY)]
            for case in CASES for phase in PHASES}  # fmt: skip
    known = {name: [job.energy_j / KJ for job in row if job is not None] for name, row in rows.items()}
    if all(len(row) == len(SETUPS) for row in known.values()):
        text = "; ".join(f"{name} {row[0]:.0f} kJ > {max(row[1:]):.0f}" for name, row in known.items())
        yield "most", FindingResult(all(row[0] > max(row[1:]) for row in known.values()), {"rows": text})
    gpu, only = jobs.get(("energy-train", GPU)), jobs.get(("energy-train", ONLY))
    if gpu is not None and only is not None:
        factor = gpu.mean_w / only.mean_w
        numbers = {"gpu_w": gpu.mean_w, "cpu_w": only.mean_w, "factor": factor}
        yield "twice", FindingResult(limits["twice"]["from"] <= factor <= limits["twice"]["to"], numbers)
    notebooks: dict[str, float] = {}
    for case in CASES:
        book, job = jobs.get((f"{case}-notebook", GPU)), jobs.get((f"{case}-train", GPU))
        if book is not None and job is not None:
            notebooks[f"{case}_energy"] = book.energy_j / job.energy_j
            notebooks[f"{case}_time"] = book.time_s / job.time_s
    if len(notebooks) == 2 * len(CASES):
        yield "notebook", FindingResult(all(is_about("notebook", r, 1) for r in notebooks.values()), notebooks)


def _make_tables(jobs: Jobs, paper: Paper) -> Iterator[PaperTable]:
    """Make tables 2 and 3 of the paper."""
    for name, case in (("table-2-energy", "energy"), ("table-3-health", "health")):
        rows, records = [], []
        wanted = [(phase, setup) for phase in (*PHASES, "notebook") for setup in SETUPS]
        for phase, setup in wanted:
            job = jobs.get((f"{case}-{phase}", setup))
            if job is None:
                continue
            record: dict[str, Any] = {"phase": phase, "node": setup, "energy_j": job.energy_j, "mean_w": job.mean_w}
            record |= {"time_s": job.time_s, "energy_deviation_j": None, "mean_deviation_w": None}
            kj, watts = fmt.format_number(job.energy_j / KJ), fmt.format_number(job.mean_w)
            if len(job.times_s) > 1:
                off_j, off_w = stdev(job.energies_j), stdev(job.powers_w)
                record |= {"energy_deviation_j": off_j, "mean_deviation_w": off_w}
                kj = fmt.format_interval(job.energy_j / KJ, off_j / KJ, signed=True)
                watts = fmt.format_interval(job.mean_w, off_w, signed=True)
            records.append({**record, "repeats": len(job.times_s)})
            rows.append((phase, setup, kj, watts, format_clock(job.time_s)))
        if rows:
            columns = ["", "node", "energy, kJ", "mean power, W", "runtime"]
            yield PaperTable(name, make_table(columns, rows, left=(0, 1), **paper.make_table(name)), tuple(records))


# What the accounting's sampling costs

POINT = "node.dc"
PERIODS_S = (1, 10, 30, 60)
SHORT = "health-predict"  # a job of few looks: where these fall decides its energy
COSTED = ((SHORT, GPU), ("health-train", GPU))  # the shortest job of the paper, and a training
RUNS, LOOKS = 10, 24  # runs of a job with scatter of their own; times at which the looks may fall in each


@dataclass(frozen=True, slots=True)
class AccountingCost:
    """Hold the relative errors of a job's energy, looked at every `period_s`, over runs and where looks fall.

    `power_w` is the job's true mean power; `is_own`: the twin's accounting looks as often as that.
    """

    workload: str
    time_s: float
    power_w: float
    period_s: float
    mean: float
    spread: float
    worst: float
    is_own: bool = False

    @property
    def counted_w(self) -> float:
        """Return the mean power (W) that is accounted on average."""
        return self.power_w * (1 + self.mean)


def list_costs(study: Study) -> list[AccountingCost]:
    """List the cost of each period in each job that ran on a twin; nothing for jobs on real nodes."""
    ran = {name_cell(cell): cell for cell, _, _ in list_finished(study)}
    found = []
    for names in COSTED:
        twin = find_twin_cell(study, ran[names]) if names in ran else None
        if twin is None:
            continue
        mounted = meters.find_accounting(twin.described.meters)
        own_s = meters.read_frequency_s(mounted[1]) if mounted else 0.0
        times = RunTimes(NS * 10**6, idle_s=max(*PERIODS_S, own_s))
        runs = [twin.lay_out(times, f"r{k + 1:02d}") for k in range(RUNS)]
        periods = sorted({*map(float, PERIODS_S), own_s} - {0.0})
        found += [_compute_cost(names[0], runs, period, is_own=period == own_s) for period in periods]
    return found


def _compute_cost(workload: str, runs: Sequence[Timeline], period_s: float, *, is_own: bool) -> AccountingCost:
    off = np.concatenate([compute_errors(run, period_s) for run in runs])
    times_s = [(run.end_ns - run.start_ns) / NS for run in runs]
    powers_w = [run.energy(POINT, run.start_ns, run.end_ns) / s for run, s in zip(runs, times_s, strict=True)]
    mean, spread, worst = float(off.mean()), float(off.std()), float(np.abs(off).max())
    return AccountingCost(workload, fmean(times_s), float(np.mean(powers_w)), period_s, mean, spread, worst, is_own)


def compute_errors(run: Timeline, period_s: float) -> Floats:
    """Compute the relative errors of the accounted energy, for looks that fall anywhere.

    It is the node's energy between the last look before the job's start and the last before its end.
    """
    start_ns, end_ns = run.start_ns, run.end_ns
    true_j = run.energy(POINT, start_ns, end_ns)
    flaws = PanelFlaws(period_s=period_s, quantum_j=1.0)
    edges = np.array([start_ns, end_ns], dtype=np.int64)
    errors = []
    for look in range(LOOKS):
        since = start_ns - round(period_s * NS * (look + 0.5) / LOOKS)
        before, after = read_panel_j(run.curve(POINT), flaws, edges, start_ns=since)
        errors.append(float(after - before) / true_j - 1)
    return np.array(errors)


def _format_share(cost: AccountingCost) -> str:
    return fmt.format_change(cost.mean, cost.spread, is_forecast=True)


def _format_watts(cost: AccountingCost) -> str:
    return f"{fmt.format_interval(cost.counted_w, cost.spread * cost.power_w, signed=True)} W"


def _describe_costs(costs: Sequence[AccountingCost], write: Any) -> dict[str, Any]:
    """Return the numbers of a job's sentence: its own accounting if it has one, and others as text."""
    if not costs:
        return {}
    others = ", ".join(f"{write(c)} every {c.period_s:g} s" for c in costs if not c.is_own)
    numbers = {"name": costs[0].workload, "time_s": costs[0].time_s, "power_w": costs[0].power_w, "others": others}
    own = next((c for c in costs if c.is_own), None)
    return numbers if own is None else {**numbers, "own": write(own), "own_s": own.period_s, "worst": own.worst}


def _list_meter_costs(costs: Sequence[AccountingCost]) -> Iterator[MeterCost]:
    for workload in dict.fromkeys(cost.workload for cost in costs):
        numbers = _describe_costs([cost for cost in costs if cost.workload == workload], _format_share)
        yield MeterCost("own" if "own" in numbers else "none", numbers)


def _make_cost_table(costs: Sequence[AccountingCost], paper: Paper) -> list[PaperTable]:
    if not costs:
        return []
    rows = [
        (c.workload, f"{c.time_s:.0f} s", f"{c.period_s:g} s{' *' if c.is_own else ''}", f"{100 * c.mean:+.2f}",
         f"{100 * c.spread:.2f}", f"{100 * c.worst:.1f}", f"{c.counted_w:.0f}")
        for c in costs
    ]  # fmt: skip
    records = tuple(
        {"workload": c.workload, "time_s": c.time_s, "power_w": c.power_w, "period_s": c.period_s, "own": c.is_own,
         "mean_error": c.mean, "spread": c.spread, "worst": c.worst, "counted_w": c.counted_w}
        for c in costs
    )  # fmt: skip
    columns = ["job, on a GPU", "runtime", "a look every"]
    columns += ["error of energy, %", "deviation, %", "at worst, %", "mean, W"]
    return [PaperTable("accounting", make_table(columns, rows, **paper.make_table("accounting")), records)]


# Profiles of the GPUs, and pictures of them

PICTURES = {"energy": "3-energy", "health": "4-health"}
FIRST_GPU = "gpu:0"


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Hold NVML's readings of each GPU in one run: shares of its time (0 to 1), powers (W), and which GPUs worked."""

    shares: Floats
    watts: tuple[Floats, ...]
    used: tuple[bool, ...]

    @property
    def above_idle_w(self) -> float | None:
        """Return how much more GPUs at work draw than those that idle beside them (W), by their medians."""
        pairs = list(zip(self.watts, self.used, strict=True))
        busy, idle = ([watts for watts, used in pairs if used is wanted] for wanted in (True, False))
        if not busy or not idle:
            return None
        return float(np.median(np.concatenate(busy)) - np.median(np.concatenate(idle)))


def read_profiles(study: Study, workload: str, node: str) -> list[GpuProfile]:
    """Read the powers of the GPUs over each repeat that has ended; none for nodes without GPUs."""
    runs = [(cell, folder) for cell, _, folder in list_finished(study) if name_cell(cell) == (workload, node)]
    return [profile for cell, folder in runs if (profile := _read_profile(cell, folder)) is not None]


def _read_profile(cell: PlannedCell, folder: Path) -> GpuProfile | None:
    with open_run(folder) as run:
        span, parts = find_span(run, list(run.events())), read_channel(run, "power_instant_w", GPU)
    if not parts:
        return None
    known = [(times[np.isfinite(watts)], watts[np.isfinite(watts)]) for times, watts in parts]
    times = known[0][0]
    inside = times[(times >= span.start_ns) & (times < span.end_ns)]
    watts = tuple(np.interp(inside, at, values) for at, values in known)
    count = int(cell.knobs["gpus"].value) if "gpus" in cell.knobs else 0
    shares = (inside - span.start_ns) / (span.end_ns - span.start_ns)
    return GpuProfile(shares, watts, tuple(k < count for k in range(len(watts))))


def draw_pictures(study: Study, paper: Paper, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Draw figures 3 and 4 of the paper into a folder, and return the files. Raises MissingDependency."""
    first: dict[tuple[str, str], Path] = {}
    for cell, _, run in list_finished(study):
        first.setdefault(name_cell(cell), run)
    files: list[Path] = []
    for case, stem in PICTURES.items():
        for phase in PHASES:
            names = [(f"{case}-{phase}", setup) for setup in (GPU, MIX)]
            loaded = {name[1]: load_result_and_profile(first[name]) for name in names if name in first}
            known = {setup: (result, profile) for setup, (result, profile) in loaded.items() if profile is not None}
            if known:
                results, profiles = zip(*known.values(), strict=True)
                chart = make_overlay_chart(results, profiles, list(known), by_fraction=True)
                common = tuple(trace for trace in chart.common if trace.label == FIRST_GPU)
                chart = replace(chart, common=common, names=tuple(paper.entries.labels[setup] for setup in known))
                remark = f"Use case {case}, {phase}. {word_remark(results)} {paper.entries.pictures['profile']}"
                files += write_chart(chart, folder / f"{stem}-{phase}", remark, formats)
    return files
