"""Turn the descriptions of GPUs, flaws, processes and MIG instances into records of the truth file, and flaws back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.clock import NS
from joulelab.twin.flaws import Counter, Flaws, Plain
from joulelab.twin.layout import COUNTERS, NEVER, PLAINS

if TYPE_CHECKING:
    from joulelab.twin.model import Gpu, Node

DRIVER = b"565.57.01"
NVML = b"12.565.57.01"
CUDA = 12070


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
    return {
        "name": gpu.name, "uuid": f"GPU-{identity(node, index)}", "bus_id": f"00000000:{bus:02X}:00.0", "bus": bus,
        "serial": str(identity(node, index).int % 10**13).zfill(13), "minor": index, "leaf": leaf, "pci_id": gpu.pci_id,
        "architecture": gpu.architecture, "brand": gpu.brand, "compute_major": gpu.compute[0],
        "compute_minor": gpu.compute[1], "multiprocessors": gpu.multiprocessors, "cores": gpu.cores,
        "bus_bits": gpu.bus_bits, "pcie_generation": gpu.pcie_generation, "fans": gpu.fans, "ecc": gpu.ecc,
        "mig": gpu.mig, "sm_max_mhz": gpu.sm_max_mhz, "sm_idle_mhz": gpu.sm_idle_mhz,
        "memory_max_mhz": gpu.memory_max_mhz, "memory_idle_mhz": gpu.memory_idle_mhz,
        "memory_bytes": gpu.memory_bytes, "idle_w": idle_w, "max_w": max_w, "idle_c": gpu.idle_c, "max_c": gpu.max_c,
        "min_cap_mw": round(gpu.min_cap_w * 1000), "max_cap_mw": round(gpu.max_cap_w * 1000),
        "default_cap_mw": round(gpu.default_cap_w * 1000),
    }  # fmt: skip


def _ns(seconds: float) -> int:
    return round(seconds * NS)


def flaws_record(flaws: Flaws, start_ns: int) -> dict[str, Any]:
    """Return the fields of the flaws, with absolute times."""

    def at(seconds: float | None, more: float = 0.0) -> int:
        return NEVER if seconds is None else start_ns + _ns(seconds + more)

    outside = flaws.outside_cap_w
    return {
        "power_period_ns": _ns(flaws.power_period_s),
        "power_window_ns": _ns(flaws.power_window_s),
        "power_phase_ns": _ns(flaws.power_phase_s),
        "power_step_mw": flaws.power_step_mw,
        "average_window_ns": _ns(flaws.average_window_s),
        "counter_period_ns": _ns(flaws.counter_period_s),
        "counter_phase_ns": _ns(flaws.counter_phase_s),
        "counter_base_mj": flaws.counter_base_mj,
        "counter_step_mj": flaws.counter_step_mj,
        "gain_error": flaws.gain_error,
        "offset_w": flaws.offset_w,
        "module_w": flaws.module_w,
        "memory_share": flaws.memory_share,
        "noise_w": flaws.noise_w,
        "latency_ns": _ns(flaws.latency_s),
        "refuse_caps": flaws.refuse_caps,
        "refuse_processes": flaws.refuse_processes,
        "no_caps": not flaws.caps_supported,
        "ignore_caps": flaws.ignore_caps,
        "unenforced_caps": flaws.unenforced_caps,
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


def _width_s(record: Any, begin: str, end: str) -> float:
    return 0.0 if int(record[begin]) == NEVER else (int(record[end]) - int(record[begin])) / NS


def flaws_from(record: Any, start_ns: int) -> Flaws:
    """Return the flaws that a record holds."""

    def since(name: str) -> float | None:
        at_ns = int(record[name])
        return None if at_ns == NEVER else (at_ns - start_ns) / NS

    def length(name: str) -> float:
        return int(record[name]) / NS

    outside = int(record["outside_cap_ns"]) != NEVER
    return Flaws(
        power_period_s=length("power_period_ns"),
        power_window_s=length("power_window_ns"),
        power_phase_s=length("power_phase_ns"),
        power_step_mw=int(record["power_step_mw"]),
        average_window_s=length("average_window_ns"),
        counter_period_s=length("counter_period_ns"),
        counter_phase_s=length("counter_phase_ns"),
        counter_base_mj=int(record["counter_base_mj"]),
        counter_step_mj=int(record["counter_step_mj"]),
        gain_error=float(record["gain_error"]),
        offset_w=float(record["offset_w"]),
        module_w=float(record["module_w"]),
        memory_share=float(record["memory_share"]),
        noise_w=float(record["noise_w"]),
        latency_s=length("latency_ns"),
        refuse_caps=bool(record["refuse_caps"]),
        refuse_processes=bool(record["refuse_processes"]),
        caps_supported=not record["no_caps"],
        ignore_caps=bool(record["ignore_caps"]),
        unenforced_caps=bool(record["unenforced_caps"]),
        counter=next(Counter(key) for key, value in COUNTERS.items() if value == record["counter"]),
        plain=next(Plain(key) for key, value in PLAINS.items() if value == record["plain"]),
        lost_at_s=since("lost_ns"),
        fail_at_s=since("fail_ns"),
        fail_for_s=_width_s(record, "fail_ns", "fail_until_ns"),
        hang_at_s=since("hang_ns"),
        hang_for_s=_width_s(record, "hang_ns", "hang_until_ns"),
        reset_at_s=since("reset_ns"),
        outside_cap_w=int(record["outside_cap_mw"]) / 1000 if outside else None,
        outside_cap_at_s=(since("outside_cap_ns") or 0.0) if outside else 0.0,
        forget_cap_at_s=since("forget_cap_ns"),
    )
