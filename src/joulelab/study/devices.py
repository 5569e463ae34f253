"""Choose a slot's GPUs among those that this process may see: the environment that shows them, and the caps on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.scope import find_family
from joulelab.instruments.visible import CUDA, HIP, VisibleGpus, read_node_gpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.study.knobs import Value
    from joulelab.study.matrix import NodeType

# What shows a workload no GPU; meters see them all the same.
HIDDEN_GPUS = {CUDA: "-1", HIP: "-1"}


@dataclass(frozen=True, slots=True)
class UsedGpus:
    """Hold the GPUs that a workload is shown, and those of the node that it is not: they idle, and cost energy."""

    node_type: str
    uses: str
    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for the record of a slot."""
        return {"node_type": self.node_type, "uses": self.uses, "gpus": list(self.used), "idle_gpus": list(self.idle)}


def find_used_gpus(node: NodeType, shown: VisibleGpus) -> UsedGpus:
    """Return what of a node's GPUs a workload uses that is shown some of them."""
    every = read_visible_gpus({}).scopes
    parts = {scope.partition("/")[0] for scope in shown.scopes}
    return UsedGpus(node.name, node.uses, shown.scopes, tuple(scope for scope in every if scope not in parts))


def read_visible_gpus(environ: Mapping[str, str]) -> VisibleGpus:
    """Return the GPUs that are visible in an environment; none is no error."""
    return read_node_gpus().find_visible(environ)


def list_cap_requests(knobs: Mapping[str, Value], gpus: VisibleGpus, packages: Sequence[str]) -> list[CapRequest]:
    """Return a cell's caps: on exactly the GPUs it uses, and on every CPU package. Raises ConfigError."""
    from joulelab.control.client import CapRequest

    wanted: list[CapRequest] = []
    for name in ("cap", "clock"):
        if name in knobs:
            _check_capped(gpus, name)
            wanted += [_wish(CapRequest, scope, knobs[name]) for scope in gpus.scopes]
    if "cpu_cap" in knobs:
        if not packages:
            raise ConfigError("there is no CPU package to cap", where="knob cpu_cap", next="joulelab cap status")
        wanted += [_wish(CapRequest, scope, knobs["cpu_cap"]) for scope in packages]
    return wanted


def _wish(kind: type[CapRequest], scope: str, value: Value) -> CapRequest:
    unit: Any = value.unit
    return kind(scope, float(value.value), unit)


def _check_capped(gpus: VisibleGpus, name: str) -> None:
    where = f"knob {name}"
    if not gpus.scopes:
        raise ConfigError("there is no GPU to cap", where=where, why=gpus.why, next="joulelab meters")
    gpus.check_caps(where)


def list_cpu_packages(knobs: Mapping[str, Value], environ: Mapping[str, str]) -> list[str]:
    """Return the scopes of the CPU packages, if a knob is about them."""
    if "cpu_cap" not in knobs:
        return []
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        found = [d.scope for d in caps.status().devices if find_family(d.scope) == "cpu"]
    return list(dict.fromkeys(found))
