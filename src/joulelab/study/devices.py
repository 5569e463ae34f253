"""Choose a slot's GPUs among those that this process may see: the environment that shows them, and the caps on them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.scope import find_family
from joulelab.instruments.amdsmi import count_nvidia
from joulelab.instruments.amdsmi.client import AmdSmi
from joulelab.instruments.nvml.client import Gpu, Nvml
from joulelab.instruments.visible import order_known, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapRequest
    from joulelab.study.nodes import NodeType
    from joulelab.study.values import Value

CUDA, CUDA_ORDER, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
BY_BUS = "PCI_BUS_ID"
# What shows a workload no GPU; meters see them all the same.
HIDDEN = {CUDA: "-1", HIP: "-1"}


@dataclass(frozen=True, slots=True)
class Visible:
    """Hold the GPUs that a workload may see, in its order: their scopes, and how the maker's variable names them."""

    scopes: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    variable: str = CUDA
    order_known: bool = True
    why: str = ""

    def first(self, count: int | None) -> Visible:
        """Return the first so many (None: all). Raises ConfigError where there are fewer."""
        if count is None:
            return self
        if count > len(self.scopes):
            there = f"{len(self.scopes)} GPUs are visible" if self.scopes else self.why or "no GPU is visible"
            raise ConfigError(f"{count} GPUs are asked for", where="knob gpus", why=there)
        return Visible(self.scopes[:count], self.entries[:count], self.variable, self.order_known)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that show a workload exactly these."""
        shown = {self.variable: ",".join(self.entries)}
        if self.variable == CUDA and CUDA not in environ:
            shown[CUDA_ORDER] = BY_BUS  # the indices are NVML's
        return shown


@dataclass(frozen=True, slots=True)
class Used:
    """Hold the GPUs that a workload is shown, and those of the node that it is not: they idle, and cost energy."""

    node_type: str
    uses: str
    used: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for the record of a slot."""
        return {"node_type": self.node_type, "uses": self.uses, "gpus": list(self.used), "idle_gpus": list(self.idle)}


def used_of(node: NodeType, shown: Visible) -> Used:
    """Return what of a node's GPUs a workload uses that is shown some of them."""
    every = look({}).scopes
    parts = {scope.partition("/")[0] for scope in shown.scopes}
    return Used(node.name, node.uses, shown.scopes, tuple(scope for scope in every if scope not in parts))


def look(environ: Mapping[str, str]) -> Visible:
    """Return the GPUs that are visible in an environment; none is no error."""
    try:
        with closing(Nvml()) as nvml:
            gpus, _ = nvml.gpus()
    except JoulelabError as error:
        gpus, why = [], str(error)
    else:
        why = "NVML lists no GPU"
    if gpus:
        return nvidia(gpus, environ)
    try:
        with closing(AmdSmi()) as library:
            uuids = [gpu.uuid for gpu in library.gpus()]
    except JoulelabError:
        return Visible(why=why)
    return amd(uuids, count_nvidia(Path("/proc/driver/nvidia/gpus")), environ)


def nvidia(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return which of NVIDIA's GPUs are visible."""
    value = environ.get(CUDA)
    if value is None:
        scopes = visible(gpus, None)
        return Visible(tuple(scopes), tuple(scope.partition(":")[2] for scope in scopes))
    named: dict[str, str] = {}
    for entry in (part.strip() for part in value.split(",")):
        scope = next(iter(visible(gpus, entry)), None)
        if scope is None:
            break  # as in CUDA, the first that names nothing hides all that follow
        named.setdefault(scope, entry)
    known = order_known(gpus, value, environ.get(CUDA_ORDER))
    return Visible(tuple(named), tuple(named.values()), CUDA, known, f"{CUDA} is {value!r}")


def amd(uuids: Sequence[str], first: int, environ: Mapping[str, str]) -> Visible:
    """Return which of AMD's GPUs are visible: ROCr's variable hides first, HIP's counts among what is left."""
    left = list(range(len(uuids)))
    if ROCR in environ:
        left = _kept(environ[ROCR], left, uuids)
    variable = HIP if HIP in environ or CUDA not in environ else CUDA
    if variable in environ:
        kept = _kept(environ[variable], list(range(len(left))), [uuids[i] for i in left])
        entries, left = kept, [left[i] for i in kept]
    else:
        entries = list(range(len(left)))
    why = "; ".join(f"{name} is {environ[name]!r}" for name in (ROCR, HIP, CUDA) if name in environ)
    return Visible(tuple(f"gpu:{first + i}" for i in left), tuple(map(str, entries)), variable, why=why)


def _kept(value: str, there: Sequence[int], uuids: Sequence[str]) -> list[int]:
    kept: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdigit() and int(entry) < len(there):
            number = there[int(entry)]
        elif entry.startswith("GPU-") and entry in uuids:
            number = there[uuids.index(entry)]
        else:
            break
        if number not in kept:
            kept.append(number)
    return kept


def wishes(knobs: Mapping[str, Value], gpus: Visible, packages: Sequence[str]) -> list[CapRequest]:
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


def _check_capped(gpus: Visible, name: str) -> None:
    where = f"knob {name}"
    if not gpus.scopes:
        raise ConfigError("there is no GPU to cap", where=where, why=gpus.why, next="joulelab meters")
    part = next((scope for scope in gpus.scopes if "/" in scope), None)
    if part is not None:
        why = "a cap is for a whole GPU, and others may use the rest of it"
        raise ConfigError(f"{part} is a part of a GPU", where=where, why=why)
    if not gpus.order_known:
        why = "GPUs of several models, and CUDA may count them in another order"
        raise ConfigError(
            "which GPUs are visible is not sure", where=where, why=why, next=f"export {CUDA_ORDER}={BY_BUS}"
        )


def packages(knobs: Mapping[str, Value], environ: Mapping[str, str]) -> list[str]:
    """Return the scopes of the CPU packages, if a knob is about them."""
    if "cpu_cap" not in knobs:
        return []
    from joulelab.control.client import Caps

    with Caps(environ) as caps:
        found = [d.scope for d in caps.status().devices if find_family(d.scope) == "cpu"]
    return list(dict.fromkeys(found))
