"""Lay out the ways to run a job side by side: now, at the best cap, at the best start, with pauses, with caps by slot.

Each way is an energy by slot, so that it can be held against any rate: the one it was made for, or the one that came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.plan.when.blocks import NO_RESTART, Restart, fill_blocks
from joulelab.plan.when.optimum import fill

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats
    from joulelab.plan.when.job import Job
    from joulelab.plan.when.optimum import Filling
    from joulelab.plan.when.slots import Slots

Name = Literal["now", "now-cap", "start", "pauses-idle", "pauses-off", "caps", "caps-idle", "caps-off"]
TITLES: dict[Name, str] = {
    "now": "now",
    "now-cap": "now, best cap",
    "start": "best start",
    "pauses-idle": "pauses, node idles",
    "pauses-off": "pauses, node off",
    "caps": "caps, no pauses",
    "caps-idle": "caps, node idles",
    "caps-off": "caps, node off",
}
STARTS_PER_SLOT = 3
NEVER = 1e-6  # s: less is no time
TILT = 1e-7  # share of a rate
DUST = 1e-6  # what is left of terms that cancel, by rounding
SAME = 1e-3  # share of a cost: who saves less than this by more trouble is not worth it


@dataclass(frozen=True)
class Terms:
    """Hold how a job may be run: what a restart takes, whether its node waits for it from now on, PUE.

    `pue_u` is the standard uncertainty of the PUE: in every cost alike, so that it cancels in gains.
    """

    restart: Restart = NO_RESTART
    waits: bool = False
    pue: float = 1.0
    pue_u: float = 0.0


PLAIN = Terms()


@dataclass(frozen=True)
class Way:
    """Hold one way to run a job: energy (J at the nodes), time running and paused (s) by slot, and time by mode (s).

    `cost` is in the unit of the rate's upper half (g, or money), PUE included; `energy` (J) is without PUE. Their
    intervals hold only where the job is `sure` of its power: `shown` and `saved` tell that. `rated` is
    what nameplate x time would say of the same time. `cap_w` is the cap where there is one for all of the time.
    """

    name: Name
    start_s: float
    end_s: float
    energy_j: Floats
    running_s: Floats
    paused_s: Floats
    modes_s: Floats
    restarts: int
    cost: Quantity
    energy: Quantity
    rated: float | None
    cap_w: float | None = None

    @property
    def title(self) -> str:
        """Return what it is called in tables."""
        return TITLES[self.name]


def ways_of(job: Job, slots: Slots, terms: Terms = PLAIN) -> tuple[Way, ...]:
    """Return all ways that there are, `now` first. Raises ConfigError where the deadline is too early for any."""
    room_s = slots.deadline_s - slots.start_s
    if job.work_s > room_s:
        raise ConfigError(
            "the deadline is too early", why=f"the job takes {job.work_s / 3600:.2f} h of {room_s / 3600:.2f} h",
            next="a later deadline, or a shorter job",
        )  # fmt: skip
    idle_w = job.idle.value
    found = [now(job, slots, terms), now_capped(job, slots, terms), best_start(job, slots, terms)]
    found.append(_paused("pauses-idle", job, slots, terms, idle_w))
    found.append(_paused("pauses-off", job, slots, terms, 0.0))
    if job.caps and terms.restart:
        # Where a pause costs, caps by the slot go without: the job slows down instead.
        found.append(_filled("caps", job, slots, terms, None, caps=True))
    elif job.caps:
        found.append(_filled("caps-idle", job, slots, terms, idle_w, caps=True))
        found.append(_filled("caps-off", job, slots, terms, 0.0, caps=True))
    return tuple(replace(way, cost=_with_pue(way.cost, terms)) for way in found if way is not None)


def now(job: Job, slots: Slots, terms: Terms) -> Way:
    """Return the job as it ran, started now."""
    return _straight("now", job, slots, terms, slots.start_s)


def now_capped(job: Job, slots: Slots, terms: Terms) -> Way | None:
    """Return the job started now at the one cap that costs least, None where nothing is known of caps."""
    if not job.caps:
        return None
    room_s = slots.deadline_s - slots.start_s
    fits = [k for k, mode in enumerate(job.modes) if job.work_s * mode.slowdown.value <= room_s]
    ways = [_capped(job, slots, terms, k) for k in fits]
    return min(ways, key=lambda way: way.cost.value)


def best_start(job: Job, slots: Slots, terms: Terms) -> Way:
    """Return the job as it ran, started when it costs least: all starts by its own course, a third of a slot apart."""
    edges, latest = slots.edges_s, slots.deadline_s - job.work_s
    fine = np.interp(np.arange(STARTS_PER_SLOT * (len(edges) - 1) + 1) / STARTS_PER_SLOT, np.arange(len(edges)), edges)
    starts = np.concatenate([[slots.start_s, latest], fine, edges - job.work_s])
    starts = np.unique(starts[(starts >= slots.start_s) & (starts <= latest)])
    rates = _tilted(slots)
    waiting = np.append(0.0, np.cumsum(rates * slots.lengths_s)) * job.idle.value
    costs = np.empty(len(starts))
    for k, start in enumerate(starts):
        energies = np.diff(job.energy_to(edges - start))
        costs[k] = energies @ rates + (np.interp(start, edges, waiting) if terms.waits else 0.0)
    return _straight("start", job, slots, terms, float(starts[int(np.argmin(costs))]))


def _straight(name: Name, job: Job, slots: Slots, terms: Terms, start_s: float) -> Way:
    """Return the job as it ran, by its own course."""
    energies = np.diff(job.energy_to(slots.edges_s - start_s))
    running = _covered(slots, start_s, start_s + job.work_s)
    modes = np.zeros((len(energies), len(job.modes)))
    modes[:, -1] = running
    paused = _covered(slots, slots.start_s, start_s) if terms.waits else np.zeros(len(energies))
    way = _way(name, job, slots, terms, modes, paused)
    whole = energies + paused * job.idle.value
    # By the job's own course, as far off (in relative terms) as by its mean power: so that it cancels in gains.
    cost = _course_cost(job, slots, terms, whole, paused)
    mean, rest_s = _scaled_to(job.full.power, float(energies.sum())), float(paused.sum())
    energy = mean + job.idle * rest_s if rest_s > NEVER else mean
    return replace(way, start_s=start_s, end_s=start_s + job.work_s, energy_j=whole, cost=cost, energy=energy)


def _course_cost(job: Job, slots: Slots, terms: Terms, whole_j: Floats, paused_s: Floats) -> Quantity:
    """Return what a job costs by its own course, with energies by slot that have its pauses in them."""
    rest = float(slots.per_j @ paused_s) * terms.pue
    ran = _scaled_to(job.full.power, _priced(whole_j, slots, terms) - rest * job.idle.value)
    return ran + job.idle * rest if float(paused_s.sum()) > NEVER else ran


def _scaled_to(q: Quantity, value: float) -> Quantity:
    """Return a value that is as far off, in relative terms, as a quantity is."""
    return q * (value / q.value) if q.value else replace(q, value=value)


def _capped(job: Job, slots: Slots, terms: Terms, k: int) -> Way:
    """Return the job started now in one mode."""
    mode = job.modes[k]
    took = job.work_s * mode.slowdown.value
    modes = np.zeros((len(slots.values), len(job.modes)))
    modes[:, k] = _covered(slots, slots.start_s, slots.start_s + took)
    last = int(np.flatnonzero(modes[:, k] > 0)[-1])
    price = float(slots.per_j[last]) * mode.power.value * mode.slowdown.value
    way = _way("now-cap", job, slots, terms, modes, np.zeros(len(modes)), price=price)
    return replace(way, start_s=slots.start_s, end_s=slots.start_s + took, cap_w=mode.cap_w)


def _paused(name: Name, job: Job, slots: Slots, terms: Terms, pause_w: float) -> Way:
    """Return the job as fast as it can, with pauses."""
    if not terms.restart:
        return _filled(name, job, slots, terms, pause_w, caps=False)
    waits = terms.waits and pause_w > 0
    power_w = job.full.power.value
    rates = _tilted(slots)
    blocks = fill_blocks(rates, slots.lengths_s, job.work_s, power_w, pause_w, terms.restart, waits=waits)
    modes = np.zeros((len(slots.values), len(job.modes)))
    modes[:, -1] = blocks.running_s
    paused = blocks.paused_s if pause_w > 0 else np.zeros(len(modes))
    again_j: Floats = blocks.restarts.astype(np.float64) * terms.restart.energy_j
    way = _way(name, job, slots, terms, modes, paused)
    more = Quantity(_priced(again_j, slots, terms))
    return replace(
        way, energy_j=way.energy_j + again_j, cost=way.cost + more, energy=way.energy + Quantity(float(again_j.sum())),
        restarts=int(blocks.restarts.sum()),
    )  # fmt: skip


def _filled(name: Name, job: Job, slots: Slots, terms: Terms, pause_w: float | None, *, caps: bool) -> Way:
    """Return the optimum with pauses at a power (None: never paused), at one speed or with caps by the slot."""
    waits = terms.waits and pause_w != 0  # a node that is off in pauses is off before the job too
    filling = _cheapest(job, slots, pause_w, job.idle.value if waits else 0.0, caps=caps)
    modes = np.zeros((len(slots.values), len(job.modes)))
    modes[:, -filling.seconds.shape[1] :] = filling.seconds
    paused = filling.paused_s.copy()
    # At prices below 0 it would pay to hold the node after the job, or before: that is no way to run it.
    paused[filling.last + 1 :] = 0.0
    paused[: 0 if waits else filling.first] = 0.0
    return _way(name, job, slots, terms, modes, paused, price=filling.price)


def _cheapest(job: Job, slots: Slots, pause_w: float | None, wait_w: float, *, caps: bool) -> Filling:
    """Return the cheapest filling; where pauses are free and going without them costs the same, one without."""
    rates, arrays = _tilted(slots), job.arrays(pause_w, caps=caps)
    found = fill(rates, slots.lengths_s, job.work_s, arrays, wait_w=wait_w)
    if pause_w != 0 or not _gaps(found.seconds.sum(axis=1), slots):
        return found
    plain = fill(rates, slots.lengths_s, job.work_s, job.arrays(None, caps=caps), wait_w=wait_w)
    same = 10 * TILT * float(np.abs(rates).mean() * arrays.powers_w.max()) * job.work_s
    return plain if plain.cost <= found.cost + same else found


def _way(
    name: Name, job: Job, slots: Slots, terms: Terms, modes_s: Floats, paused_s: Floats, price: float = 0.0
) -> Way:
    """Return a way from the time in each mode: its cost with the terms of power, idle power and speed.

    A mode that is slower than thought costs the price of the work that is missing then.
    """
    powers = np.array([mode.power.value for mode in job.modes])
    energies = modes_s @ powers + paused_s * job.idle.value
    used = [(mode, float(modes_s[:, k].sum())) for k, mode in enumerate(job.modes) if modes_s[:, k].sum() > NEVER]
    parts = [mode.power * seconds for mode, seconds in used]
    rest_s = float(paused_s.sum())
    parts += [job.idle * rest_s] if rest_s > NEVER else []
    running = modes_s.sum(axis=1)
    start_s, end_s = _ends(slots, running)
    rated = None if job.rated_w is None else _priced(running * job.rated_w, slots, terms)
    return Way(
        name, start_s, end_s, energies, running, paused_s, modes_s, _gaps(running, slots),
        _modes_cost(job, slots, terms, modes_s, paused_s, price), add_quantities(parts), rated,
    )  # fmt: skip


def _modes_cost(job: Job, slots: Slots, terms: Terms, modes_s: Floats, paused_s: Floats, price: float) -> Quantity:
    """Return what time in modes and in pauses costs; `price` is what one more second of work does."""
    by_mode, by_pause = slots.per_j @ modes_s * terms.pue, float(slots.per_j @ paused_s) * terms.pue
    used = [(k, mode, float(modes_s[:, k].sum())) for k, mode in enumerate(job.modes) if modes_s[:, k].sum() > NEVER]
    costs = [mode.power * float(by_mode[k]) for k, mode, _ in used]
    costs += [_late(mode.slowdown, price * terms.pue * seconds) for _, mode, seconds in used]
    costs += [job.idle * by_pause] if float(paused_s.sum()) > NEVER else []
    return add_quantities(costs)


def _with_pue(cost: Quantity, terms: Terms) -> Quantity:
    if not terms.pue_u:
        return cost
    return cost + Quantity(0.0, {"pue:given": cost.value * terms.pue_u / terms.pue})


def _tilted(slots: Slots) -> Floats:
    """Return the rates with so little more for later slots that of two ways that cost the same the earlier is found."""
    tilted: Floats = slots.per_j + TILT * np.abs(slots.per_j).mean() * np.linspace(0.0, 1.0, len(slots.values))
    return tilted


def _late(slowdown: Quantity, cost_per_speed: float) -> Quantity:
    """Return what an uncertain slowdown adds to the terms of a cost: speed is its inverse."""
    bare = replace(slowdown, value=0.0)
    return bare * (cost_per_speed / slowdown.value**2)


def _priced(energies_j: Floats, slots: Slots, terms: Terms) -> float:
    return float(energies_j @ slots.per_j) * terms.pue


def _covered(slots: Slots, since_s: float, until_s: float) -> Floats:
    """Return how many seconds of each slot are between two times."""
    inside: Floats = np.diff(np.clip(slots.edges_s, since_s, until_s))
    return inside


def _ends(slots: Slots, running_s: Floats) -> tuple[float, float]:
    """Return when the job starts and ends: late in the first slot, early in the last (s since 1970)."""
    ran = np.flatnonzero(running_s > NEVER)
    first, last = int(ran[0]), int(ran[-1])
    start = slots.edges_s[first] if first == last else slots.edges_s[first + 1] - running_s[first]
    return float(start), float(slots.edges_s[last] + running_s[last])


def _gaps(running_s: Floats, slots: Slots) -> int:
    """Return how often the job pauses and goes on."""
    ran = np.flatnonzero(running_s > NEVER)
    between = running_s[ran[0] : ran[-1] + 1] < slots.lengths_s[ran[0] : ran[-1] + 1] - 1.0
    between[[0, -1]] = False  # the first slot is used at its end, the last at its beginning
    return int((np.diff(np.append(False, between).astype(int)) == 1).sum())


def gain(way: Way, against: Way) -> Quantity | None:
    """Return which share less a way costs than another; what both share cancels.

    None where the other costs nothing, or this one is paid for (a price below 0): there is no share of that. It may be
    known where costs are not: what is not known of the meter is in both.
    """
    if against.cost.value <= 0 or way.cost.value < 0:
        return None
    ratio = way.cost / against.cost
    terms = {source: -u for source, u in ratio.terms.items() if abs(u) > DUST}
    return Quantity(1.0 - ratio.value, terms, ratio.known, {s: -u for s, u in ratio.bounds.items()})


def saved(way: Way, against: Way, job: Job) -> Quantity:
    """Return by how much less a way costs than another, in the unit of the cost."""
    return shown(against.cost - way.cost, job)


def shown(q: Quantity, job: Job) -> Quantity:
    """Return a cost or an energy as it may be shown: without an interval where the job's power has none."""
    return q if job.sure else replace(q, known=False)


def best_of(ways: tuple[Way, ...], job: Job, name: str = "") -> Way:
    """Return the way of a name, else the cheapest that asks nothing of others: the node idles, caps were measured.

    Raises ConfigError where there is no such way.
    """
    if name:
        found = [way for way in ways if way.name == name]
        if not found:
            why = "it needs caps that were measured at several values" if "cap" in name else "there is none"
            raise ConfigError(f"there is no way {name!r}", why=why, next=f"one of {', '.join(w.name for w in ways)}")
        return found[0]
    left_out = ("now-cap", "caps", "caps-idle") if job.caps_from == "model" else ()
    open_to = [way for way in ways if not way.name.endswith("-off") and way.name not in left_out]
    least = min(way.cost.value for way in open_to)
    return next(way for way in open_to if way.cost.value <= least + SAME * abs(least))  # the plainest comes first


def idling(way: Way, job: Job, slots: Slots, terms: Terms) -> float:
    """Return what the pauses of a way would cost if the node idled in them, in the unit of the cost."""
    inside = _covered(slots, way.start_s, way.end_s) - way.running_s
    return _priced(np.maximum(inside, 0.0) * job.idle.value, slots, terms)
