"""Choose the devices that caps are set on: the GPUs that a workload sees, or those that were named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from joulelab.control.client import CapRequest
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.visible import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.client import CapDevice, CapStatus

CapValue = tuple[float, Literal["W", "share", "Hz"]]
# What hides GPUs from a workload, by the maker's own word for it, the first that is set.
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def choose_gpus(status: CapStatus, environ: Mapping[str, str], words: str | None = None) -> list[str]:
    """Return the scopes of the GPUs that the workload sees, or those in `words`: `0,1`, `GPU-5f3a`, `all`.

    Raises ConfigError for a GPU that is not there, Unavailable where there is none.
    """
    there = _list_devices(status, "gpu")
    if not there:
        why = "; ".join(f"{scope}: {reason}" for scope, reason in status.missing)
        raise Unavailable("there is no GPU to cap", where="cap", why=why or None, next="joulelab cap status")
    known = {device.scope: device.device for device in there}
    if words is not None:
        return _find_named_gpus(known, words)
    hidden = next((environ[name] for name in HIDING if name in environ), None)
    seen = visible([Gpu(int(d.scope.partition(":")[2]), d.device, d.model) for d in there], hidden)
    if not seen:
        raise ConfigError(
            "the workload sees no GPU", where="cap", why=f"it is told {hidden!r}", next="name some: --gpu 0"
        )
    return seen


def choose_cpus(status: CapStatus) -> list[str]:
    """Return the scopes of the CPU packages. Raises Unavailable where none can be capped."""
    there = [device.scope for device in _list_devices(status, "cpu")]
    if not there:
        raise Unavailable("there is no CPU package to cap", where="cap", next="joulelab cap status")
    return there


def make_cap_requests(scopes: Sequence[str], value: CapValue) -> list[CapRequest]:
    """Return a wish for each scope; a value is a number with its unit: W, share or Hz."""
    return [CapRequest(scope, value[0], value[1]) for scope in scopes]


def _list_devices(status: CapStatus, family: str) -> list[CapDevice]:
    """Return the devices of a family, each once: a GPU has its cap and its clocks."""
    found = {d.scope: d for d in status.devices if d.scope.partition(":")[0] == family}
    found |= {d.scope: d for d in status.devices if d.scope in found and d.kind == "power"}
    return list(found.values())


def _find_named_gpus(known: Mapping[str, str], words: str) -> list[str]:
    if words.strip() == "all":
        return list(known)
    scopes = []
    for word in (part.strip().removeprefix("gpu:") for part in words.split(",")):
        fitting = [
            s for s, device in known.items() if s == f"gpu:{word}" or (len(word) > 4 and device.startswith(word))
        ]
        if len(fitting) != 1:
            raise ConfigError(f"there is no GPU {word!r}", where="--gpu", why=f"there are {', '.join(known)}")
        scopes += [scope for scope in fitting if scope not in scopes]
    return scopes
