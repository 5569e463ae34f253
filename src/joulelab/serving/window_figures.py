"""Compute the figures of the steady windows of a load: energy per token and request by scope, times, rates.

A steady window is a phase `steady` inside the phase of its rate or concurrency; `joulelab serving load` marks both. All
of it comes from the Result of the run: energies of phases, work of phases, facts that were noted in them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.analysis.goals import BestCell, choose_best
from joulelab.analysis.result import make_plain
from joulelab.analysis.study_cells import CellMeans, list_numbers
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.goals import Goal
    from joulelab.analysis.result import PhaseResult, Result

STEADY = "steady"
# Names of scopes that people use, and the families of which the first that was measured counts.
SCOPES = {"gpu": ("gpu", "accel"), "node": ("node.dc", "psys"), "wall": ("node.ac",)}
UNITS = {"output_token": ("output_tokens",), "token": ("prompt_tokens", "output_tokens"), "request": ("requests",)}
IDLE_SHARED = ("gain:", "offset:", "lag:")  # errors of a meter that are the same in the window and in idle time


@dataclass(frozen=True, slots=True)
class ScopeFigures:
    """Hold the energy (J) and mean power (W) of a window at one scope; `net` is without idle power, None if unknown.

    `per_unit` and `net_per_unit` are joules per `output_token`, `token` and `request`.
    """

    energy: Quantity
    mean_w: Quantity
    net: Quantity | None = None
    per_unit: Mapping[str, Quantity] = field(default_factory=dict)
    net_per_unit: Mapping[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """Hold the figures of one steady window; `load` is its rate or concurrency, as the load plan names it.

    `work` is the work done in it, `facts` are numbers such as `ttft_p99` (s), `gpu_load` is a share of one. `title`
    names the window: `rate 4`.
    """

    title: str
    load: float | None
    start_s: float
    duration_s: float
    work: Mapping[str, float]
    facts: Mapping[str, float]
    scopes: Mapping[str, ScopeFigures]
    gpu_load: float | None = None

    def find_unit_energy(self, unit: str, scope: str | None = None) -> Quantity | None:
        """Return joules per unit at a scope, or at the widest one that was measured."""
        chosen = self.scopes.get(scope or find_widest_scope((self,)) or "")
        return None if chosen is None else chosen.per_unit.get(unit)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, quantities with expanded uncertainty and budget."""
        plain = {name: make_plain(getattr(self, name)) for name in self.__dataclass_fields__ if name != "scopes"}
        rates = {kind: amount / self.duration_s for kind, amount in self.work.items()} if self.duration_s > 0 else {}
        return plain | {"rates": rates, "scopes": {name: make_plain(found) for name, found in self.scopes.items()}}


def list_window_figures(result: Result) -> list[WindowFigures]:
    """Return the figures of each steady window of a run, in order; none if its load marked no such phase."""
    by_number = {phase.number: phase for phase in result.phases}
    windows = [phase for phase in result.phases if phase.name == STEADY and phase.duration_s > 0]
    return [
        _compute_window(result, phase, by_number.get(-1 if phase.parent is None else phase.parent)) for phase in windows
    ]


def find_widest_scope(figures: Sequence[WindowFigures]) -> str | None:
    """Return the widest scope that all windows have: wall, node, then gpu; None without any."""
    return next((name for name in reversed(SCOPES) if figures and all(name in one.scopes for one in figures)), None)


def choose_best_window(figures: Sequence[WindowFigures], goal: Goal, scope: str | None = None) -> BestCell | None:
    """Choose the window that is best for a goal under its limits; its ties have no significant difference from it.

    None if no window has the figures, or none is within the limits.
    """
    chosen = scope or find_widest_scope(figures) or ""
    means = {}
    for one in (one for one in figures if chosen in one.scopes):
        amount = goal.find_work(one.work) if goal.work else 1.0
        if amount:
            energy, time = one.scopes[chosen].energy * (1 / amount), Quantity(one.duration_s / amount, known=False)
            means[one.title] = CellMeans(energy, time, meters=frozenset({chosen}))
    # One window does not show how much a figure varies: its interval is unknown.
    facts = {one.title: {name: Quantity(v, known=False) for name, v in one.facts.items()} for one in figures}
    return choose_best(goal, None, means, None, facts)


def _compute_window(result: Result, phase: PhaseResult, around: PhaseResult | None) -> WindowFigures:
    facts = list_numbers(phase.facts)
    title = phase.title if around is None else around.title
    load = _read_load(title, facts)
    scopes = {}
    for name, families in SCOPES.items():
        family = next((one for one in families if one in phase.energy), None)
        if family is not None:
            scopes[name] = _compute_scope(result, phase, family)
    return WindowFigures(
        title, load, phase.start_s, phase.duration_s, dict(phase.work), facts, scopes, gpu_load=phase.gpu_load
    )


def _read_load(title: str, facts: Mapping[str, float]) -> float | None:
    """Return the number in the title of a rate or concurrency: `rate 4`; else the rate that was offered."""
    try:
        return float(title.rpartition(" ")[2])
    except ValueError:
        return facts.get("rate_offered")


def _compute_scope(result: Result, phase: PhaseResult, family: str) -> ScopeFigures:
    energy, seconds = phase.energy[family], phase.duration_s
    group = result.group(family)
    members = [s for s in result.scopes if find_family(s.scope) == family and group and s.scope in group.scopes]
    idle = [s.idle_w for s in members if s.idle_w is not None]
    net = None
    if idle and len(idle) == len(members):
        net = energy - (add_quantities(idle) * seconds).tagged("idle", keep=IDLE_SHARED)
    amounts = {unit: sum(phase.work.get(kind, 0.0) for kind in kinds) for unit, kinds in UNITS.items()}
    done = {
        unit: amount for unit, amount in amounts.items() if amount > 0 and all(k in phase.work for k in UNITS[unit])
    }
    return ScopeFigures(
        energy,
        energy * (1 / seconds),
        net,
        {unit: energy * (1 / amount) for unit, amount in done.items()},
        {} if net is None else {unit: net * (1 / amount) for unit, amount in done.items()},
    )
