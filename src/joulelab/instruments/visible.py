"""Tell which GPUs a workload can see, from CUDA_VISIBLE_DEVICES; all GPUs of the node are measured anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.nvml.client import Gpu, Mig


def visible(gpus: Sequence[Gpu], value: str | None) -> list[str]:
    """Return the scopes that CUDA shows for a value of CUDA_VISIBLE_DEVICES (None = not set), in its order.

    Takes indices, GPU UUIDs and MIG UUIDs (both shortened as CUDA allows) and `MIG-GPU-<uuid>/<gpu>/<compute>`. As in
    CUDA, the first entry that names nothing hides all that follow.
    """
    if value is None:
        return [f"gpu:{gpu.index}" for gpu in gpus]
    scopes: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        scope = _scope(gpus, entry)
        if scope is None:
            break
        if scope not in scopes:
            scopes.append(scope)
    return scopes


def order_known(gpus: Sequence[Gpu], value: str | None, device_order: str | None) -> bool:
    """Tell whether indices mean what NVML means: CUDA counts the fastest first unless the order is PCI_BUS_ID."""
    by_index = value is not None and any(part.strip().isdigit() for part in value.split(","))
    return not by_index or device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1


def _scope(gpus: Sequence[Gpu], entry: str) -> str | None:
    if entry.isdigit():
        return next((f"gpu:{gpu.index}" for gpu in gpus if gpu.index == int(entry)), None)
    if entry.startswith("MIG-GPU-"):
        uuid, _, ids = entry.removeprefix("MIG-").partition("/")
        return _one([_mig(g, m) for g in gpus for m in g.mig if g.uuid.startswith(uuid) and _ids(m) == ids])
    if entry.startswith("MIG-"):
        return _one([_mig(g, m) for g in gpus for m in g.mig if m.uuid.startswith(entry)])
    if entry.startswith("GPU-"):
        return _one([f"gpu:{gpu.index}" for gpu in gpus if gpu.uuid.startswith(entry)])
    return None


def _one(found: list[str]) -> str | None:
    return found[0] if len(found) == 1 else None  # a shortened UUID that fits two is not valid


def _mig(gpu: Gpu, mig: Mig) -> str:
    return f"gpu:{gpu.index}/mig:{mig.index}"


def _ids(mig: Mig) -> str:
    return f"{mig.gpu_instance}/{mig.compute_instance}"
