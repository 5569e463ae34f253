"""Compute the ways to run a job: now, at the best cap, at the best start, with pauses, with caps by slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity, add_quantities
from joulelab.plan.when.when_plan import PlanStretch, WhenPlan, quantity_to_json
from joulelab.plan.when.when_program import NO_RESTART, RestartCost, find_cheapest_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.when.when_job import ShiftableJob
    from joulelab.plan.when.when_plan import Action
    from joulelab.plan.when.when_program import SlotSolution
    from joulelab.plan.when.when_slots import Slots

WayName = Literal["now", "now-cap", "start", "pauses", "pauses-off", "caps"]
NEVER_S = 1e-3  # shorter is rounding
MOST_STARTS = 1_500
SAME = 1e-3  # share of a cost: a more complicated way that saves less is not worth it
DUST = 1e-6  # rest of terms that cancel


@dataclass(frozen=True, slots=True)
class PlanTerms:
    """Hold the conditions of a plan: cost of a restart, whether the node idles for the job from now on, and PUE."""

    restart: RestartCost = NO_RESTART
    node_waits: bool = False
    pue: Quantity = ONE


@dataclass(frozen=True, slots=True)
class Way:
    """Hold one way to run a job: its stretches from now to the deadline, energy (J, without PUE) and cost.

    `cost` is in the unit of the rate's upper half (g, or money), PUE included. `cap_w` is the cap if it is the same all
    the time, `gap` the share by which a cheaper one of its kind may exist. Its savings may have an interval
    (`is_saving_known`) although its cost has none: the error of the meter cancels.
    """

    name: WayName
    stretches: tuple[PlanStretch, ...]
    energy: Quantity
    cost: Quantity
    cap_w: float | None = None
    gap: float = 0.0
    is_saving_known: bool = True

    @property
    def start_s(self) -> float:
        """Return the start of the job, in s since 1970."""
        return next(one.start_s for one in self.stretches if one.action == "run")

    @property
    def end_s(self) -> float:
        """Return the end of the job, in s since 1970."""
        return max(one.end_s for one in self.stretches if one.action == "run")

    @property
    def pauses(self) -> list[PlanStretch]:
        """Return the pauses."""
        return [one for one in self.stretches if one.action == "pause"]

    def to_json(self, now: Way) -> dict[str, Any]:
        """Return plain data, with the saving against running now."""
        saving = compute_saving(self, now)
        return {
            "name": self.name, "start_utc_s": self.start_s, "end_utc_s": self.end_s, "cap_w": self.cap_w,
            "pauses": len(self.pauses), "cost": quantity_to_json(self.cost), "energy_j": quantity_to_json(self.energy),
            "saving": None if saving is None else quantity_to_json(saving), "gap": self.gap,
            "stretches": [one.to_json() for one in self.stretches],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Piece:
    start_s: float
    end_s: float
    action: Action
    mode: int = -1  # of the job, while it runs


def list_ways(job: ShiftableJob, slots: Slots, terms: PlanTerms) -> tuple[Way, ...]:
    """Return all ways, `now` first. Raises ConfigError if the deadline is too early for any."""
    room_s = slots.deadline_s - slots.start_s
    if job.work_s > room_s + NEVER_S:
        raise ConfigError(
            "the deadline is too early", why=f"the job takes {job.work_s / 3600:.2f} h of {room_s / 3600:.2f} h",
            next=f"give --deadline {np.ceil(job.work_s / 36) / 100 + 0.02:g}h or later, or a shorter job",
            code="config.deadline",
        )  # fmt: skip
    longest_s = float(slots.lengths_s.max())
    if terms.restart.time_s > longest_s:
        raise ConfigError(
            "a restart is longer than every slot", why=f"{terms.restart.time_s:g} s, slots of {longest_s:g} s",
            next="give longer slots (--slot 1h), or a shorter --pause-cost", code="config.slots",
        )  # fmt: skip
    evaluator = _Evaluator(job, slots, terms)
    found = [evaluator.run_straight("now", slots.start_s)]
    if len(job.modes) > 1:
        found.append(evaluator.choose_cap(room_s))
    found.append(evaluator.choose_start())
    pauses = evaluator.optimise("pauses", job.idle.value, has_caps=False)
    off = evaluator.optimise("pauses-off", 0.0, has_caps=False) if job.idle.value else pauses
    found.append(pauses)
    if off.cost.value < pauses.cost.value - SAME * abs(pauses.cost.value):
        found.append(off)
    if len(job.modes) > 1:
        found.append(evaluator.optimise("caps", job.idle.value, has_caps=True))
    return tuple(found)


def choose_way(ways: Sequence[Way], job: ShiftableJob, name: str = "") -> Way:
    """Return the way of a name, else the cheapest that needs nothing of others: the node idles, caps were measured.

    Raises ConfigError if there is no such way.
    """
    if name:
        found = [way for way in ways if way.name == name]
        if not found:
            why = "no effect of caps is known" if "cap" in name else "a node that is off saves nothing"
            names = ", ".join(way.name for way in ways)
            raise ConfigError(f"there is no way {name!r}", why=why, next=f"choose one of {names}", code="config.way")
        return found[0]
    left_out = ("pauses-off", *(("now-cap", "caps") if job.caps_source == "model" else ()))
    allowed = [way for way in ways if way.name not in left_out]
    least = min(way.cost.value for way in allowed)
    return next(way for way in allowed if way.cost.value <= least + SAME * abs(least))  # the simplest comes first


def compute_saving(way: Way, against: Way) -> Quantity | None:
    """Return the share that a way costs less than another; common errors cancel. None at costs of 0 or below."""
    if against.cost.value <= 0 or way.cost.value < 0:
        return None
    ratio = replace(way.cost, known=True) / replace(against.cost, known=True)
    terms = {source: -u for source, u in ratio.terms.items() if abs(u) > DUST}
    return Quantity(1.0 - ratio.value, terms, way.is_saving_known and against.is_saving_known)


def make_plan(way: Way, now: Way, job: ShiftableJob, slots: Slots, terms: PlanTerms) -> WhenPlan:
    """Return the way as the plan to follow."""
    return WhenPlan(
        job.name, way.name, slots.label, way.stretches, way.energy, way.cost, now.cost.value,
        tuple(slots.edges_s.tolist()), tuple(slots.values.tolist()), job.idle.value, job.nodes, terms.pue.value,
        job.twin,
    )  # fmt: skip


class _Evaluator:
    """Compute ways of one job in slots."""

    def __init__(self, job: ShiftableJob, slots: Slots, terms: PlanTerms) -> None:
        self.job, self.slots, self.terms = job, slots, terms

    def run_straight(self, name: WayName, start_s: float) -> Way:
        """Return the job as it ran, with its own power over time."""
        end_s = start_s + self.job.work_s
        return self._make_way(name, [_Piece(start_s, end_s, "run")], has_course=True)

    def choose_start(self) -> Way:
        """Return the job as it ran, started when it costs least."""
        slots, job = self.slots, self.job
        latest = slots.deadline_s - job.work_s
        grid = np.linspace(slots.start_s, latest, MOST_STARTS)
        whole = np.ceil(grid / 60.0) * 60.0  # people start jobs at whole minutes
        starts = np.concatenate([[slots.start_s, latest], whole, slots.edges_s, slots.edges_s - job.work_s])
        starts = np.unique(starts[(starts >= slots.start_s) & (starts <= latest)])
        per_j = slots.per_j
        costs = np.array([np.diff(job.compute_energy(slots.edges_s - start)) @ per_j for start in starts])
        if self.terms.node_waits:
            idle = np.append(0.0, np.cumsum(np.maximum(per_j, 0.0) * slots.lengths_s)) * job.idle.value
            costs += np.interp(starts, slots.edges_s, idle)
        best = int(np.argmin(costs - 1e-9 * np.abs(costs).max() * (starts[-1] - starts) / max(np.ptp(starts), 1.0)))
        return self.run_straight("start", float(starts[best]))

    def choose_cap(self, room_s: float) -> Way:
        """Return the job started now at the cap that costs least."""
        found = []
        for k, mode in enumerate(self.job.modes):
            took_s = self.job.work_s * mode.slowdown.value
            if took_s <= room_s + NEVER_S:
                start_s = self.slots.start_s
                end_s = min(start_s + took_s, self.slots.deadline_s)
                last = int(np.searchsorted(self.slots.edges_s, end_s, side="left")) - 1
                price = float(self.slots.per_j[last]) * mode.power.value * mode.slowdown.value
                way = self._make_way("now-cap", [_Piece(start_s, end_s, "run", k)], price=price)
                found.append(replace(way, cap_w=mode.cap_w))
        return min(found, key=lambda way: way.cost.value)

    def optimise(self, name: WayName, pause_w: float, *, has_caps: bool) -> Way:
        """Return the cheapest way with pauses at a power, at full speed or with caps by the slot."""
        job, slots, terms = self.job, self.slots, self.terms
        modes = job.get_modes(has_caps=has_caps)
        wait_w = job.idle.value if terms.node_waits and pause_w else 0.0
        found = find_cheapest_slots(
            slots.per_j, slots.lengths_s, job.work_s, modes, pause_w, wait_w=wait_w, restart=terms.restart
        )
        pieces = list(_lay_out_pieces(found, slots, len(job.modes) - len(modes.speeds)))
        way = self._make_way(name, pieces, price=found.price, is_off=pause_w == 0)
        return replace(way, gap=max(found.gap, 0.0) if np.isfinite(found.gap) else 0.0)

    def _make_way(
        self, name: WayName, pieces: Sequence[_Piece], *, price: float = 0.0, has_course: bool = False,
        is_off: bool = False,
    ) -> Way:  # fmt: skip
        """Return a way from what is done when; `price` is the cost of one more second of work.

        A mode that is slower than expected costs the price of the work that is then missing.
        """
        job, slots, pue = self.job, self.slots, self.terms.pue
        waits = self.terms.node_waits and not (is_off and name == "pauses-off")
        energies: list[Quantity] = []
        costs: list[Quantity] = []
        stretches: list[PlanStretch] = []
        for k, piece in enumerate(self._fill_gaps(pieces)):
            seconds = piece.end_s - piece.start_s
            weight = slots.integrate_rate(piece.start_s, piece.end_s)
            is_idle = (piece.action == "pause" and not is_off) or (piece.action == "wait" and waits)
            energy, cost, cap_w = Quantity(0.0), Quantity(0.0), None
            if piece.action == "run":
                mode = job.modes[piece.mode]
                energy, cost, cap_w = mode.power * seconds, mode.power * weight, mode.cap_w
                if has_course:
                    each = np.diff(job.compute_energy(slots.edges_s - piece.start_s))
                    energy = _scale_quantity(mode.power, float(each.sum()))
                    cost = _scale_quantity(mode.power, float(each @ slots.per_j))
                late = replace(mode.slowdown, value=0.0) * (price * seconds / mode.slowdown.value**2)
                cost = cost + late if late.terms else cost
                if k and stretches[-1].action == "pause":
                    restart_j = Quantity(self.terms.restart.energy_j)
                    rate = float(slots.per_j[np.searchsorted(slots.edges_s, piece.start_s, side="right") - 1])
                    energy, cost = energy + restart_j, cost + restart_j * rate
            elif is_idle:
                energy, cost = job.idle * seconds, job.idle * weight
            cost = cost * pue
            energies.append(energy)
            costs.append(cost)
            stretches.append(
                PlanStretch(
                    piece.start_s, piece.end_s, piece.action, cap_w, energy.value / seconds, energy.value, cost.value
                )
            )
        energy, cost = add_quantities(energies), add_quantities(costs)
        is_saving_known = cost.known
        if not job.is_accuracy_known:
            energy, cost = replace(energy, known=False), replace(cost, known=False)
        return Way(name, tuple(stretches), energy, cost, is_saving_known=is_saving_known)

    def _fill_gaps(self, pieces: Sequence[_Piece]) -> Iterator[_Piece]:
        """Give pieces without gaps from now to the deadline: waiting before the job, done after it."""
        start_s, end_s = pieces[0].start_s, pieces[-1].end_s
        if start_s - self.slots.start_s > NEVER_S:
            yield _Piece(self.slots.start_s, start_s, "wait")
        yield from pieces
        if self.slots.deadline_s - end_s > NEVER_S:
            yield _Piece(end_s, self.slots.deadline_s, "done")


def _scale_quantity(q: Quantity, value: float) -> Quantity:
    """Return a value with the relative uncertainty of a quantity."""
    return q * (value / q.value) if q.value else replace(q, value=value)


def _lay_out_pieces(found: SlotSolution, slots: Slots, first_mode: int) -> Iterator[_Piece]:
    """Give what is done one after the other, neighbours that are alike joined."""
    last: _Piece | None = None
    for piece in _lay_out_slots(found.seconds, slots.edges_s, first_mode):
        if piece.end_s - piece.start_s < NEVER_S:
            continue
        if last is not None and (last.action, last.mode) == (piece.action, piece.mode):
            last = replace(last, end_s=piece.end_s)
            continue
        if last is not None:
            yield last
        last = piece if last is None else replace(piece, start_s=last.end_s)
    if last is not None:
        yield last


def _lay_out_slots(seconds: Floats, edges_s: Floats, first_mode: int) -> Iterator[_Piece]:
    """Give what is done in each slot from the first to the last in which the job runs.

    The job starts late in its first slot and ends early in its last. In others a pause comes first if the job comes
    from a pause and runs on in the next slot, else last. The mode of the slot before goes on first, then the fastest.
    """
    ran = np.flatnonzero(seconds.sum(axis=1) > 0)
    first, last = int(ran[0]), int(ran[-1])
    is_running, before = False, -1
    for t in range(first, last + 1):
        start_s, end_s, busy_s = float(edges_s[t]), float(edges_s[t + 1]), float(seconds[t].sum())
        idle_s = max(end_s - start_s - busy_s, 0.0)
        runs_on = t < last and bool(seconds[t + 1].sum() > 0)
        comes_late = idle_s > NEVER_S and busy_s > 0 and runs_on and not is_running
        if t == first and t < last:
            start_s, idle_s = start_s + idle_s, 0.0
        elif comes_late:
            yield _Piece(start_s, start_s + idle_s, "pause")
            start_s, idle_s = start_s + idle_s, 0.0
        for k in sorted(np.flatnonzero(seconds[t] > 0), key=lambda k: (not is_running or k != before, -k)):
            until_s = start_s + float(seconds[t, k])
            yield _Piece(start_s, until_s, "run", first_mode + int(k))
            start_s, before = until_s, int(k)
        is_running = busy_s > 0 and (idle_s <= NEVER_S or t == last)
        if t < last and idle_s > NEVER_S:
            yield _Piece(start_s, end_s, "pause")
