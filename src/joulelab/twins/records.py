"""Turn the descriptions of GPUs, flaws, processes and MIG instances into records of the truth file, and flaws back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.clock import NS
from joulelab.twins.flaws import Counter, Flaws, Plain
from joulelab.twins.layout import COUNTERS, NEVER, PLAINS

if TYPE_CHECKING:
    from joulelab.twins.model import Gpu, Node

DRIVER = b"565.57.01"
NVML = b"12.565.57.01"
CUDA = 12070
_GPU_SAME = (
    "name", "architecture", "brand", "multiprocessors", "cores", "bus_bits", "pcie_generation", "fans", "ecc", "mig",
    "sm_max_mhz", "sm_idle_mhz", "memory_max_mhz", "memory_idle_mhz", "memory_bytes", "idle_c", "max_c", "pci_id",
)  # fmt: skip
_FLAWS_SAME = (
    "counter_base_mj", "counter_step_mj", "power_step_mw", "gain_error", "offset_w", "noise_w", "refuse_caps",
    "refuse_processes",
)  # fmt: skip
_FLAWS_LENGTHS = (
    "power_period", "power_window", "power_phase", "average_window", "counter_period", "counter_phase", "latency",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Describe a process on a GPU: memory in bytes, load in percent (None: it shares the GPU's)."""

    pid: int
    memory_bytes: int
    kind: Literal["compute", "graphics", "mps"] = "compute"
    load: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Describe a MIG instance: memory in bytes."""

    profile: str = "1g.10gb"
    memory_bytes: int = 9728 << 20
    multiprocessors: int = 16
    slices: int = 1
    gpu_instance: int = 7
    compute_instance: int = 0


def identity(node: Node, *parts: object) -> uuid.UUID:
    """Return a UUID that depends only on the node's name and seed and on the parts."""
    return uuid.uuid5(uuid.NAMESPACE_OID, ":".join(str(p) for p in ("joulelab twin", node.name, node.seed, *parts)))


def gpu_record(node: Node, index: int, leaf: int) -> dict[str, Any]:
    """Return the fields of the static description of one GPU."""
    gpu: Gpu = node.gpus[index]
    idle_w, max_w = node.range_w(f"gpu:{index}")
    bus = 0x10 + 0x0B * index % 0xE0
    return {name: getattr(gpu, name) for name in _GPU_SAME} | {
        "uuid": f"GPU-{identity(node, index)}",
        "serial": str(identity(node, index).int % 10**13).zfill(13),
        "bus_id": f"00000000:{bus:02X}:00.0",
        "bus": bus,
        "minor": index,
        "compute_major": gpu.compute[0],
        "compute_minor": gpu.compute[1],
        "leaf": leaf,
        "idle_w": idle_w,
        "max_w": max_w,
        "min_cap_mw": round(gpu.min_cap_w * 1000),
        "max_cap_mw": round(gpu.max_cap_w * 1000),
        "default_cap_mw": round(gpu.default_cap_w * 1000),
    }


def _ns(seconds: float) -> int:
    return round(seconds * NS)


def flaws_record(flaws: Flaws, start_ns: int) -> dict[str, Any]:
    """Return the fields of the flaws, with absolute times."""

    def at(seconds: float | None, more: float = 0.0) -> int:
        return NEVER if seconds is None else start_ns + _ns(seconds + more)

    outside = flaws.outside_cap_w
    return {name: getattr(flaws, name) for name in _FLAWS_SAME} | {
        **{f"{name}_ns": _ns(getattr(flaws, f"{name}_s")) for name in _FLAWS_LENGTHS},
        "lost_ns": at(flaws.lost_at_s),
        "fail_ns": at(flaws.fail_at_s),
        "fail_until_ns": at(flaws.fail_at_s, flaws.fail_for_s),
        "hang_ns": at(flaws.hang_at_s),
        "hang_until_ns": at(flaws.hang_at_s, flaws.hang_for_s),
        "reset_ns": at(flaws.reset_at_s),
        "outside_cap_ns": NEVER if outside is None else at(flaws.outside_cap_at_s),
        "outside_cap_mw": 0 if outside is None else round(outside * 1000),
        "forget_cap_ns": at(flaws.forget_cap_at_s),
        "counter": COUNTERS[flaws.counter],
        "plain": PLAINS[flaws.plain],
    }


def flaws_from(record: Any, start_ns: int) -> Flaws:
    """Return the flaws that a record holds."""

    def since(name: str) -> float | None:
        at_ns = int(record[name])
        return None if at_ns == NEVER else (at_ns - start_ns) / NS

    def width(begin: str, end: str) -> float:
        return 0.0 if int(record[begin]) == NEVER else (int(record[end]) - int(record[begin])) / NS

    outside = int(record["outside_cap_ns"]) != NEVER
    lengths: dict[str, Any] = {f"{name}_s": int(record[f"{name}_ns"]) / NS for name in _FLAWS_LENGTHS}
    same: dict[str, Any] = {name: record[name].item() for name in _FLAWS_SAME}
    return Flaws(
        **lengths,
        **{name: bool(value) if name.startswith("refuse") else value for name, value in same.items()},
        counter=next(Counter(key) for key, value in COUNTERS.items() if value == record["counter"]),
        plain=next(Plain(key) for key, value in PLAINS.items() if value == record["plain"]),
        lost_at_s=since("lost_ns"),
        fail_at_s=since("fail_ns"),
        fail_for_s=width("fail_ns", "fail_until_ns"),
        hang_at_s=since("hang_ns"),
        hang_for_s=width("hang_ns", "hang_until_ns"),
        reset_at_s=since("reset_ns"),
        outside_cap_w=int(record["outside_cap_mw"]) / 1000 if outside else None,
        outside_cap_at_s=(since("outside_cap_ns") or 0.0) if outside else 0.0,
        forget_cap_at_s=since("forget_cap_ns"),
    )
