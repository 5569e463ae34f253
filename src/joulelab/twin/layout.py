"""Lay out the truth file, once: numpy reads it by these types, and the C library by the header generated from them.

    header | node (JSON) | one record per GPU | one record per leaf | segments and caps of each leaf

Segments run from their own `t_ns` to that of the next; the last is constant and lasts for ever. A writer first
writes the row and then the count, so that a reader never sees half a row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

MAGIC = b"JLTWIN\x00\x01"
NEVER = 2**63 - 1
ALWAYS = -(2**62)
NO_CAP_MW = 2**62
PROCESSES = 64
INSTANCES = 8

COUNTERS = {"true": 0, "seen": 1, "none": 2}
PLAINS = {"instant": 0, "average": 1}
KINDS = {"compute": 0, "graphics": 1, "mps": 2}


def _type(*fields: tuple[object, ...]) -> np.dtype[np.void]:
    return np.dtype(list(fields), align=True)


SEGMENT = _type(("t_ns", "i8"), ("start_w", "f8"), ("end_w", "f8"))
CAP = _type(("t_ns", "i8"), ("cap_mw", "i8"), ("sm_mhz", "i8"))  # a clock of 0 is not locked
PROCESS = _type(
    ("pid", "u4"),
    ("kind", "u4"),
    ("memory_bytes", "u8"),
    ("gpu_instance", "u4"),
    ("compute_instance", "u4"),
    ("load", "u4"),
)
INSTANCE = _type(
    ("uuid", "S48"), ("profile", "S32"), ("memory_bytes", "u8"), ("gpu_instance", "u4"), ("compute_instance", "u4"),
    ("multiprocessors", "u4"), ("slices", "u4"),
)  # fmt: skip
FLAWS = _type(
    ("power_period_ns", "i8"), ("power_window_ns", "i8"), ("power_phase_ns", "i8"), ("average_window_ns", "i8"),
    ("counter_period_ns", "i8"), ("counter_phase_ns", "i8"), ("counter_base_mj", "i8"), ("counter_step_mj", "i8"),
    ("power_step_mw", "i8"), ("gain_error", "f8"), ("offset_w", "f8"), ("noise_w", "f8"), ("latency_ns", "i8"),
    ("module_w", "f8"), ("memory_share", "f8"),
    ("lost_ns", "i8"), ("fail_ns", "i8"), ("fail_until_ns", "i8"), ("hang_ns", "i8"), ("hang_until_ns", "i8"),
    ("reset_ns", "i8"), ("outside_cap_ns", "i8"), ("outside_cap_mw", "i8"), ("forget_cap_ns", "i8"),
    ("counter", "u4"), ("plain", "u4"), ("refuse_caps", "u4"), ("refuse_processes", "u4"),
    ("no_caps", "u4"), ("ignore_caps", "u4"), ("unenforced_caps", "u4"), ("generation", "u4"),
)  # fmt: skip
STATE = _type(
    ("sequence", "u4"), ("processes", "u4"), ("instances", "u4"), ("mig_mode", "u4"), ("persistence", "u4"),
    ("compute_mode", "u4"), ("sm_lock_min_mhz", "u4"), ("sm_lock_max_mhz", "u4"), ("memory_lock_min_mhz", "u4"),
    ("memory_lock_max_mhz", "u4"), ("sm_application_mhz", "u4"), ("memory_application_mhz", "u4"),
    ("process", PROCESS, (PROCESSES,)), ("instance", INSTANCE, (INSTANCES,)),
)  # fmt: skip
GPU = _type(
    ("name", "S96"), ("uuid", "S48"), ("serial", "S32"), ("bus_id", "S32"), ("bus", "u4"), ("minor", "u4"),
    ("pci_id", "u4"), ("architecture", "u4"), ("brand", "u4"), ("compute_major", "i4"), ("compute_minor", "i4"),
    ("multiprocessors", "u4"), ("cores", "u4"), ("bus_bits", "u4"), ("pcie_generation", "u4"), ("fans", "u4"),
    ("ecc", "u4"), ("mig", "u4"), ("leaf", "u4"), ("sm_max_mhz", "u4"), ("sm_idle_mhz", "u4"),
    ("memory_max_mhz", "u4"), ("memory_idle_mhz", "u4"), ("memory_bytes", "u8"), ("idle_w", "f8"), ("max_w", "f8"),
    ("idle_c", "f8"), ("max_c", "f8"), ("min_cap_mw", "i8"), ("max_cap_mw", "i8"), ("default_cap_mw", "i8"),
    ("flaws", FLAWS), ("state", STATE),
)  # fmt: skip
LEAF = _type(
    ("name", "S16"), ("segments_at", "u8"), ("segment_capacity", "u8"), ("segments", "u8"),
    ("caps_at", "u8"), ("cap_capacity", "u8"), ("caps", "u8"), ("cap_edits", "u8"),
)  # fmt: skip
HEADER = _type(
    ("magic", "S8"), ("layout", "u4"), ("gpus", "u4"), ("leaves", "u4"), ("cuda", "u4"), ("start_ns", "i8"),
    ("seed", "u8"), ("bytes", "u8"), ("node_at", "u8"), ("node_bytes", "u8"), ("gpus_at", "u8"), ("leaves_at", "u8"),
    ("driver", "S80"), ("nvml", "S80"),
)  # fmt: skip

_STRUCTS = {
    "segment": SEGMENT, "cap": CAP, "process": PROCESS, "instance": INSTANCE, "flaws": FLAWS, "state": STATE,
    "gpu": GPU, "leaf": LEAF, "header": HEADER,
}  # fmt: skip
_C_TYPES = {"i4": "int32_t", "i8": "int64_t", "u4": "uint32_t", "u8": "uint64_t", "f8": "double"}


def _field(name: str, dtype: np.dtype[np.void]) -> str:
    base, shape = dtype.subdtype or (dtype, ())
    size = "".join(f"[{n}]" for n in shape)
    if base.kind == "S":
        return f"char {name}[{base.itemsize}];"
    if base.names:
        kind = next(key for key, value in _STRUCTS.items() if value == base)
        return f"struct {kind} {name}{size};"
    return f"{_C_TYPES[base.str[1:]]} {name}{size};"


def _body() -> str:
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
        lines += [f"struct {struct} {{", *(f"    {_field(name, fields[name][0])}" for name in dtype.names or ()), "};"]
        lines += [f'_Static_assert(sizeof(struct {struct}) == {dtype.itemsize}, "{struct}");']
        lines += [
            f'_Static_assert(offsetof(struct {struct}, {name}) == {fields[name][1]}, "{struct}.{name}");'
            for name in dtype.names or ()
        ]
    return "\n".join(lines) + "\n"


# A file of another layout is refused by whoever opens it: its number is a digest of the layout itself.
LAYOUT = int.from_bytes(hashlib.sha256(_body().encode()).digest()[:4], "big")


def c_header() -> str:
    """Return the C header that describes the same bytes."""
    return f"/* Generated from layout.py. */\n#pragma once\n{_body()}#define TWIN_LAYOUT {LAYOUT}u\n"
