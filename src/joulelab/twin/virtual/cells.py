"""Place the cells of a study on twins: the description of each node, the request of each cell, and refusals."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.text import suggest_name
from joulelab.study.matrix import TWIN, NodeType
from joulelab.study.program import read_numbers
from joulelab.twin.timeline import RunTimes, count_pieces, lay_out_run
from joulelab.twin.virtual.meters import SLURM, Bench, check_meters, choose_meters, read_frequency_s, read_meters
from joulelab.twin.workload_progress import RunRequest, Stage, WorkloadModel, check_names, list_steps, list_used_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.core.toml_reading import Place
    from joulelab.study.folder import Plan, Settings
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.plan_check import Refusals
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.model import Node
    from joulelab.twin.nodefile import Description

# Options of a node type on real hardware that mean the same on its twin.
KEPT = ("gpus",)


def _list_kinds() -> dict[str, Any]:
    """Return the types of the parts of a description that a study keeps."""
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.model import Node

    return {"node": Node, "workloads": dict[str, WorkloadModel], "meters": dict[str, MountedMeter]}


def make_options(name: str, described: Description | None = None) -> dict[str, Any]:
    """Return the options of a node type that is a twin: its name, its description, and a hash of that.

    `described` replaces the description of `name` (a node of joulelab's own, or a file). Raises ConfigError.
    """
    import msgspec

    from joulelab.twin.nodefile import find_node

    found = described or find_node(name)
    # Through the types, so that a number that may be 700 or 700.0 has one form, and one hash.
    plain = {
        key: msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(getattr(found, key)), kind))
        for key, kind in _list_kinds().items()
    }
    text = json.dumps(plain, sort_keys=True)
    return {
        "twin": Path(name).stem if name.endswith(".toml") else name,
        "described": hashlib.sha256(text.encode()).hexdigest()[:8],
        "description": plain,
    }


def read_description(node: NodeType) -> Description:
    """Return the description of the twin that a node type is. Raises ConfigError."""
    import msgspec

    from joulelab.twin.nodefile import Description, find_node

    plain = node.options.get("description")
    if plain is None:
        return find_node(str(node.options.get("twin", "")))
    try:
        return Description(**{key: msgspec.convert(plain[key], type=kind) for key, kind in _list_kinds().items()})
    except (msgspec.ValidationError, KeyError) as error:
        where, then = f"node type {node.name}", "remove the study's folder, or run it by the joulelab that made it"
        raise ConfigError("the twin's description cannot be read", where=where, why=str(error), next=then) from None


def place_on_twins(plan: Plan, twins: Mapping[str, Description | str] | Description | str) -> Plan:
    """Return a plan with its node types on twins: one for all, or each its own by the name of the node type.

    A twin is given by its name, its file, or its description. Raises ConfigError for a node type that there is not.
    """
    from collections.abc import Mapping as Table

    names = list(plan.nodes) or ["local"]
    given = dict(twins) if isinstance(twins, Table) else dict.fromkeys(names, twins)
    wrong = next((name for name in given if name not in names), None)
    if wrong is not None:
        raise ConfigError(f"there is no node type {wrong!r}", where="--twin", next=f"there are {', '.join(names)}")
    made = {name: NodeType(name) for name in names} | dict(plan.nodes)
    made |= {name: _on_twin(made[name], twin) for name, twin in given.items()}
    return replace(plan, nodes=made, cells=[_moved(cell, made) for cell in plan.cells])


def _on_twin(node: NodeType, twin: Description | str) -> NodeType:
    name, described = (twin, None) if isinstance(twin, str) else (twin.node.name, twin)
    kept = {key: node.options[key] for key in KEPT if key in node.options}
    return replace(node, executor=TWIN, options={**kept, **make_options(name, described)})


def _moved(cell: PlannedCell, nodes: Mapping[str, NodeType]) -> PlannedCell:
    workload = cell.workload
    return replace(cell, workload=replace(workload, node=nodes[workload.node_type].get_identity()))


OWN = ("cap", "clock", "cpu_cap", "gpus")  # knobs of joulelab's own
LEAST_CPU_CAP = 0.1  # of a package's rated power, as the setter has it
LEAST_MHZ = 210
SPECIAL = ("preset",)  # what it stands for is looked up


def find_model(described: Description, cell: PlannedCell) -> tuple[str, WorkloadModel]:
    """Return name and model of a cell's workload: of a reference workload by that name, else by the study's own.

    Raises ConfigError where the twin has none.
    """
    first = cell.make_argv()[0]
    names = {"reference": [first], "notebook": [Path(first).stem]}.get(cell.workload.kind, [])
    for name in (*names, cell.workload.name):
        if name in described.workloads:
            return name, described.workloads[name]
    there, wanted = list(described.workloads), (names or [cell.workload.name])[0]
    then = suggest_name(wanted, there) if there else f"describe it: [workloads.{wanted}] in the node's file"
    raise ConfigError(f"the twin has no model of the workload {wanted!r}", where=described.node.name, next=then)


def make_request(described: Description, node: NodeType, cell: PlannedCell) -> RunRequest:
    """Return what a cell asks for. Raises ConfigError for GPUs or caps that the node does not have."""
    _, model = find_model(described, cell)
    gpus = _choose_gpus(described.node, node, cell)
    return RunRequest(
        _read_parameters(cell, model),
        gpus,
        caps=_read_limits(described.node, gpus, cell, "cap"),
        clocks=_read_limits(described.node, gpus, cell, "clock"),
        cpu_caps=_read_limits(described.node, range(described.node.packages), cell, "cpu_cap"),
    )


def _choose_gpus(node: Node, kind: NodeType, cell: PlannedCell) -> tuple[int, ...]:
    if kind.hides_gpus:
        return ()
    there = len(node.gpus)
    shown = min(int(kind.options.get("gpus", there)), there)
    count = int(cell.knobs["gpus"].value) if "gpus" in cell.knobs else shown
    if count > there:
        raise ConfigError(f"{count} GPUs are requested", where="knob gpus", why=f"{node.name} has {there}")
    return tuple(range(count))


def _read_limits(node: Node, devices: Iterable[int], cell: PlannedCell, knob: str) -> dict[int, float]:
    """Return the caps (W) or clocks (MHz) that a knob sets, by GPU or CPU package. Raises ConfigError."""
    if knob not in cell.knobs:
        return {}
    value, limits = cell.knobs[knob], {}
    for device in devices:
        if knob == "cpu_cap":
            name, unit, lowest, highest = "the CPU", "W", LEAST_CPU_CAP * node.cpu.max_w, node.cpu.max_w
            usual = highest
        else:
            one = node.gpus[device]
            name, unit, lowest, highest, usual = one.name, "W", one.min_cap_w, one.max_cap_w, one.default_cap_w
            if knob == "clock":
                unit, lowest, highest = "MHz", LEAST_MHZ, one.sm_max_mhz
        number = float(value.value) * {"share": usual, "Hz": 1e-6}.get(str(value.unit), 1.0)
        if not lowest <= number <= highest:
            what = (
                f"a clock of {number:g} MHz cannot be locked"
                if unit == "MHz"
                else f"a cap of {number:g} W cannot be set"
            )
            raise ConfigError(what, where=f"knob {knob}", why=f"{name} takes {lowest:g} to {highest:g} {unit}")
        limits[device] = number
    if not limits:
        what = "there is no CPU package to cap" if knob == "cpu_cap" else "there is no GPU to cap"
        raise ConfigError(what, where=f"knob {knob}", why=f"the cell uses none of {node.name}")
    return limits


def list_given(cell: PlannedCell) -> dict[str, str]:
    """Return the parameters that a study gives the workload of a cell; for a command, its knobs but joulelab's own."""
    if not cell.workload.kind:
        return {name: str(value.value) for name, value in cell.knobs.items() if name not in OWN}
    words = [word for word in cell.make_argv()[1:] if "=" in word and not word.startswith("--")]
    return dict(word.split("=", 1) for word in words)


def find_unused(cell: PlannedCell, model: WorkloadModel, folder: Path) -> tuple[list[str], dict[str, ConfigError]]:
    """Return the given parameters that the workload has, but the model does not depend on.

    And, by name, mistakes: unknown parameters, and texts where the model needs a number. `folder` is that of
    the study file.
    """
    given, used = list_given(cell), list_used_names(model)
    own, wrong = _list_own_parameters(cell, list(given), folder), {}
    for name, text in given.items():
        if name in used and not read_numbers({name: text}):
            wrong[name] = ConfigError(f"{name} is {text!r}", where=name, why="the twin's model takes a number for it")
        try:
            check_names(model, [] if name in own else [name], name)
        except ConfigError as error:
            wrong[name] = error
    return [name for name in given if name not in used and name not in (*SPECIAL, *wrong)], wrong


def _list_own_parameters(cell: PlannedCell, names: list[str], folder: Path) -> set[str]:
    """Return the parameters that the real workload has, of a notebook those of `names`; none where they are unknown."""
    if cell.workload.kind == "reference":
        from joulelab.run import workload_registry

        return {*workload_registry.find_workload(cell.make_argv()[0]).PARAMETERS, *SPECIAL}
    own: set[str] = set()
    if cell.workload.kind == "notebook":
        from joulelab.run import notebook

        with contextlib.suppress(ConfigError):
            loaded = notebook.load_notebook(folder / cell.make_argv()[0])
            for name in names:
                with contextlib.suppress(ConfigError):
                    notebook.check_parameters(loaded, [name], where=name)
                    own.add(name)
    return own


def _read_parameters(cell: PlannedCell, model: WorkloadModel) -> dict[str, float]:
    """Return the workload's numbers: those of the study, else of the twin's model, else its defaults."""
    given = list_given(cell) if cell.workload.kind else {}
    usual: Mapping[str, str] = {}
    if cell.workload.kind == "reference":
        from joulelab.run import workload_registry

        module = workload_registry.find_workload(cell.make_argv()[0])
        preset = given.pop(workload_registry.PRESET, "")
        usual = {name: default for name, (default, _) in module.PARAMETERS.items() if name not in model.parameters}
        usual = {**usual, **(workload_registry.get_presets(module).get(preset, {}))}
    knobs = {name: str(value.value) for name, value in cell.knobs.items()}
    return read_numbers({**knobs, **usual, **given})


WORDS = "Only knobs and parameters reach the twin's model; the words of the command do not."
MOST_READINGS = 20_000_000  # of one meter in a slot: 23 days at 10 Hz
LEAST_S = 1e-4  # between two readings
ANALYZER = "analyzer"  # it reads every update
# What meters are tried on: a run of a second.
TRIED = WorkloadModel(stages=(Stage(seconds=1.0),), epochs=1, parameters={})


def check_cells(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> list[str]:
    """Refuse cells that their twins cannot run, each problem once. Return warnings."""
    names = dict.fromkeys(cell.workload.node_type for cell in cells)
    described = {name: read_description(plan.nodes[name]) for name in names}
    mounted = {name: meters.family for each in described.values() for name, meters in each.meters.items()}
    known = {*mounted, *mounted.values()}
    for name in plan.settings.meters:
        if name not in known:
            then = suggest_name(name, sorted(known))
            refusals.add(ConfigError(f"no twin has the meter {name!r}", where="meters", next=then), ("meters",))
    sound = [name for name, each in described.items() if _check_meters(each, plan.nodes[name], plan.settings, refusals)]
    seen: set[str] = set()
    for cell in cells:
        node = cell.workload.node_type
        for error, place in _find_problems(plan, described[node], cell, refusals, read=node in sound):
            if str(error) not in seen:
                seen.add(str(error))
                refusals.add(error, place)
    return list_remarks(plan)


def _check_meters(described: Description, node: NodeType, settings: Settings, refusals: Refusals) -> bool:
    """Refuse meters that cannot be read on a twin; return whether there are some and all can be."""
    meters, where = choose_meters(described.meters, settings), _name_node_file(node)
    if not meters:
        why = "the study names none of its meters" if described.meters else "its file has no [meters.NAME]"
        refusals.add(ConfigError(f"nothing is measured on the twin of {node.name}", where=where, why=why))
    try:
        check_meters(described.meters)
        _try_meters(described, meters)
    except JoulelabError as error:
        refusals.add(_name_file(where, error))
        return False
    return bool(meters)


def _name_file(where: str, error: JoulelabError) -> ConfigError:
    """Return an error that names a node's file as well."""
    return ConfigError(error.what, where=f"{where} {error.where or ''}".strip(), why=error.why, next=error.next)


def _try_meters(described: Description, meters: Mapping[str, MountedMeter]) -> None:
    """Read meters of a twin, in a run of a second. Raises JoulelabError."""
    timeline = lay_out_run(described.node, TRIED, RunRequest({}), RunTimes(0, 1.0, 1.0), 0)
    for name, mounted in meters.items():
        where = f"[meters.{name}]"
        for key, period in _list_periods(mounted).items():
            if isinstance(period, (int, float)) and not LEAST_S <= period < math.inf:
                raise ConfigError(f"{key} is {period:g}", where=where, why=f"it is at least {LEAST_S:g} s")
        try:
            read_frequency_s(mounted)
            read_meters(Bench(timeline, RunRequest({}), 0), {name: mounted})
        except JoulelabError as error:
            error.where = where
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError("its options cannot be taken", where=where, why=str(error)) from None


def _list_periods(mounted: MountedMeter) -> dict[str, Any]:
    """Return the given periods of a meter (s), by key; numbers only."""
    options = {key: mounted.options[key] for key in ("period_s", "frequency_s") if key in mounted.options}
    own = {"flaws.period_s": mounted.flaws.period_s} if mounted.family == ANALYZER else {}
    return {"ask_s": mounted.ask_s, **options, **own}


def _find_problems(
    plan: Plan, described: Description, cell: PlannedCell, refusals: Refusals, *, read: bool
) -> list[tuple[ConfigError, Place]]:
    """Return why a twin cannot run a cell, and where in the study file that stands, if it does."""
    node = plan.nodes[cell.workload.node_type]
    place: Place = ("workloads", cell.workload.name)
    try:
        workload, model = find_model(described, cell)
        ask = make_request(described, node, cell)
    except ConfigError as error:
        return [(error, place)]
    where = f"{_name_node_file(node)} [workloads.{workload}]"
    _, wrong = find_unused(cell, model, (plan.file or Path()).parent)
    if wrong:
        for each in wrong.values():
            each.why = each.why or where
        knobs = {name: refusals.find_knob(name, cell.workload.name) for name in wrong if name in cell.knobs}
        return [(each, knobs.get(name, place)) for name, each in wrong.items()]
    try:
        took_s = _measure_steps(described, model, ask)
        if read:
            _check_readings(choose_meters(described.meters, plan.settings), plan.settings, took_s)
    except ConfigError as error:
        return [(_name_file(where, error), ())]
    return []


def _measure_steps(described: Description, model: WorkloadModel, ask: RunRequest) -> float:
    """Lay the steps of a cell out, and return how long they take (s). Raises ConfigError."""
    made = list_steps(described.node, model, ask)
    if not made:
        stages = ", ".join(stage.name or "(no name)" for stage in model.stages)
        raise ConfigError("the workload has nothing to do there", next=f"its stages are {stages}")
    count_pieces(made, [step.seconds for step in made])
    return sum(step.seconds for step in made)


def _check_readings(meters: Mapping[str, MountedMeter], settings: Settings, took_s: float) -> None:
    """Refuse a run with more readings than there is memory for. Raises ConfigError."""
    for name, mounted in meters.items():
        periods = [settings.period_s, *_list_periods(mounted).values()]
        readings = took_s / min(each for each in periods if isinstance(each, (int, float)))
        if mounted.family != SLURM and readings > MOST_READINGS:
            why = f"{readings:,.0f} readings in {took_s:,.0f} s, {MOST_READINGS:,} are the most"
            then = f"a longer ask_s in [meters.{name}], or less work"
            raise ConfigError(f"the meter {name} would be read too often", why=why, next=then)


def _name_node_file(node: NodeType) -> str:
    return f"node file {node.options.get('twin')}"


def list_remarks(plan: Plan) -> list[str]:
    """Return what twins omit of a study: parameters without effect, words of commands, rates of CPUs."""
    virtual = [cell for cell in plan.cells if plan.nodes[cell.workload.node_type].executor == TWIN]
    described = {name: read_description(plan.nodes[name]) for name in {cell.workload.node_type for cell in virtual}}
    alike = {
        (c.workload.name, c.workload.node_type, *list_given(c), *(k for k in c.knobs if k in OWN)): c for c in virtual
    }
    remarks = [WORDS] if any(not cell.workload.kind and len(cell.make_argv()) > 1 for cell in alike.values()) else []
    for cell in alike.values():
        node, workload = plan.nodes[cell.workload.node_type], cell.workload.name
        there = described[node.name]
        try:
            _, model = find_model(there, cell)
            idle, _ = find_unused(cell, model, (plan.file or Path()).parent)
            ask = make_request(there, node, cell)
        except ConfigError:
            continue  # it is refused
        if idle:
            remarks.append(f"{workload}: without effect in the twin's model: {', '.join(idle)}.")
        if there.node.gpus and not ask.gpus and _borrows_gpu_rates(model):
            why = 'no stage of its model has on = "cpu", so the rates of a GPU are used'
            remarks.append(f"{workload} on {node.name} uses no GPU: {why}.")
    return list(dict.fromkeys(remarks))


def _borrows_gpu_rates(model: WorkloadModel) -> bool:
    """Return whether a run on the CPUs has the rates of stages of no device in particular."""
    on_cpu = any(stage.on == "cpu" for stage in model.stages)
    return not on_cpu and any(stage.rate and not stage.on for stage in model.stages)
