"""Find what a cell asks of a twin: the model of its workload, its parameters, its GPUs and their caps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.study.program import read_numbers
from joulelab.twin.workload_progress import Ask, check_names, names_used

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.twin.model import Node
    from joulelab.twin.nodefile import Description
    from joulelab.twin.workload_progress import Model

OWN = ("cap", "clock", "cpu_cap", "gpus")  # knobs of joulelab's own
LEAST_CPU_CAP = 0.1  # of a package's rated power, as the setter has it
LEAST_MHZ = 210
SPECIAL = ("preset",)  # what it stands for is looked up


def model_of(described: Description, cell: PlannedCell) -> tuple[str, Model]:
    """Return name and model of a cell's workload: of a reference workload by that name, else by the study's own.

    Raises ConfigError where the twin has none.
    """
    first = cell.argv()[0]
    names = {"reference": [first], "notebook": [Path(first).stem]}.get(cell.workload.kind, [])
    for name in (*names, cell.workload.name):
        if name in described.workloads:
            return name, described.workloads[name]
    there, wanted = list(described.workloads), (names or [cell.workload.name])[0]
    then = suggest_name(wanted, there) if there else f"describe it: [workloads.{wanted}] in the node's file"
    raise ConfigError(f"the twin has no model of the workload {wanted!r}", where=described.node.name, next=then)


def ask_of(described: Description, node: NodeType, cell: PlannedCell) -> Ask:
    """Return what a cell asks for. Raises ConfigError for GPUs or caps that the node does not have."""
    _, model = model_of(described, cell)
    gpus = _gpus(described.node, node, cell)
    return Ask(
        _parameters(cell, model),
        gpus,
        caps=_read_limits(described.node, gpus, cell, "cap"),
        clocks=_read_limits(described.node, gpus, cell, "clock"),
        cpu_caps=_read_limits(described.node, range(described.node.packages), cell, "cpu_cap"),
    )


def _gpus(node: Node, kind: NodeType, cell: PlannedCell) -> tuple[int, ...]:
    if kind.hides_gpus:
        return ()
    there = len(node.gpus)
    shown = min(int(kind.options.get("gpus", there)), there)
    count = int(cell.knobs["gpus"].value) if "gpus" in cell.knobs else shown
    if count > there:
        raise ConfigError(f"{count} GPUs are asked for", where="knob gpus", why=f"{node.name} has {there}")
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


def said_of(cell: PlannedCell) -> dict[str, str]:
    """Return what a study says for the workload of a cell: its parameters; of a command, knobs but joulelab's own."""
    if not cell.workload.kind:
        return {name: str(value.value) for name, value in cell.knobs.items() if name not in OWN}
    words = [word for word in cell.argv()[1:] if "=" in word and not word.startswith("--")]
    return dict(word.split("=", 1) for word in words)


def without_effect(cell: PlannedCell, model: Model, folder: Path) -> tuple[list[str], dict[str, ConfigError]]:
    """Return what a study says for a workload that it has as a parameter, but that the model does not depend on.

    And, by name, what is wrong: what neither has, and what the model depends on and is no number. `folder` is that of
    the study file.
    """
    said, used = said_of(cell), names_used(model)
    own, wrong = _own_parameters(cell, list(said), folder), {}
    for name, text in said.items():
        if name in used and not read_numbers({name: text}):
            wrong[name] = ConfigError(f"{name} is {text!r}", where=name, why="the twin's model takes a number for it")
        try:
            check_names(model, [] if name in own else [name], name)
        except ConfigError as error:
            wrong[name] = error
    return [name for name in said if name not in used and name not in (*SPECIAL, *wrong)], wrong


def _own_parameters(cell: PlannedCell, names: list[str], folder: Path) -> set[str]:
    """Return the parameters that the real workload has, of a notebook which of these; none where nobody can tell."""
    if cell.workload.kind == "reference":
        from joulelab.run import workload_registry

        return {*workload_registry.find_workload(cell.argv()[0]).PARAMETERS, *SPECIAL}
    own: set[str] = set()
    if cell.workload.kind == "notebook":
        from joulelab.run import notebook

        with contextlib.suppress(ConfigError):
            loaded = notebook.load_notebook(folder / cell.argv()[0])
            for name in names:
                with contextlib.suppress(ConfigError):
                    notebook.check_parameters(loaded, [name], where=name)
                    own.add(name)
    return own


def _parameters(cell: PlannedCell, model: Model) -> dict[str, float]:
    """Return the workload's numbers: its defaults where the twin does not know better, what the study says first."""
    given = said_of(cell) if cell.workload.kind else {}
    usual: Mapping[str, str] = {}
    if cell.workload.kind == "reference":
        from joulelab.run import workload_registry

        module = workload_registry.find_workload(cell.argv()[0])
        preset = given.pop(workload_registry.PRESET, "")
        usual = {name: default for name, (default, _) in module.PARAMETERS.items() if name not in model.parameters}
        usual = {**usual, **(workload_registry.get_presets(module).get(preset, {}))}
    knobs = {name: str(value.value) for name, value in cell.knobs.items()}
    return read_numbers({**knobs, **usual, **given})
