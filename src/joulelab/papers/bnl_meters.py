"""Say what a PDU that is read once a minute costs: the same runs of the twin, read more and less often.

Energy is made of the readings as in the analysis of any run: by straight lines between them, also to those before and
after it. Powers are as the PDU shows them, with its own error of gain, like those that the study prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.clock import NS
from joulelab.papers.bnl_runs import NODE, done
from joulelab.study.matrix import TWIN
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual.cells import find_model, make_request, read_description
from joulelab.twin.virtual.meters import Bench, choose_meters, find_gain
from joulelab.twin.virtual.slot import make_seed

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell

    Floats = npt.NDArray[np.float64]

PERIODS_S = (1, 10, 60, 300)
MINUTE_S = 60
PHASES = 60  # a clock's minute begins anywhere within a run: so many begins are tried
REST_S = max(PERIODS_S)  # at rest before and after a run: there is a reading on both sides


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold a run as means of power over each second (W), true, with `REST_S` of rest on both sides; the PDU's gain.

    `gain` is the relative error of all that the PDU shows.
    """

    watts: Floats
    gain: float = 0.0

    @property
    def inner(self) -> Floats:
        """Return the powers of the run alone (W)."""
        return self.watts[REST_S:-REST_S]


@dataclass(frozen=True, slots=True)
class Cost:
    """Hold what reading a run every `period_s` gets wrong, over where the readings may fall.

    `energy` is the root mean square of the relative error that reading seldom makes, `worst` the largest; `median_w`
    and `max_w` are how far off median and maximum are on average (W), against those of readings in every second, of
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


def costs(study: Study) -> list[Cost]:
    """Return what each period costs in each run that ended on a twin; nothing for runs on real nodes."""
    found = []
    for name, (cell, slot) in done(study).items():
        seen = _seen(study, cell, slot.folder.name)
        if seen is not None:
            found += [cost(name, seen, period) for period in PERIODS_S]
    return found


def _seen(study: Study, cell: PlannedCell, slot: str) -> Seen | None:
    """Return a run on a twin second by second, and the gain of the meter that the study reads at the node."""
    node = study.nodes.get(cell.workload.node_type)
    if node is None or node.executor != TWIN:
        return None
    described, seed = read_description(node), make_seed(study, cell, slot)
    ask = make_request(described, node, cell)
    _, model = find_model(described, cell)
    laid = lay_out_run(described.node, model, ask, RunTimes(0, REST_S, REST_S + 1), seed)
    share, curve = laid.curve(NODE)
    whole_s = (laid.end_ns - laid.start_ns) // NS
    edges = laid.start_ns + NS * np.arange(-REST_S, whole_s + REST_S + 1, dtype=np.int64)
    read = choose_meters(described.meters, study.settings_of(cell.workload.name))
    bench = Bench(laid, ask, seed, study_seed=study.seed)
    gains = [find_gain(bench, name, one) for name, one in read.items() if one.point == NODE]
    return Seen(np.asarray(share * np.diff(curve.joules(edges))), next(iter(gains), 0.0))


def cost(name: str, seen: Seen, period_s: int) -> Cost:
    """Return what it costs to read a run only every so many seconds."""
    begins = np.unique(np.linspace(0, period_s - 1, PHASES).round().astype(int))
    true_j = float(seen.inner.sum())
    off = np.array([joules(seen, int(begin), period_s) / true_j - 1 for begin in begins])
    shown = (1 + seen.gain) * seen.inner
    parts = [part for begin in begins if (part := shown[begin::period_s]).size]
    return Cost(
        name,
        period_s,
        float(np.sqrt(np.mean(np.square(off)))),
        float(np.abs(off).max()),
        float(np.mean([np.median(part) - np.median(shown) for part in parts])),
        float(np.mean([part.max() - shown.max() for part in parts])),
        float(shown.max()),
        seen.gain,
    )


def joules(seen: Seen, begin: int, period_s: int) -> float:
    """Return the energy (J) of a run by straight lines between readings every so many seconds, from the rest on."""
    at = np.arange(begin, len(seen.watts), period_s)
    middle, power = at + 0.5, seen.watts[at]  # a mean over a second is that of its middle
    first, last = float(REST_S), float(len(seen.watts) - REST_S)
    t = np.concatenate(([first], middle[(middle > first) & (middle < last)], [last]))
    drawn = np.interp(t, middle, power)
    return float(np.dot(np.diff(t), drawn[1:] + drawn[:-1])) / 2


def sentences(found: list[Cost]) -> list[str]:
    """Say what one reading a minute costs each run, beside other periods, and what the PDU's own gain does."""
    said = []
    for name in dict.fromkeys(each.name for each in found):
        own = {each.period_s: each for each in found if each.name == name}
        at = own[MINUTE_S]
        others = ", ".join(
            f"{100 * each.energy:.2f} % every {each.period_s} s" for each in own.values() if each.period_s != MINUTE_S
        )
        said.append(
            f"{name}, power read once a minute: energy is off by {100 * at.energy:.2f} % (root mean square over where "
            f"the minutes fall; at worst {100 * at.worst:.2f} %), the median by {at.median_w:+.0f} W, and the maximum "
            f"is {-at.max_w:.0f} W below that of every second ({at.most_w:.0f} W). Energy would be off by {others}."
        )
    if found:
        said.append(
            f"The PDU's own gain is off by {100 * found[0].gain:+.2f} % in this study. It is in all medians, maxima "
            "and energies that are printed and in the powers above, not in the errors of energy above: these are what "
            "reading seldom adds."
        )
    return said
