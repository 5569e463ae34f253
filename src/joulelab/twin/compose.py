"""Write a new truth file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.twin import layout, records
from joulelab.twin.leaf import segment_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.twin.model import Node
    from joulelab.twin.script import Segments

CAPS = 1 << 14
_PAGE = 4096


def _aligned(at: int) -> int:
    return -(-at // _PAGE) * _PAGE


def write(path: Path, node: Node, segments: Mapping[str, Segments], start_ns: int, room: int) -> None:
    """Write a truth file with these segments (ns, W, W) and `room` for more of each; raise ConfigError if it exists.

    The file is sparse: what is not used takes no space. It becomes valid with its last write.
    """
    text = msgspec.json.encode(node)
    head = np.zeros(1, dtype=layout.HEADER)
    gpus = np.zeros(len(node.gpus), dtype=layout.GPU)
    leaves = np.zeros(len(segments), dtype=layout.LEAF)
    at = _aligned(head.nbytes + len(text))
    gpus_at, leaves_at = at, _aligned(at + gpus.nbytes)
    at = _aligned(leaves_at + leaves.nbytes)
    tables: list[tuple[int, bytes]] = []
    for index, (name, values) in enumerate(segments.items()):
        rows = segment_rows(*values)
        leaf = {"name": name, "segments_at": at, "segment_capacity": len(rows) + room, "segments": len(rows)}
        tables.append((at, rows.tobytes()))
        at = _aligned(at + (len(rows) + room) * rows.itemsize)
        if name.startswith(("gpu", "cpu")):
            cap_mw = round(node.gpus[index].default_cap_w * 1000) if index < len(gpus) else layout.NO_CAP_MW
            leaf |= {"caps_at": at, "cap_capacity": CAPS, "caps": 1}
            tables.append((at, np.array([(layout.ALWAYS, cap_mw, 0)], dtype=layout.CAP).tobytes()))
            at = _aligned(at + CAPS * layout.CAP.itemsize)
        if index < len(gpus):
            _fill_gpu(gpus[index], node, index, start_ns)
        fill(leaves[index], leaf)
    values_of_head = {
        "magic": layout.MAGIC, "layout": layout.LAYOUT, "gpus": len(gpus), "leaves": len(leaves), "cuda": records.CUDA,
        "start_ns": start_ns, "seed": node.seed, "bytes": at, "node_at": head.nbytes, "node_bytes": len(text),
        "gpus_at": gpus_at, "leaves_at": leaves_at, "driver": records.DRIVER, "nvml": records.NVML,
    }  # fmt: skip
    fill(head[0], values_of_head)
    tables += [(head.nbytes, text), (gpus_at, gpus.tobytes()), (leaves_at, leaves.tobytes()), (0, head.tobytes())]
    _store(path, at, tables)


def _fill_gpu(record: Any, node: Node, index: int, start_ns: int) -> None:
    gpu = node.gpus[index]
    fill(record, records.gpu_record(node, index, index))
    fill(record["flaws"], records.flaws_record(gpu.flaws, start_ns))
    fill(
        record["state"],
        {"persistence": 1, "sm_application_mhz": gpu.sm_max_mhz, "memory_application_mhz": gpu.memory_max_mhz},
    )


def _store(path: Path, size: int, tables: list[tuple[int, bytes]]) -> None:
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


def fill(record: Any, values: Mapping[str, Any]) -> None:
    """Set fields of a record."""
    for name, value in values.items():
        record[name] = value
