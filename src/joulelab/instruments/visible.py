"""Find the GPUs that a workload sees: CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES hide others.

All GPUs of the node are measured anyway; caps are set only on those that the workload sees.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from joulelab.instruments.nvml.client import Gpu

CUDA, CUDA_ORDER, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
HIDING_VARIABLES = (CUDA, HIP, ROCR)
BY_BUS = "PCI_BUS_ID"


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """Hold the GPUs of one maker that a workload sees, in its order: their scopes, and their names in `variable`.

    `why` is the reason if there are none; `doubt` the reason if it may see others, and `advice` how to make it sure.
    """

    scopes: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    variable: str = CUDA
    why: str = ""
    doubt: str = ""
    advice: str = ""

    def take_first(self, count: int | None) -> VisibleGpus:
        """Return the first `count` GPUs (None: all). Raises ConfigError if there are fewer."""
        if count is None:
            return self
        if count > len(self.scopes):
            there = f"{len(self.scopes)} GPUs are visible" if self.scopes else self.why or "no GPU is visible"
            what, code = f"{count} GPUs are requested", "config.too-few-gpus"
            raise ConfigError(what, where="knob gpus", why=there, code=code)
        return replace(self, scopes=self.scopes[:count], entries=self.entries[:count])

    def select_scopes(self, scopes: Collection[str]) -> VisibleGpus:
        """Return the GPUs with these scopes."""
        chosen = [(s, entry) for s, entry in zip(self.scopes, self.entries, strict=True) if s in scopes]
        return replace(self, scopes=tuple(s for s, _ in chosen), entries=tuple(entry for _, entry in chosen))

    def make_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that show a workload exactly these GPUs."""
        shown = {self.variable: ",".join(self.entries)}
        if self.variable == CUDA and CUDA not in environ:
            shown[CUDA_ORDER] = BY_BUS  # the indices are NVML's
        return shown

    def check_caps(self, where: str) -> None:
        """Refuse caps on a part of a GPU, and on GPUs that may not be the workload's. Raises ConfigError."""
        part = next((scope for scope in self.scopes if "/" in scope), None)
        if part is not None:
            why, code = "a cap is for a whole GPU, and others may use the rest of it", "config.part-of-gpu"
            raise ConfigError(f"{part} is a part of a GPU", where=where, why=why, code=code)
        if self.doubt:
            what, code = "which GPUs are visible is not sure", "config.unsure-gpus"
            raise ConfigError(what, where=where, why=self.doubt, next=self.advice, code=code)


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """Hold all GPUs of a node: NVIDIA's, then the UUIDs of AMD's, whose scopes begin with number `first`.

    `why` is the reason if NVML lists no GPU.
    """

    nvidia: Sequence[Gpu] = ()
    amd: Sequence[str] = ()
    first: int = 0
    why: str = ""

    def find_visible(self, environ: Mapping[str, str]) -> VisibleGpus:
        """Return the GPUs that a workload sees in an environment; none is no error."""
        if not self.nvidia and not self.amd:
            return VisibleGpus(why=self.why)
        has_cuda, has_amd = CUDA in environ, HIP in environ or ROCR in environ
        if not self.nvidia or (self.amd and has_amd and not has_cuda):
            return see_amd_gpus(self.amd, self.first, environ)
        seen = see_nvidia_gpus(self.nvidia, environ)
        if not self.amd or (has_cuda and not has_amd):
            return seen
        doubt = "this node has GPUs of NVIDIA and of AMD"
        return replace(seen, doubt=doubt, advice=f"set {CUDA} or {HIP}, not both")

    def show_only(self, scopes: Collection[str], environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which a workload sees only the GPUs with these scopes, whatever it saw before."""
        shown = {name: text for name, text in environ.items() if name not in (*HIDING_VARIABLES, CUDA_ORDER)}
        for every in (see_nvidia_gpus(self.nvidia, {}), see_amd_gpus(self.amd, self.first, {})):
            chosen = every.select_scopes(scopes)
            shown |= chosen.make_environment({}) if chosen.scopes else {}
        return shown


def read_node_gpus() -> NodeGpus:
    """List the GPUs of this node by NVML and AMD SMI; a library that is not there lists none."""
    from joulelab.instruments.amdsmi import AmdSmi, count_nvidia_gpus
    from joulelab.instruments.nvml.client import Nvml

    nvidia: list[Gpu] = []
    amd: list[str] = []
    why = "NVML lists no GPU"
    try:
        with closing(Nvml()) as nvml:
            nvidia, _ = nvml.list_gpus()
    except JoulelabError as error:
        why = str(error)
    with contextlib.suppress(JoulelabError), closing(AmdSmi()) as library:
        amd = [gpu.uuid for gpu in library.list_gpus()]
    return NodeGpus(nvidia, amd, count_nvidia_gpus(), why)


def see_nvidia_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> VisibleGpus:
    """Return the NVIDIA GPUs that a workload sees."""
    value = environ.get(CUDA)
    if value is None:
        return VisibleGpus(tuple(f"gpu:{gpu.index}" for gpu in gpus), tuple(str(gpu.index) for gpu in gpus))
    named = _name_entries(value, lambda entry: _find_cuda_scope(gpus, entry))
    seen = VisibleGpus(tuple(named), tuple(named.values()), CUDA, why=f"{CUDA} is {value!r}")
    if is_order_known(gpus, value, environ.get(CUDA_ORDER)):
        return seen
    doubt = "GPUs of several models, and CUDA may count them in another order"
    return replace(seen, doubt=doubt, advice=f"export {CUDA_ORDER}={BY_BUS}")


def see_amd_gpus(uuids: Sequence[str], first: int, environ: Mapping[str, str]) -> VisibleGpus:
    """Return the AMD GPUs that a workload sees: ROCR's variable hides first, HIP's counts among those left."""
    left = list(range(len(uuids)))
    if ROCR in environ:
        left = _find_amd_positions(environ[ROCR], uuids)
    variable = HIP if HIP in environ or CUDA not in environ else CUDA
    entries = list(range(len(left)))
    if variable in environ:
        entries = _find_amd_positions(environ[variable], [uuids[i] for i in left])
    why = "; ".join(f"{name} is {environ[name]!r}" for name in (ROCR, HIP, CUDA) if name in environ)
    return VisibleGpus(tuple(f"gpu:{first + left[i]}" for i in entries), tuple(map(str, entries)), variable, why)


def list_cuda_scopes(gpus: Sequence[Gpu], value: str | None) -> list[str]:
    """Return the scopes that CUDA shows for a value of CUDA_VISIBLE_DEVICES (None = not set), in its order.

    Takes indices, GPU UUIDs and MIG UUIDs (both shortened as CUDA allows) and `MIG-GPU-<uuid>/<gpu>/<compute>`.
    """
    return list(see_nvidia_gpus(gpus, {} if value is None else {CUDA: value}).scopes)


def is_order_known(gpus: Sequence[Gpu], value: str | None, device_order: str | None) -> bool:
    """Return whether indices mean what NVML means: CUDA counts the fastest first unless the order is PCI_BUS_ID."""
    by_index = value is not None and any(part.strip().isdigit() for part in value.split(","))
    return not by_index or device_order == BY_BUS or len({gpu.name for gpu in gpus}) <= 1


def _name_entries(value: str, find: Callable[[str], str | None]) -> dict[str, str]:
    """Return the entries of a variable by the GPU that each names; the first one without a GPU hides the rest."""
    named: dict[str, str] = {}
    for entry in (part.strip() for part in value.split(",")):
        found = find(entry)
        if found is None:
            break
        named.setdefault(found, entry)
    return named


def _find_amd_positions(value: str, uuids: Sequence[str]) -> list[int]:
    def find_position(entry: str) -> str | None:
        if entry.isdigit() and int(entry) < len(uuids):
            return str(int(entry))
        return str(uuids.index(entry)) if entry.startswith("GPU-") and entry in uuids else None

    return [int(position) for position in _name_entries(value, find_position)]


def _find_cuda_scope(gpus: Sequence[Gpu], entry: str) -> str | None:
    migs = [(gpu, mig, f"gpu:{gpu.index}/mig:{mig.index}") for gpu in gpus for mig in gpu.mig]
    found: list[str] = []
    if entry.isdigit():
        found = [f"gpu:{gpu.index}" for gpu in gpus if gpu.index == int(entry)]
    elif entry.startswith("MIG-GPU-"):
        uuid, _, ids = entry.removeprefix("MIG-").partition("/")
        numbers = ((gpu, f"{mig.gpu_instance}/{mig.compute_instance}", scope) for gpu, mig, scope in migs)
        found = [scope for gpu, number, scope in numbers if gpu.uuid.startswith(uuid) and number == ids]
    elif entry.startswith("MIG-"):
        found = [scope for _, mig, scope in migs if mig.uuid.startswith(entry)]
    elif entry.startswith("GPU-"):
        found = [f"gpu:{gpu.index}" for gpu in gpus if gpu.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None  # a shortened UUID that fits two is not valid
