"""Cray's pm_counters, as trees of files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import DeviceLost, ReadFailed, Unavailable
from joulelab.core.scope import find_parent, find_roots
from joulelab.instruments import cray

if TYPE_CHECKING:
    from pathlib import Path

STAMP = "7810213855886 us"
FILES = {
    "energy": f"12044825101 J {STAMP}",
    "power": f"724 W {STAMP}",
    "cpu_energy": f"3000000000 J {STAMP}",
    "cpu_power": f"150 W {STAMP}",
    "memory_energy": f"900000000 J {STAMP}",
    "memory_power": f"60 W {STAMP}",
    "accel0_energy": f"2869283299 J {STAMP}",
    "accel0_power": f"212 W {STAMP}",
    "accel1_energy": f"0 J {STAMP}",
    "accel1_power": f"0 W {STAMP}",
    "overshoot_energy": f"3951201 J {STAMP}",
    "power_cap": "2894 W",
    "freshness": "60043284",
    "generation": "16",
    "raw_scan_hz": "10",
}


def tree(root: Path, **changed: str | None) -> Path:
    for name, content in (FILES | changed).items():
        if content is not None:
            (root / name).write_text(content + "\n")
    return root


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def opened(root: Path, clock: Clock | None = None):
    return cray.open_meter({"root": str(root)}, now=clock or Clock())


def rows(meter) -> dict[str, tuple[float, ...]]:
    return {s.name: tuple(meter.read(s)) for s in meter.streams()}


def test_reads_the_node_and_its_parts_and_names_a_part_without_a_counter(tmp_path):
    meter = opened(tree(tmp_path))
    assert rows(meter) == {
        "node.dc": (12044825101, 724),
        "cpu": (3000000000, 150),
        "dram": (900000000, 60),
        "accel:0": (2869283299, 212),
        "node.dc.state": (2894,),
    }
    assert [(m.scope, m.what) for m in meter.missing()] == [("accel:1", "it shows 0 J")]
    assert {s.channels[0].update_s for s in meter.streams()} == {0.1, None}
    meter.close()
    meter.close()


def test_only_the_node_counts_and_without_it_nothing_counts_twice(tmp_path):
    streams = opened(tree(tmp_path)).streams()
    parents = {s.scope: find_parent(s.scope, s.parent) for s in streams} | {"cpu:0": "node.dc", "gpu:0": "node.dc"}
    assert find_roots(parents, parents) == ["node.dc"]
    assert find_roots(parents.keys() - {"node.dc"}, parents) == ["gpu:0", "cpu", "dram", "accel:0"]


def test_counters_that_stand_still_are_refused_until_they_go_on(tmp_path):
    clock = Clock()
    meter = opened(tree(tmp_path), clock)
    node = meter.streams()[0]
    meter.read(node)
    clock.now_ns = 1_900_000_000
    meter.read(node)
    clock.now_ns = 2_100_000_000
    with pytest.raises(ReadFailed) as error:
        meter.read(node)
    assert error.value.code == "read-failed.stale"
    (tmp_path / "freshness").write_text("60043305\n")
    assert meter.read(node) == (12044825101, 724)


@every_row("content", ["12 kJ 1 us", "12 W 1 us", "-5 J 1 us", "", "nan J", "1e9 J"])
def test_what_is_not_a_number_of_joules_is_an_error(tmp_path, content):
    meter = opened(tree(tmp_path))
    (tmp_path / "energy").write_text(content)
    with pytest.raises(ReadFailed):
        meter.read(meter.streams()[0])


def test_an_xc_has_fewer_files(tmp_path):
    only = dict.fromkeys(FILES) | {"energy": FILES["energy"], "power": "0 W", "accel_energy": "5 J 1 us"}
    meter = opened(tree(tmp_path, **only))
    found = rows(meter)
    assert list(found) == ["node.dc", "accel"]
    assert all(math.isnan(row[1]) for row in found.values())


def test_a_node_without_counters_says_so_and_one_that_loses_them_too(tmp_path):
    with pytest.raises(Unavailable):
        opened(tmp_path)
    meter = opened(tree(tmp_path))
    (tmp_path / "energy").unlink()
    with pytest.raises(DeviceLost):
        meter.read(meter.streams()[0])
    (tmp_path / "energy").write_text("oops")
    with pytest.raises(ReadFailed):
        opened(tmp_path)
