"""Say what a PDU that is read once a minute costs: the same runs of the twin, read more and less often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.clock import NS
from joulelab.report.papers.bnl_runs import NODE, done
from joulelab.study.nodes import TWIN
from joulelab.study.virtual.ask import ask_of, model_of
from joulelab.study.virtual.slot import seed_of
from joulelab.study.virtual.twin import description_of
from joulelab.twins.timeline import When, lay_out

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell

    Floats = npt.NDArray[np.float64]

PERIODS_S = (1, 10, 60, 300)
MINUTE_S = 60
PHASES = 60  # a clock's minute begins anywhere within a run: so many begins are tried


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold what reading a run every `period_s` gets wrong, over where the readings may fall.

    `energy` is the root mean square of its relative error, `worst` the largest; `median_w` and `max_w` are how far off
    median and maximum are on average (W), against those of means over 1 s.
    """

    name: str
    period_s: int
    energy: float
    worst: float
    median_w: float
    max_w: float
    most_w: float


def costs(study: Study) -> list[Cost]:
    """Return what each period costs in each run that ended on a twin; nothing for runs on real nodes."""
    found = []
    for name, (cell, slot) in done(study).items():
        watts = _true_w(study, cell, slot.folder.name)
        if watts is not None:
            found += [cost(name, watts, period) for period in PERIODS_S]
    return found


def _true_w(study: Study, cell: PlannedCell, slot: str) -> Floats | None:
    """Return the true means of power over each second of a run (W)."""
    node = study.nodes.get(cell.workload.node_type)
    if node is None or node.executor != TWIN:
        return None
    described = description_of(node)
    _, model = model_of(described, cell)
    laid = lay_out(described.node, model, ask_of(described, node, cell), When(), seed_of(study, cell, slot))
    share, curve = laid.curve(NODE)
    edges = np.arange(laid.start_ns, laid.end_ns + 1, NS, dtype=np.int64)
    return np.asarray(share * np.diff(curve.joules(edges)))


def cost(name: str, watts: Floats, period_s: int) -> Cost:
    """Return what it costs to read only every so many of the means over 1 s (W)."""
    begins = np.unique(np.linspace(0, min(period_s, len(watts)) - 1, PHASES).round().astype(int))
    seen = [watts[begin::period_s] for begin in begins]
    true_j = float(watts.sum())
    off = [
        _joules(each, int(begin), period_s, len(watts)) / true_j - 1 for each, begin in zip(seen, begins, strict=True)
    ]
    return Cost(
        name,
        period_s,
        float(np.sqrt(np.mean(np.square(off)))),
        float(np.abs(off).max()),
        float(np.mean([np.median(each) - np.median(watts) for each in seen])),
        float(np.mean([each.max() - watts.max() for each in seen])),
        float(watts.max()),
    )


def _joules(seen: Floats, begin: int, period_s: int, length: int) -> float:
    """Return the energy (J) by trapezoids between readings, which the first and the last extend to the edges."""
    inner = float(np.sum((seen[1:] + seen[:-1]) / 2)) * period_s
    last = begin + (len(seen) - 1) * period_s
    return inner + float(seen[0]) * (begin + 0.5) + float(seen[-1]) * (length - last - 0.5)


def sentences(found: list[Cost]) -> list[str]:
    """Say what one reading a minute costs each run, beside other periods."""
    said = []
    for name in dict.fromkeys(each.name for each in found):
        own = {each.period_s: each for each in found if each.name == name}
        at = own[MINUTE_S]
        others = ", ".join(
            f"{100 * each.energy:.2f} % every {each.period_s} s" for each in own.values() if each.period_s != MINUTE_S
        )
        said.append(
            f"{name}, read once a minute: energy is off by {100 * at.energy:.2f} % (root mean square over where the "
            f"minutes fall; at worst {100 * at.worst:.2f} %), the median by {at.median_w:+.0f} W, and the maximum is "
            f"{-at.max_w:.0f} W below that of the seconds ({at.most_w:.0f} W). Energy would be off by {others}."
        )
    return said
