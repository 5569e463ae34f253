"""Refuse before anything runs what a twin does not have: workloads, parameters, caps, meters; say what it omits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.study.nodes import TWIN
from joulelab.twin.timeline import RunTimes, count_pieces, lay_out_run
from joulelab.twin.virtual import cluster
from joulelab.twin.virtual.ask import OWN, ask_of, model_of, said_of, without_effect
from joulelab.twin.virtual.bench import Bench
from joulelab.twin.virtual.slot_measurement import check_meters, chosen, measure
from joulelab.twin.virtual.twin import description_of
from joulelab.twin.workload_progress import Ask, Model, Stage, steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.toml_reading import Place
    from joulelab.study.folder import Plan, Settings
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.study.refusals import Refusals
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.nodefile import Description

WORDS = "Only knobs and parameters reach the twin's model; the words of the command do not."
MOST_READINGS = 20_000_000  # of one meter in a slot: 23 days at 10 Hz
LEAST_S = 1e-4  # between two readings
ANALYZER = "analyzer"  # it tells every update of its own
# What meters are tried on: a run of a second.
TRIED = Model(stages=(Stage(seconds=1.0),), epochs=1, parameters={})


def check_cells(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> list[str]:
    """Refuse what the twins of these cells cannot do; each problem is told once. Return what is to be warned of."""
    names = dict.fromkeys(cell.workload.node_type for cell in cells)
    described = {name: description_of(plan.nodes[name]) for name in names}
    mounted = {name: meters.family for each in described.values() for name, meters in each.meters.items()}
    known = {*mounted, *mounted.values()}
    for name in plan.settings.meters:
        if name not in known:
            then = suggest_name(name, sorted(known))
            refusals.add(ConfigError(f"no twin has the meter {name!r}", where="meters", next=then), ("meters",))
    sound = [name for name, each in described.items() if _check_meters(each, plan.nodes[name], plan.settings, refusals)]
    told: set[str] = set()
    for cell in cells:
        node = cell.workload.node_type
        for error, place in _problems(plan, described[node], cell, refusals, read=node in sound):
            if str(error) not in told:
                told.add(str(error))
                refusals.add(error, place)
    return remarks(plan)


def _check_meters(described: Description, node: NodeType, settings: Settings, refusals: Refusals) -> bool:
    """Refuse meters that cannot be read on a twin; return whether there are some and all can be."""
    meters, where = chosen(described.meters, settings), _file_of(node)
    if not meters:
        why = "the study names none of its meters" if described.meters else "its file has no [meters.NAME]"
        refusals.add(ConfigError(f"nothing is measured on the twin of {node.name}", where=where, why=why))
    try:
        check_meters(described.meters)
        _read(described, meters)
    except JoulelabError as error:
        refusals.add(_within(where, error))
        return False
    return bool(meters)


def _within(where: str, error: JoulelabError) -> ConfigError:
    """Return an error that names a node's file as well."""
    return ConfigError(error.what, where=f"{where} {error.where or ''}".strip(), why=error.why, next=error.next)


def _read(described: Description, meters: Mapping[str, MountedMeter]) -> None:
    """Read meters of a twin, in a run of a second. Raises JoulelabError."""
    timeline = lay_out_run(described.node, TRIED, Ask({}), RunTimes(0, 1.0, 1.0), 0)
    for name, mounted in meters.items():
        where = f"[meters.{name}]"
        for key, period in _periods(mounted).items():
            if isinstance(period, (int, float)) and not LEAST_S <= period < math.inf:
                raise ConfigError(f"{key} is {period:g}", where=where, why=f"it is at least {LEAST_S:g} s")
        try:
            cluster.frequency_of(mounted)
            measure(Bench(timeline, Ask({}), 0), {name: mounted})
        except JoulelabError as error:
            error.where = where
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError("its options cannot be taken", where=where, why=str(error)) from None


def _periods(mounted: MountedMeter) -> dict[str, Any]:
    """Return all that says how often a meter is read, in s, by key: what is given, and numbers only if they are."""
    options = {key: mounted.options[key] for key in ("period_s", "frequency_s") if key in mounted.options}
    own = {"flaws.period_s": mounted.flaws.period_s} if mounted.family == ANALYZER else {}
    return {"ask_s": mounted.ask_s, **options, **own}


def _problems(
    plan: Plan, described: Description, cell: PlannedCell, refusals: Refusals, *, read: bool
) -> list[tuple[ConfigError, Place]]:
    """Return why a twin cannot run a cell, and where in the study file that stands, if it does."""
    node = plan.nodes[cell.workload.node_type]
    place: Place = ("workloads", cell.workload.name)
    try:
        workload, model = model_of(described, cell)
        ask = ask_of(described, node, cell)
    except ConfigError as error:
        return [(error, place)]
    where = f"{_file_of(node)} [workloads.{workload}]"
    _, wrong = without_effect(cell, model, (plan.file or Path()).parent)
    if wrong:
        for each in wrong.values():
            each.why = each.why or where
        knobs = {name: refusals.knob(name, cell.workload.name) for name in wrong if name in cell.knobs}
        return [(each, knobs.get(name, place)) for name, each in wrong.items()]
    try:
        took_s = _lay_out(described, model, ask)
        if read:
            _check_readings(chosen(described.meters, plan.settings), plan.settings, took_s)
    except ConfigError as error:
        return [(_within(where, error), ())]
    return []


def _lay_out(described: Description, model: Model, ask: Ask) -> float:
    """Lay the steps of a cell out, and return how long they take (s). Raises ConfigError."""
    made = steps(described.node, model, ask)
    if not made:
        stages = ", ".join(stage.name or "(no name)" for stage in model.stages)
        raise ConfigError("the workload has nothing to do there", next=f"its stages are {stages}")
    count_pieces(made, [step.seconds for step in made])
    return sum(step.seconds for step in made)


def _check_readings(meters: Mapping[str, MountedMeter], settings: Settings, took_s: float) -> None:
    """Refuse a run with more readings than there is memory for. Raises ConfigError."""
    for name, mounted in meters.items():
        periods = [settings.period_s, *_periods(mounted).values()]
        readings = took_s / min(each for each in periods if isinstance(each, (int, float)))
        if mounted.family != cluster.FAMILY and readings > MOST_READINGS:
            why = f"{readings:.3g} readings in {took_s:.3g} s, {MOST_READINGS:,} are the most"
            then = f"a longer ask_s in [meters.{name}], or less work"
            raise ConfigError(f"the meter {name} would be read too often", why=why, next=then)


def _file_of(node: NodeType) -> str:
    return f"node file {node.options.get('twin')}"


def remarks(plan: Plan) -> list[str]:
    """Return what twins omit of a study: parameters without effect, words of commands, rates of CPUs."""
    virtual = [cell for cell in plan.cells if plan.nodes[cell.workload.node_type].executor == TWIN]
    described = {name: description_of(plan.nodes[name]) for name in {cell.workload.node_type for cell in virtual}}
    alike = {
        (c.workload.name, c.workload.node_type, *said_of(c), *(k for k in c.knobs if k in OWN)): c for c in virtual
    }
    said = [WORDS] if any(not cell.workload.kind and len(cell.argv()) > 1 for cell in alike.values()) else []
    for cell in alike.values():
        node, workload = plan.nodes[cell.workload.node_type], cell.workload.name
        there = described[node.name]
        try:
            _, model = model_of(there, cell)
            idle, _ = without_effect(cell, model, (plan.file or Path()).parent)
            ask = ask_of(there, node, cell)
        except ConfigError:
            continue  # it is refused
        if idle:
            said.append(f"{workload}: without effect in the twin's model: {', '.join(idle)}.")
        if there.node.gpus and not ask.gpus and _borrowed(model):
            why = 'no stage of its model has on = "cpu", so the rates of a GPU are used'
            said.append(f"{workload} on {node.name} uses no GPU: {why}.")
    return list(dict.fromkeys(said))


def _borrowed(model: Model) -> bool:
    """Return whether a run on the CPUs has the rates of stages that say nothing of the device."""
    on_cpu = any(stage.on == "cpu" for stage in model.stages)
    return not on_cpu and any(stage.rate and not stage.on for stage in model.stages)
