"""Lay out the truth file and write a new one; numpy reads it by these types, the C library by a header made of them.

    header | node (JSON) | one record per GPU | one record per leaf | segments and caps of each leaf

Segments run from their own `t_ns` to that of the next; the last is constant and lasts for ever. A writer first
writes the row and then the count, so that a reader never sees half a row.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.twin.flaws import Counter, Flaws, Plain
from joulelab.twin.power_curves import ALWAYS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.twin.model import Gpu, Node
    from joulelab.twin.profile import Segments

MAGIC = b"JLTWIN\x00\x01"
NEVER = 2**63 - 1
NO_CAP_MW = 2**62
PROCESSES = 64
INSTANCES = 8

COUNTERS = {"true": 0, "seen": 1, "none": 2}
PLAINS = {"instant": 0, "average": 1}
KINDS = {"compute": 0, "graphics": 1, "mps": 2}


def _make_type(*fields: tuple[object, ...]) -> np.dtype[np.void]:
    return np.dtype(list(fields), align=True)


SEGMENT = _make_type(("t_ns", "i8"), ("start_w", "f8"), ("end_w", "f8"))
CAP = _make_type(("t_ns", "i8"), ("cap_mw", "i8"), ("sm_mhz", "i8"))  # a clock of 0 is not locked
PROCESS = _make_type(
    ("pid", "u4"),
    ("kind", "u4"),
    ("memory_bytes", "u8"),
    ("gpu_instance", "u4"),
    ("compute_instance", "u4"),
    ("load", "u4"),
)
INSTANCE = _make_type(
    ("uuid", "S48"), ("profile", "S32"), ("memory_bytes", "u8"), ("gpu_instance", "u4"), ("compute_instance", "u4"),
    ("multiprocessors", "u4"), ("slices", "u4"),
)  # fmt: skip
FLAWS = _make_type(
    ("power_period_ns", "i8"), ("power_window_ns", "i8"), ("power_phase_ns", "i8"), ("average_window_ns", "i8"),
    ("counter_period_ns", "i8"), ("counter_phase_ns", "i8"), ("counter_base_mj", "i8"), ("counter_step_mj", "i8"),
    ("power_step_mw", "i8"), ("gain_error", "f8"), ("offset_w", "f8"), ("noise_w", "f8"), ("latency_ns", "i8"),
    ("module_w", "f8"), ("memory_share", "f8"),
    ("lost_ns", "i8"), ("fail_ns", "i8"), ("fail_until_ns", "i8"), ("hang_ns", "i8"), ("hang_until_ns", "i8"),
    ("reset_ns", "i8"), ("outside_cap_ns", "i8"), ("outside_cap_mw", "i8"), ("forget_cap_ns", "i8"),
    ("counter", "u4"), ("plain", "u4"), ("refuse_caps", "u4"), ("refuse_processes", "u4"),
    ("no_caps", "u4"), ("ignore_caps", "u4"), ("unenforced_caps", "u4"), ("generation", "u4"),
)  # fmt: skip
STATE = _make_type(
    ("sequence", "u4"), ("processes", "u4"), ("instances", "u4"), ("mig_mode", "u4"), ("persistence", "u4"),
    ("compute_mode", "u4"), ("sm_lock_min_mhz", "u4"), ("sm_lock_max_mhz", "u4"), ("memory_lock_min_mhz", "u4"),
    ("memory_lock_max_mhz", "u4"), ("sm_application_mhz", "u4"), ("memory_application_mhz", "u4"),
    ("process", PROCESS, (PROCESSES,)), ("instance", INSTANCE, (INSTANCES,)),
)  # fmt: skip
GPU = _make_type(
    ("name", "S96"), ("uuid", "S48"), ("serial", "S32"), ("bus_id", "S32"), ("bus", "u4"), ("minor", "u4"),
    ("pci_id", "u4"), ("architecture", "u4"), ("brand", "u4"), ("compute_major", "i4"), ("compute_minor", "i4"),
    ("multiprocessors", "u4"), ("cores", "u4"), ("bus_bits", "u4"), ("pcie_generation", "u4"), ("fans", "u4"),
    ("ecc", "u4"), ("mig", "u4"), ("leaf", "u4"), ("sm_max_mhz", "u4"), ("sm_idle_mhz", "u4"),
    ("memory_max_mhz", "u4"), ("memory_idle_mhz", "u4"), ("memory_bytes", "u8"), ("idle_w", "f8"), ("max_w", "f8"),
    ("idle_c", "f8"), ("max_c", "f8"), ("min_cap_mw", "i8"), ("max_cap_mw", "i8"), ("default_cap_mw", "i8"),
    ("flaws", FLAWS), ("state", STATE),
)  # fmt: skip
LEAF = _make_type(
    ("name", "S16"), ("segments_at", "u8"), ("segment_capacity", "u8"), ("segments", "u8"),
    ("caps_at", "u8"), ("cap_capacity", "u8"), ("caps", "u8"), ("cap_edits", "u8"),
)  # fmt: skip
HEADER = _make_type(
    ("magic", "S8"), ("layout", "u4"), ("gpus", "u4"), ("leaves", "u4"), ("cuda", "u4"), ("start_ns", "i8"),
    ("seed", "u8"), ("bytes", "u8"), ("node_at", "u8"), ("node_bytes", "u8"), ("gpus_at", "u8"), ("leaves_at", "u8"),
    ("driver", "S80"), ("nvml", "S80"),
)  # fmt: skip

_STRUCTS = {
    "segment": SEGMENT, "cap": CAP, "process": PROCESS, "instance": INSTANCE, "flaws": FLAWS, "state": STATE,
    "gpu": GPU, "leaf": LEAF, "header": HEADER,
}  # fmt: skip
_C_TYPES = {"i4": "int32_t", "i8": "int64_t", "u4": "uint32_t", "u8": "uint64_t", "f8": "double"}


def _declare_field(name: str, dtype: np.dtype[np.void]) -> str:
    base, shape = dtype.subdtype or (dtype, ())
    size = "".join(f"[{n}]" for n in shape)
    if base.kind == "S":
        return f"char {name}[{base.itemsize}];"
    if base.names:
        kind = next(key for key, value in _STRUCTS.items() if value == base)
        return f"struct {kind} {name}{size};"
    return f"{_C_TYPES[base.str[1:]]} {name}{size};"


def _declare_structs() -> str:
    lines = ["#include <stddef.h>", "#include <stdint.h>"]
    lines += [
        f"#define TWIN_NEVER INT64_C({NEVER})",
        f"#define TWIN_PROCESSES {PROCESSES}",
        f"#define TWIN_INSTANCES {INSTANCES}",
    ]
    lines += [f"#define TWIN_MAGIC {{{', '.join(str(byte) for byte in MAGIC)}}}"]
    for prefix, table in (("COUNTER", COUNTERS), ("PLAIN", PLAINS), ("KIND", KINDS)):
        lines += [f"#define TWIN_{prefix}_{key.upper()} {value}" for key, value in table.items()]
    for struct, dtype in _STRUCTS.items():
        fields: Any = dtype.fields
        lines += [
            f"struct {struct} {{",
            *(f"    {_declare_field(name, fields[name][0])}" for name in dtype.names or ()),
            "};",
        ]
        lines += [f'_Static_assert(sizeof(struct {struct}) == {dtype.itemsize}, "{struct}");']
        lines += [
            f'_Static_assert(offsetof(struct {struct}, {name}) == {fields[name][1]}, "{struct}.{name}");'
            for name in dtype.names or ()
        ]
    return "\n".join(lines) + "\n"


# A file of another layout is refused by whoever opens it: its number is a digest of the layout itself.
LAYOUT = int.from_bytes(hashlib.sha256(_declare_structs().encode()).digest()[:4], "big")


def make_c_header() -> str:
    """Return the C header that describes the same bytes."""
    return f"/* Generated from truth_file.py. */\n#pragma once\n{_declare_structs()}#define TWIN_LAYOUT {LAYOUT}u\n"


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


def make_uuid(node: Node, *parts: object) -> uuid.UUID:
    """Return a UUID that depends only on the node's name and seed and on the parts."""
    return uuid.uuid5(uuid.NAMESPACE_OID, ":".join(str(p) for p in ("joulelab twin", node.name, node.seed, *parts)))


def make_gpu_record(node: Node, index: int, leaf: int) -> dict[str, Any]:
    """Return the fields of the static description of one GPU."""
    gpu: Gpu = node.gpus[index]
    idle_w, max_w = node.range_w(f"gpu:{index}")
    bus = 0x10 + 0x0B * index % 0xE0
    return {
        "name": gpu.name, "uuid": f"GPU-{make_uuid(node, index)}", "bus_id": f"00000000:{bus:02X}:00.0", "bus": bus,
        "serial": str(make_uuid(node, index).int % 10**13).zfill(13), "minor": index, "leaf": leaf,
        "pci_id": gpu.pci_id,
        "architecture": gpu.architecture, "brand": gpu.brand, "compute_major": gpu.compute[0],
        "compute_minor": gpu.compute[1], "multiprocessors": gpu.multiprocessors, "cores": gpu.cores,
        "bus_bits": gpu.bus_bits, "pcie_generation": gpu.pcie_generation, "fans": gpu.fans, "ecc": gpu.ecc,
        "mig": gpu.mig, "sm_max_mhz": gpu.sm_max_mhz, "sm_idle_mhz": gpu.sm_idle_mhz,
        "memory_max_mhz": gpu.memory_max_mhz, "memory_idle_mhz": gpu.memory_idle_mhz,
        "memory_bytes": gpu.memory_bytes, "idle_w": idle_w, "max_w": max_w, "idle_c": gpu.idle_c, "max_c": gpu.max_c,
        "min_cap_mw": round(gpu.min_cap_w * 1000), "max_cap_mw": round(gpu.max_cap_w * 1000),
        "default_cap_mw": round(gpu.default_cap_w * 1000),
    }  # fmt: skip


# Flaws that a record holds as they are; lengths (`_s` there, `_ns` here); times (`_at_s` there, `_ns` here).
_NUMBERS = (
    "power_step_mw", "counter_base_mj", "counter_step_mj",
    "gain_error", "offset_w", "module_w", "memory_share", "noise_w",
)  # fmt: skip
_FLAGS = ("refuse_caps", "refuse_processes", "ignore_caps", "unenforced_caps")
_LENGTHS = (
    "power_period", "power_window", "power_phase", "average_window", "counter_period", "counter_phase", "latency",
)  # fmt: skip
_TIMES = ("lost", "fail", "hang", "reset", "forget_cap")
_STRETCHES = ("fail", "hang")  # these have an end, too


def make_flaws_record(flaws: Flaws, start_ns: int) -> dict[str, Any]:
    """Return the fields of the flaws, with absolute times."""
    record = {name: getattr(flaws, name) for name in (*_NUMBERS, *_FLAGS)}
    record |= {f"{name}_ns": round(getattr(flaws, f"{name}_s") * NS) for name in _LENGTHS}
    times = {name: getattr(flaws, f"{name}_at_s") for name in _TIMES}
    times["outside_cap"] = None if flaws.outside_cap_w is None else flaws.outside_cap_at_s
    for name in _STRETCHES:
        times[f"{name}_until"] = None if times[name] is None else times[name] + getattr(flaws, f"{name}_for_s")
    record |= {f"{name}_ns": NEVER if at_s is None else start_ns + round(at_s * NS) for name, at_s in times.items()}
    record |= {"outside_cap_mw": round((flaws.outside_cap_w or 0.0) * 1000), "no_caps": not flaws.caps_supported}
    return record | {"counter": COUNTERS[flaws.counter], "plain": PLAINS[flaws.plain]}


def read_flaws(record: Any, start_ns: int) -> Flaws:
    """Return the flaws that a record holds."""
    found: dict[str, Any] = {name: record[name].item() for name in _NUMBERS}
    found |= {name: bool(record[name]) for name in _FLAGS}
    found |= {f"{name}_s": int(record[f"{name}_ns"]) / NS for name in _LENGTHS}
    for name in _TIMES:
        at_ns = int(record[f"{name}_ns"])
        found[f"{name}_at_s"] = None if at_ns == NEVER else (at_ns - start_ns) / NS
        if name in _STRETCHES and at_ns != NEVER:
            found[f"{name}_for_s"] = (int(record[f"{name}_until_ns"]) - at_ns) / NS
    if (outside_ns := int(record["outside_cap_ns"])) != NEVER:
        found["outside_cap_at_s"] = (outside_ns - start_ns) / NS
        found["outside_cap_w"] = int(record["outside_cap_mw"]) / 1000
    return Flaws(
        counter=next(Counter(key) for key, value in COUNTERS.items() if value == record["counter"]),
        plain=next(Plain(key) for key, value in PLAINS.items() if value == record["plain"]),
        caps_supported=not record["no_caps"],
        **found,
    )


CAPS = 1 << 14
_PAGE = 4096


def make_segment_rows(t_ns: npt.ArrayLike, start_w: npt.ArrayLike, end_w: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return segments (ns, W, W) as rows of the truth file; raise ConfigError if they cannot follow each other."""
    times = np.atleast_1d(np.asarray(t_ns, dtype=np.int64))
    rows = np.zeros(len(times), dtype=SEGMENT)
    rows["t_ns"], rows["start_w"], rows["end_w"] = times, np.atleast_1d(start_w), np.atleast_1d(end_w)
    if not len(rows) or np.any(np.diff(times) < 0) or rows["start_w"][-1] != rows["end_w"][-1]:
        raise ConfigError("segments follow each other in time and the last is constant", where="truth")
    return rows


def _align_page(at: int) -> int:
    return -(-at // _PAGE) * _PAGE


def write_truth_file(path: Path, node: Node, segments: Mapping[str, Segments], start_ns: int, room: int) -> None:
    """Write a truth file with these segments (ns, W, W) and `room` for more of each; raise ConfigError if it exists.

    The file is sparse: unused room takes no space. It becomes valid with its last write.
    """
    text = msgspec.json.encode(node)
    head = np.zeros(1, dtype=HEADER)
    gpus = np.zeros(len(node.gpus), dtype=GPU)
    leaves = np.zeros(len(segments), dtype=LEAF)
    at = _align_page(head.nbytes + len(text))
    gpus_at, leaves_at = at, _align_page(at + gpus.nbytes)
    at = _align_page(leaves_at + leaves.nbytes)
    tables: list[tuple[int, bytes]] = []
    for index, (name, values) in enumerate(segments.items()):
        rows = make_segment_rows(*values)
        leaf = {"name": name, "segments_at": at, "segment_capacity": len(rows) + room, "segments": len(rows)}
        tables.append((at, rows.tobytes()))
        at = _align_page(at + (len(rows) + room) * rows.itemsize)
        if name.startswith(("gpu", "cpu")):
            cap_mw = round(node.gpus[index].default_cap_w * 1000) if index < len(gpus) else NO_CAP_MW
            leaf |= {"caps_at": at, "cap_capacity": CAPS, "caps": 1}
            tables.append((at, np.array([(ALWAYS, cap_mw, 0)], dtype=CAP).tobytes()))
            at = _align_page(at + CAPS * CAP.itemsize)
        if index < len(gpus):
            _fill_gpu(gpus[index], node, index, start_ns)
        fill_record(leaves[index], leaf)
    values_of_head = {
        "magic": MAGIC, "layout": LAYOUT, "gpus": len(gpus), "leaves": len(leaves), "cuda": CUDA,
        "start_ns": start_ns, "seed": node.seed, "bytes": at, "node_at": head.nbytes, "node_bytes": len(text),
        "gpus_at": gpus_at, "leaves_at": leaves_at, "driver": DRIVER, "nvml": NVML,
    }  # fmt: skip
    fill_record(head[0], values_of_head)
    tables += [(head.nbytes, text), (gpus_at, gpus.tobytes()), (leaves_at, leaves.tobytes()), (0, head.tobytes())]
    _store_tables(path, at, tables)


def _fill_gpu(record: Any, node: Node, index: int, start_ns: int) -> None:
    gpu = node.gpus[index]
    fill_record(record, make_gpu_record(node, index, index))
    fill_record(record["flaws"], make_flaws_record(gpu.flaws, start_ns))
    fill_record(
        record["state"],
        {"persistence": 1, "sm_application_mhz": gpu.sm_max_mhz, "memory_application_mhz": gpu.memory_max_mhz},
    )


def _store_tables(path: Path, size: int, tables: list[tuple[int, bytes]]) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise ConfigError("a truth file is there already", where=str(path)) from None
    try:
        os.ftruncate(fd, size)
        for at, data in tables:
            os.pwrite(fd, data, at)
    finally:
        os.close(fd)


def fill_record(record: Any, values: Mapping[str, Any]) -> None:
    """Set fields of a record."""
    for name, value in values.items():
        record[name] = value
