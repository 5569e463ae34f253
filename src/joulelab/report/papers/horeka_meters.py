"""Say what the accounting's sampling costs: the same jobs of the twin, looked at more and less often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.clock import NS
from joulelab.report.papers import Table
from joulelab.report.papers.horeka_runs import done
from joulelab.study.nodes import TWIN
from joulelab.study.virtual.ask import ask_of, model_of
from joulelab.study.virtual.slot import seed_of
from joulelab.study.virtual.twin import description_of
from joulelab.twins.instrument import panel_j
from joulelab.twins.panel import PanelFlaws
from joulelab.twins.timeline import When, lay_out

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.twins.timeline import Timeline

    Floats = npt.NDArray[np.float64]

POINT = "node.dc"
PERIODS_S = (1, 10, 30, 60)
USUAL_S = 30
JOBS = (("health-predict", "gpu"), ("health-train", "gpu"))  # the shortest job of the paper, and a training
RUNS, LOOKS = 10, 24  # runs of a job with scatter of their own; times at which the looks may fall in each


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold what looking at a job every `period_s` gets wrong: relative errors of its energy over runs and looks."""

    workload: str
    time_s: float
    period_s: int
    mean: float
    spread: float
    worst: float


def costs(study: Study) -> list[Cost]:
    """Return what each period costs in each job that ran on a twin; nothing for jobs on real nodes."""
    found = []
    for workload, node in JOBS:
        ran = done(study, workload, node)
        laid = _laid(study, ran[0][0]) if ran else []
        if laid:
            time_s = float(np.mean([(t.end_ns - t.start_ns) / NS for t in laid]))
            found += [_cost(workload, time_s, period, laid) for period in PERIODS_S]
    return found


def _laid(study: Study, cell: PlannedCell) -> list[Timeline]:
    """Return some runs of a job as the twin has them, each with idle time before it."""
    node = study.nodes.get(cell.workload.node_type)
    if node is None or node.executor != TWIN:
        return []
    described = description_of(node)
    _, model = model_of(described, cell)
    ask, when = ask_of(described, node, cell), When(NS * 10**6, idle_s=float(max(PERIODS_S)))
    return [lay_out(described.node, model, ask, when, seed_of(study, cell, f"r{k + 1:02d}")) for k in range(RUNS)]


def _cost(workload: str, time_s: float, period_s: int, laid: list[Timeline]) -> Cost:
    off = np.concatenate([errors(timeline, period_s) for timeline in laid])
    return Cost(workload, time_s, period_s, float(off.mean()), float(off.std()), float(np.abs(off).max()))


def errors(timeline: Timeline, period_s: int) -> Floats:
    """Return by what share the accounted energy is off, for looks that fall anywhere.

    It is what the node took between the last look before the job's start and the last before its end.
    """
    a, b = timeline.start_ns, timeline.end_ns
    true = timeline.energy(POINT, a, b)
    flaws = PanelFlaws(period_s=float(period_s), quantum_j=1.0)
    edges = np.array([a, b], dtype=np.int64)
    off = []
    for look in range(LOOKS):
        since = a - round(period_s * NS * (look + 0.5) / LOOKS)
        before, after = panel_j(timeline.curve(POINT), flaws, edges, start_ns=since)
        off.append(float(after - before) / true - 1)
    return np.array(off)


def sentences(found: list[Cost]) -> list[str]:
    """Say what the usual period costs each job, beside other periods."""
    said = []
    for name in dict.fromkeys(each.workload for each in found):
        own = {each.period_s: each for each in found if each.workload == name}
        at = own[USUAL_S]
        others = ", ".join(
            f"{100 * each.mean:+.2f} ± {100 * each.spread:.2f} % every {each.period_s} s"
            for each in own.values()
            if each.period_s != USUAL_S
        )
        said.append(
            f"{name} on a GPU ({at.time_s:.0f} s), accounted with a look every {USUAL_S} s: energy is off by "
            f"{100 * at.mean:+.2f} ± {100 * at.spread:.2f} % (mean and standard deviation over runs and where looks "
            f"fall; at worst {100 * at.worst:.1f} %): idle time before the job counts in place of its end. "
            f"It would be {others}."
        )
    return said


def cost_table(found: list[Cost]) -> Table | None:
    """Return what every period costs as a table; None where nothing ran on a twin."""
    if not found:
        return None
    rows = tuple(
        (c.workload, f"{c.time_s:.0f} s", f"{c.period_s} s", f"{100 * c.mean:+.2f}", f"{100 * c.spread:.2f}",
         f"{100 * c.worst:.1f}")
        for c in found
    )  # fmt: skip
    records = tuple(
        {"workload": c.workload, "time_s": c.time_s, "period_s": c.period_s, "mean_error": c.mean, "spread": c.spread,
         "worst": c.worst}
        for c in found
    )  # fmt: skip
    heads = ("job, on a GPU", "runtime", "a look every", "error of energy, %", "deviation, %", "at worst, %")
    note = "By the twin's own integral, over runs with scatter and over where the looks fall."
    return Table("accounting", "What the accounting's sampling costs", heads, rows, note, records)
