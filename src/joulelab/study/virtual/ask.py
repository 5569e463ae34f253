"""Find what a cell asks of a twin: the model of its workload, its parameters, its GPUs and their caps."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.meters import nearest
from joulelab.twins.progress import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.twins.model import Node
    from joulelab.twins.nodefile import Description
    from joulelab.twins.progress import Model

FLAGS = {"true": 1.0, "false": 0.0}
UNKNOWN = ("clock", "cpu_cap")


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
    then = nearest(wanted, there) if there else f"describe it: [workloads.{wanted}] in the node's file"
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


def _parameters(cell: PlannedCell, model: Model) -> dict[str, float]:
    """Return the workload's numbers: its defaults where the twin does not know better, what the study says first."""
    words = cell.argv()[1:]
    given = dict(word.split("=", 1) for word in words if "=" in word) if cell.workload.kind else {}
    usual: Mapping[str, str] = {}
    if cell.workload.kind == "reference":
        from joulelab import workloads

        module = workloads.find(cell.argv()[0])
        preset = given.pop(workloads.PRESET, "")
        usual = {name: default for name, (default, _) in module.PARAMETERS.items() if name not in model.parameters}
        usual = {**usual, **(workloads.presets(module).get(preset, {}))}
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
