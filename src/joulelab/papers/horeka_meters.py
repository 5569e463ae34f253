"""Say what the accounting's sampling costs: the same jobs of the twin, looked at more and less often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.clock import NS
from joulelab.papers import PublishedTable
from joulelab.papers.horeka_runs import done
from joulelab.study.matrix import TWIN
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import read_panel_j
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import meters
from joulelab.twin.virtual.cells import find_model, make_request, read_description
from joulelab.twin.virtual.slot import make_seed

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.twin.timeline import Timeline

    Floats = npt.NDArray[np.float64]

POINT = "node.dc"
PERIODS_S = (1, 10, 30, 60)
JOBS = (("health-predict", "gpu"), ("health-train", "gpu"))  # the shortest job of the paper, and a training
RUNS, LOOKS = 10, 24  # runs of a job with scatter of their own; times at which the looks may fall in each


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold what looking at a job every `period_s` gets wrong: relative errors of its energy over runs and looks.

    `power_w` is the job's true mean power; `own` says that the twin's accounting looks as often as that.
    """

    workload: str
    time_s: float
    power_w: float
    period_s: float
    mean: float
    spread: float
    worst: float
    own: bool = False

    @property
    def counted_w(self) -> float:
        """Return the mean power (W) that is accounted on average."""
        return self.power_w * (1 + self.mean)


def costs(study: Study) -> list[Cost]:
    """Return what each period costs in each job that ran on a twin; nothing for jobs on real nodes."""
    found = []
    for workload, node in JOBS:
        ran = done(study, workload, node)
        laid, own_s = _laid(study, ran[0][0]) if ran else ([], 0.0)
        if laid:
            periods = sorted({*map(float, PERIODS_S), own_s} - {0.0})
            found += [replace(_cost(workload, period, laid), own=period == own_s) for period in periods]
    return found


def _laid(study: Study, cell: PlannedCell) -> tuple[list[Timeline], float]:
    """Return some runs of a job as the twin has them, each after idle time, and how often its accounting looks (s)."""
    node = study.nodes.get(cell.workload.node_type)
    if node is None or node.executor != TWIN:
        return [], 0.0
    described = read_description(node)
    _, model = find_model(described, cell)
    mounted = meters.find_accounting(described.meters)
    own_s = meters.read_frequency_s(mounted[1]) if mounted else 0.0
    ask, when = make_request(described, node, cell), RunTimes(NS * 10**6, idle_s=max(*PERIODS_S, own_s))
    seeds = [make_seed(study, cell, f"r{k + 1:02d}") for k in range(RUNS)]
    return [lay_out_run(described.node, model, ask, when, seed) for seed in seeds], own_s


def _cost(workload: str, period_s: float, laid: list[Timeline]) -> Cost:
    off = np.concatenate([errors(timeline, period_s) for timeline in laid])
    times_s = [(t.end_ns - t.start_ns) / NS for t in laid]
    power_w = float(np.mean([t.energy(POINT, t.start_ns, t.end_ns) / s for t, s in zip(laid, times_s, strict=True)]))
    mean, spread, worst = float(off.mean()), float(off.std()), float(np.abs(off).max())
    return Cost(workload, float(np.mean(times_s)), power_w, period_s, mean, spread, worst)


def errors(timeline: Timeline, period_s: float) -> Floats:
    """Return by what share the accounted energy is off, for looks that fall anywhere.

    It is what the node took between the last look before the job's start and the last before its end.
    """
    a, b = timeline.start_ns, timeline.end_ns
    true = timeline.energy(POINT, a, b)
    flaws = PanelFlaws(period_s=period_s, quantum_j=1.0)
    edges = np.array([a, b], dtype=np.int64)
    off = []
    for look in range(LOOKS):
        since = a - round(period_s * NS * (look + 0.5) / LOOKS)
        before, after = read_panel_j(timeline.curve(POINT), flaws, edges, start_ns=since)
        off.append(float(after - before) / true - 1)
    return np.array(off)


def sentences(found: list[Cost]) -> list[str]:
    """Say what the accounting of the twin costs each job, and what others would."""
    said = []
    for name in dict.fromkeys(each.workload for each in found):
        costs = [each for each in found if each.workload == name]
        own = next((each for each in costs if each.own), None)
        others = ", ".join(f"{_off(each)} every {each.period_s:g} s" for each in costs if not each.own)
        head = f"{name} on a GPU ({costs[0].time_s:.0f} s)"
        if own is None:
            said.append(f"{head}: the twin has no accounting of a cluster; one would be off by {others}.")
            continue
        said.append(
            f"{head}, accounted as on this twin with a look every {own.period_s:g} s: energy is off by {_off(own)} "
            f"(mean and standard deviation over runs and where looks fall; at worst {100 * own.worst:.1f} %): idle "
            f"time before the job counts in place of its end. It would be {others}."
        )
    return said


def _off(cost: Cost) -> str:
    return f"{100 * cost.mean:+.2f} ± {100 * cost.spread:.2f} %"


def accounted_otherwise(found: list[Cost], workload: str) -> str:
    """Say what mean power would be accounted for a job with other looks, on average; empty where nothing is known."""
    costs = [each for each in found if each.workload == workload]
    own = next((each for each in costs if each.own), None)
    if own is None:
        return ""
    others = ", ".join(f"{_watts(each)} every {each.period_s:g} s" for each in costs if not each.own)
    return (
        f"what is accounted of so short a job depends on how often that looks: every {own.period_s:g} s on this twin, "
        f"which makes {_watts(own)} of {own.power_w:.0f} W (mean and deviation of single runs); it would be {others}; "
        "what HoreKa has set is not printed"
    )


def _watts(cost: Cost) -> str:
    return f"{cost.counted_w:.0f} ± {cost.spread * cost.power_w:.0f} W"


def cost_table(found: list[Cost]) -> PublishedTable | None:
    """Return what every period costs as a table; None where nothing ran on a twin."""
    if not found:
        return None
    rows = tuple(
        (c.workload, f"{c.time_s:.0f} s", f"{c.period_s:g} s{' *' if c.own else ''}", f"{100 * c.mean:+.2f}",
         f"{100 * c.spread:.2f}", f"{100 * c.worst:.1f}", f"{c.counted_w:.0f}")
        for c in found
    )  # fmt: skip
    records = tuple(
        {"workload": c.workload, "time_s": c.time_s, "power_w": c.power_w, "period_s": c.period_s, "own": c.own,
         "mean_error": c.mean, "spread": c.spread, "worst": c.worst, "counted_w": c.counted_w}
        for c in found
    )  # fmt: skip
    heads = ("job, on a GPU", "runtime", "a look every", "error of energy, %", "deviation, %", "at worst, %", "mean, W")
    note = "By the twin's own integral, over runs with scatter and over where the looks fall. *: as the twin's cluster."
    return PublishedTable("accounting", "What the accounting's sampling costs", heads, rows, note, records)
