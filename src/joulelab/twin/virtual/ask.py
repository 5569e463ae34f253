"""Find what a cell asks of a twin: the model of its workload, its parameters, its GPUs and their caps."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.workload_progress import Ask, check_names, names_used

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.twin.model import Node
    from joulelab.twin.nodefile import Description
    from joulelab.twin.workload_progress import Model

FLAGS = {"true": 1.0, "false": 0.0}
UNKNOWN = ("clock", "cpu_cap")
OWN = ("cap", "gpus", *UNKNOWN)  # knobs of joulelab's own
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
    return Ask(_parameters(cell, model), gpus, _caps(described.node, gpus, cell))


def _gpus(node: Node, kind: NodeType, cell: PlannedCell) -> tuple[int, ...]:
    if kind.hides_gpus:
        return ()
    there = len(node.gpus)
    shown = min(int(kind.options.get("gpus", there)), there)
    count = int(cell.knobs["gpus"].value) if "gpus" in cell.knobs else shown
    if count > there:
        raise ConfigError(f"{count} GPUs are asked for", where="knob gpus", why=f"{node.name} has {there}")
    return tuple(range(count))


def _caps(node: Node, gpus: tuple[int, ...], cell: PlannedCell) -> dict[int, float]:
    wrong = next((name for name in UNKNOWN if name in cell.knobs), None)
    if wrong is not None:
        raise ConfigError(f"a twin has no {wrong}", where=f"knob {wrong}", next="use cap (W of each GPU)")
    if "cap" not in cell.knobs:
        return {}
    if not gpus:
        raise ConfigError("there is no GPU to cap", where="knob cap", why=f"the cell uses none of {node.name}")
    value, caps = cell.knobs["cap"], {}
    for gpu in gpus:
        one = node.gpus[gpu]
        watts = float(value.value) * (one.default_cap_w if value.unit == "share" else 1.0)
        if not one.min_cap_w <= watts <= one.max_cap_w:
            why = f"{one.name} takes {one.min_cap_w:g} to {one.max_cap_w:g} W"
            raise ConfigError(f"a cap of {watts:g} W cannot be set", where="knob cap", why=why)
        caps[gpu] = watts
    return caps


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
        if name in used and not _numbers({name: text}):
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
    return _numbers({**knobs, **usual, **given})


def _numbers(texts: Mapping[str, str]) -> dict[str, float]:
    """Return those that are numbers, or true and false."""
    found: dict[str, float] = {}
    for name, text in texts.items():
        with contextlib.suppress(ValueError):
            number = FLAGS[text.lower()] if text.lower() in FLAGS else float(text)
            if math.isfinite(number):
                found[name] = number
    return found
