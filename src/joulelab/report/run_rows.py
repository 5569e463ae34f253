"""Choose the rows of the tables of a result, and their order: scopes, groups, phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import CORDS, find_family
from joulelab.core.text import escape_unprintable
from joulelab.report.format import is_wide, join_scopes

if TYPE_CHECKING:
    from joulelab.analysis.result import GroupResult, PhaseResult, Result, ScopeResult

MOST_MEMBERS = 8  # a family with more members is shown as its sum and its extremes
MOST_PHASES = 20
APART = 0.1  # a rough mean that is this far outside of the readings of power: these are not shown beside it
FEWEST_READINGS = 2  # fewer of a power within the workload give no interval
# Parts of a package, cords of a node: shown only with all scopes, since the package or the node holds them.
INNER_FAMILIES = ("core", "uncore")


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """Hold one line of the energy table: energy and net in J, powers in W; `total` marks sums.

    A derived energy is a difference: the rest of a node, the loss of its supply.
    """

    label: str
    energy: Quantity
    mean_w: Quantity
    median_w: float | None = None
    max_w: float | None = None
    net: Quantity | None = None
    estimate: bool = False
    total: bool = False
    is_derived: bool = False


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Hold one line of the phase table: `count` phases of the same name; energy in J (None = not computed).

    `gpu_load` is the mean load (share of one) of the GPUs that the run used, None if it is not known. `estimate`: an
    estimate is part of the energy.
    """

    label: str
    depth: int
    count: int
    duration_s: float
    energy: Quantity | None
    by_family: dict[str, Quantity]
    work: dict[str, float]
    open_end: bool = False
    gpu_load: float | None = None
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Hold the meter of some scopes, and its accuracy."""

    scopes: str
    meter: str
    channel: str
    kind: str
    accuracy: str
    reference: str
    estimate: bool
    has_too_few: bool = False


def list_energy_rows(result: Result, *, every: bool = False) -> list[EnergyRow]:
    """Return scopes by family, the sum of each family after its members, then everything measured and the rest."""
    several = len({s.host for s in result.scopes if find_family(s.scope) != "job"}) > 1
    shown: list[EnergyRow] = []
    for name in dict.fromkeys(find_family(s.scope) for s in result.scopes):
        members = [s for s in result.scopes if find_family(s.scope) == name]
        if not every:
            members = _keep_extremes([s for s in members if not _is_inner(s, result)])
        shown += [_make_scope_row(s, several=several) for s in members]
        group = result.group(name)
        if members and group is not None and len(group.scopes) > 1:
            shown.append(_make_group_row(group, f"{name} ({len(group.scopes)})"))
    sums = [g for g in result.groups if g.name == "measured" or _is_derived(g.name)]
    if len(shown) == 1 and len(sums) == 1:
        return shown
    return shown + _make_sum_rows(sums, every=every)


def _make_sum_rows(sums: list[GroupResult], *, every: bool) -> list[EnergyRow]:
    """Return sums over scopes; equal sums of many nodes, such as the rest of each node, become one row."""
    shown: list[EnergyRow] = []
    for name in dict.fromkeys(g.name for g in sums):
        alike = [g for g in sums if g.name == name]
        if every or len(alike) <= MOST_MEMBERS:
            shown += [_make_group_row(g, f"{g.hosts[0]}/{name}" if len(alike) > 1 and g.hosts else name) for g in alike]
            continue
        energy, mean_w = add_quantities(g.energy for g in alike), add_quantities(g.mean_w for g in alike)
        estimate = any(g.estimate for g in alike)
        row = EnergyRow(f"{name} ({len(alike)})", energy, mean_w, estimate=estimate, total=True)
        shown.append(replace(row, is_derived=_is_derived(name)))
    return shown


def _is_inner(s: ScopeResult, result: Result) -> bool:
    """Return whether a scope is left out of the short table, because another scope contains it."""
    held = any((o.host, o.scope) == (s.host, s.parent) for o in result.scopes)
    return find_family(s.scope) in INNER_FAMILIES or "/" in s.scope or (find_family(s.scope) in CORDS and held)


def _keep_extremes(members: list[ScopeResult]) -> list[ScopeResult]:
    if len(members) <= MOST_MEMBERS:
        return members
    ranked = sorted(members, key=lambda s: s.energy.value)
    return [ranked[0], ranked[-1]]


def _make_scope_row(s: ScopeResult, *, several: bool) -> EnergyRow:
    return _make_row(s, f"{s.host}/{s.scope}" if several else s.scope, estimate=s.reading.estimate)


def _make_group_row(group: GroupResult, label: str) -> EnergyRow:
    row = _make_row(group, label, estimate=group.estimate)
    # The meters of a difference do not see an instant alike: for a constant rest of 1.9 kW, a wall meter and NVML gave
    # readings from -0.7 to 4.7 kW. Their median holds, their highest is no power of the node.
    is_derived = _is_derived(group.name)
    return replace(row, max_w=None if is_derived else row.max_w, total=True, is_derived=is_derived)


def _is_derived(group: str) -> bool:
    return group == "supply loss" or group.startswith("rest ")


def _make_row(found: ScopeResult | GroupResult, label: str, *, estimate: bool) -> EnergyRow:
    of, mean = found.statistics, found.mean_w
    if of and is_wide(mean.value, mean.expanded) and not of.p5 * (1 - APART) <= mean.value <= of.p99 * (1 + APART):
        of = None
    median_w, max_w = (of.median, of.maximum) if of else (None, None)
    return EnergyRow(label, found.energy, mean, median_w, max_w, found.net, estimate)


def list_meter_rows(result: Result, *, every: bool = False) -> list[MeterRow]:
    """List the meters: scopes with the same meter, channel and accuracy in one row."""
    lines: dict[tuple[object, ...], list[ScopeResult]] = {}
    for s in result.scopes:
        if not every and _is_inner(s, result):
            continue
        r = s.reading
        lines.setdefault((find_family(s.scope), r.meter, r.channel, r.accuracy), []).append(s)
    found = []
    for members in lines.values():
        r = members[0].reading
        found.append(
            MeterRow(
                scopes=join_scopes([s.scope for s in members]),
                meter=r.meter,
                channel=r.channel,
                kind=r.kind,
                accuracy=r.accuracy,
                reference=r.reference,
                estimate=r.estimate,
                has_too_few=any(map(has_too_few_readings, members)),
            )
        )
    return found


def has_too_few_readings(s: ScopeResult) -> bool:
    """Return whether an energy has no interval because of too few readings, although the accuracy is stated."""
    return not s.energy.known and s.reading.accuracy != "unknown" and s.reading.readings < FEWEST_READINGS


def list_phase_rows(result: Result, *, every: bool = False) -> list[PhaseRow]:
    """Return the phases in order; if there are more than 20, steps of a phase share a line, then phases of one name.

    Phases of one name are not joined if the phases around them have different names.
    """
    if every or len(result.phases) <= MOST_PHASES:
        return [_make_phase_row(p, result) for p in result.phases]
    groups = _group_steps(result)
    if len(groups) > MOST_PHASES:
        groups = _group_names(result)[:MOST_PHASES]
    return [_join_phases(group, result) for group in groups]


def _group_steps(result: Result) -> list[list[PhaseResult]]:
    """Group the steps of each phase; every other phase is a group of its own."""
    groups: dict[tuple[object, ...], list[PhaseResult]] = {}
    for k, (p, parent) in enumerate(zip(result.phases, _find_parents(result), strict=True)):
        groups.setdefault((k,) if p.last is None else (p.host, parent, p.name), []).append(p)
    return list(groups.values())


def _group_names(result: Result) -> list[list[PhaseResult]]:
    """Group phases that have the same name and parents of the same name; groups inside a group follow it."""
    groups: list[list[PhaseResult]] = []
    inside: list[list[int]] = []
    outermost: list[int] = []
    places: dict[tuple[int | None, str], int] = {}
    group_of: list[int] = []
    for p, parent in zip(result.phases, _find_parents(result), strict=True):
        around = None if parent is None else group_of[parent]
        if (around, p.name) not in places:
            places[around, p.name] = len(groups)
            (outermost if around is None else inside[around]).append(len(groups))
            groups.append([])
            inside.append([])
        group_of.append(places[around, p.name])
        groups[group_of[-1]].append(p)
    found, rest = [], outermost[::-1]
    while rest:  # not by recursion: thousands of phases may be nested
        place = rest.pop()
        found.append(groups[place])
        rest.extend(reversed(inside[place]))
    return found


def _find_parents(result: Result) -> list[int | None]:
    """Return the index of the phase around each phase, None if it is not listed."""
    places: dict[int, int] = {}
    found: list[int | None] = []
    for k, p in enumerate(result.phases):
        found.append(None if p.parent is None else places.get(p.parent))
        places[p.number] = k
    return found


def _make_phase_row(p: PhaseResult, result: Result) -> PhaseRow:
    energy, whole = result.phase_energy(p), result.group("measured")
    by_family = {k: v for k, v in p.energy.items() if k != "measured"}
    return PhaseRow(
        label=escape_unprintable(p.title),
        depth=p.depth,
        count=1,
        duration_s=p.duration_s,
        energy=energy,
        by_family=by_family,
        work=dict(p.work),
        open_end=p.open_end,
        gpu_load=p.gpu_load,
        estimate=whole is not None and whole.estimate,
    )


def _join_phases(phases: list[PhaseResult], result: Result) -> PhaseRow:
    if len(phases) == 1:
        return _make_phase_row(phases[0], result)
    name, lasts = escape_unprintable(phases[0].name), [p.last for p in phases if p.last is not None]
    steps = len(lasts) == len(phases) and len({p.host for p in phases}) == 1
    members = [_make_phase_row(p, result) for p in _join_steps(phases, result)]
    work: dict[str, float] = {}
    for row in members:
        for kind, amount in row.work.items():
            work[kind] = work.get(kind, 0.0) + amount
    energies = [row.energy for row in members if row.energy is not None]
    whole = len(energies) == len(members)  # a sum that leaves some out would look like the sum of all
    families = dict.fromkeys(f for row in members for f in row.by_family) if whole else ()
    duration_s = sum(row.duration_s for row in members)
    busy_s = [row.gpu_load * row.duration_s for row in members if row.gpu_load is not None]
    return PhaseRow(
        label=f"{name} {phases[0].n}-{max(lasts)}" if steps else f"{name} x {len(members)}",
        depth=members[0].depth,
        count=len(phases),
        duration_s=duration_s,
        energy=add_quantities(energies) if whole else None,
        by_family={f: add_quantities(r.by_family[f] for r in members if f in r.by_family) for f in families},
        work=work,
        open_end=any(row.open_end for row in members),
        gpu_load=sum(busy_s) / duration_s if duration_s > 0 and len(busy_s) == len(members) else None,
        estimate=any(row.estimate for row in members),
    )


def _join_steps(phases: list[PhaseResult], result: Result) -> list[PhaseResult]:
    """Return steps that follow each other as one time span; other phases unchanged."""
    places = dict.fromkeys(p.stretch for p in phases)
    if None in places or not result.stretches:
        return phases
    return [result.stretches[k] for k in places if k is not None]


def count_hidden_phases(result: Result) -> int:
    """Return the number of phase names that do not fit into the short list."""
    if len(_group_steps(result)) <= MOST_PHASES:
        return 0
    return max(0, len(_group_names(result)) - MOST_PHASES)
