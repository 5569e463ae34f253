"""Check a plan before anything runs: meters, GPUs, the ranges of caps, temperatures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, JoulelabError, MeterError
from joulelab.run import workload_registry
from joulelab.study import cooling, devices, executors, limits
from joulelab.study.measurable import check_meters
from joulelab.study.nodes import LOCAL, SLURM, TWIN, NodeType
from joulelab.study.programs import check_program, program_of
from joulelab.study.refusals import OF_KNOB, Refusals
from joulelab.study.slot_options import make_run_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapStatus
    from joulelab.study.folder import Plan, Settings
    from joulelab.study.matrix import PlannedCell


def check_plan(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Check what can be checked beforehand; return what is to be warned of. Raises ConfigError with a line for each.

    What runs here is checked against this machine, what runs elsewhere by its executor.
    """
    nodes = plan.nodes or {LOCAL: NodeType()}
    refusals = Refusals(plan.file)
    virtual = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor == TWIN]
    real = [cell for cell in plan.cells if nodes[cell.workload.node_type].executor != TWIN]
    _check_workloads(plan, real, refusals)
    warnings = _check_virtual(plan, virtual, refusals) if virtual else []
    if real or not virtual:
        with refusals.taken():
            make_run_options(plan.settings, environ, Path())
    warnings += _check_elsewhere(nodes, environ, refusals)
    here = {name: node for name, node in nodes.items() if node.executor == LOCAL}
    local = [cell for cell in plan.cells if cell.workload.node_type in here]
    if local:
        _check_programs(local, here, environ, refusals)
        for name, node in here.items():
            own = [cell for cell in local if cell.workload.node_type == name]
            _check_devices(own, {**environ, **node.environment}, refusals)
        _check_cooling(plan.settings, refusals)
        with refusals.taken():
            warnings += check_meters(plan.settings, environ, plan.scope, refusals)
    refusals.check()
    return warnings


def _check_virtual(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> list[str]:
    """Refuse workloads, parameters, GPUs, caps and meters that a twin does not have; return what it omits."""
    warnings: list[str] = executors.require_hook(TWIN, "check_cells")(plan, cells, refusals)
    return warnings


def _check_workloads(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> None:
    """Refuse notebooks and reference workloads that cannot be run by this Python: jobs run by the same."""
    seen: set[tuple[str, ...]] = set()
    for cell in (cell for cell in cells if cell.workload.kind):
        kind, name = cell.workload.kind, cell.workload.name
        if cell.workload.command not in seen:
            seen.add(cell.workload.command)
            with refusals.taken(("workloads", name, kind), cell.workload.command[0]):
                workload_registry.check_workload(kind, cell.argv(), (plan.file or Path()).parent)


def _check_programs(
    cells: Sequence[PlannedCell], nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals
) -> None:
    """Refuse commands that cannot be started; each program of a workload once."""
    seen: set[tuple[str, str, str]] = set()
    beside = None if refusals.file is None else refusals.file.parent
    for cell in (cell for cell in cells if not cell.workload.kind):
        name, node, program = cell.workload.name, cell.workload.node_type, program_of(cell)
        if (name, node, program) not in seen:
            seen.add((name, node, program))
            with refusals.taken(("workloads", name, "command"), f"workload {name}", "command"):
                check_program(program, environ, nodes[node].environment, beside)


def _check_elsewhere(nodes: Mapping[str, NodeType], environ: Mapping[str, str], refusals: Refusals) -> list[str]:
    """Let other executors look at their node types; return what they warn of."""
    warnings: list[str] = []
    for name in dict.fromkeys(node.executor for node in nodes.values() if node.executor != LOCAL):
        try:
            warnings += executors.check_nodes(name, nodes, environ)
        except JoulelabError as error:
            # Slurm itself does not answer: what is asked of it is another matter.
            unmeant = _unmeant(nodes, refusals) if name == SLURM and isinstance(error.__cause__, MeterError) else {}
            for node, key in unmeant.items():
                refusals.add(_no_slurm(node, key, error), ("nodes", node, key))
            if any(node.executor == name and node.name not in unmeant for node in nodes.values()):
                refusals.add(error)
    return warnings


def _unmeant(nodes: Mapping[str, NodeType], refusals: Refusals) -> dict[str, str]:
    """Return the node types that are Slurm's only by a key of the file, each with that key."""
    wanted = [node for node in nodes.values() if node.executor == SLURM]
    tables = {node.name: refusals.table("nodes", node.name) for node in wanted}
    given = {node.name: [key for key in tables[node.name] if key in node.options] for node in wanted}
    return {name: keys[0] for name, keys in given.items() if keys and "executor" not in tables[name]}


def _no_slurm(node: str, key: str, error: JoulelabError) -> ConfigError:
    what = f"{key} makes {node} a node type of Slurm: {error.what}"
    then = f"to run it on this machine leave {key} out"
    then = f"{then}; {OF_KNOB if key == 'gpus' else error.next}"
    return ConfigError(what, why=error.why, next=then, code="config.no-slurm")


def _check_devices(cells: Sequence[PlannedCell], environ: Mapping[str, str], refusals: Refusals) -> None:
    knobs = {name for cell in cells for name in cell.knobs}
    if not knobs & {"gpus", *limits.CAP_KNOBS}:
        return
    status = None
    if knobs & set(limits.CAP_KNOBS):
        with refusals.taken():
            status = _status(environ)
    limits.check_limits(cells, devices.read_visible_gpus(environ), status, refusals)


def _status(environ: Mapping[str, str]) -> CapStatus:
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        return caps.status()


def _check_cooling(settings: Settings, refusals: Refusals) -> None:
    if settings.cool_c is None:
        return
    with refusals.taken(("cool",), "cool", "--cool"), cooling.open_thermometer() as gauge:
        if not gauge.scopes:
            then = "--cool 60s" if refusals.file is None else 'cool = "60s"'
            then = f"wait for a time instead: {then}"
            raise ConfigError("no GPU tells its temperature here", next=then, code="config.no-thermometer")
