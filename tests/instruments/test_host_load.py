from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import ReadFailed
from joulelab.instruments.host import CpuLoad, Machine, ProcessTree, RisingTotal

if TYPE_CHECKING:
    from pathlib import Path


def machine(root: Path, **files: str) -> Machine:
    content = {
        "meminfo": "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\nBuffers: 1 kB\nCached: 2 kB\n",
        "diskstats": "",
        "net/dev": "Inter-|\n face |\n",
        "loadavg": "1.25 1.0 0.5 2/300 999\n",
    } | {name.replace("_", "/"): text for name, text in files.items()}
    for name, text in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Machine(root, root / "sys")


def hardware(root: Path, *names: str) -> None:
    for name in names:
        (root / "sys" / name / "device").mkdir(parents=True)


def test_memory_and_load(tmp_path):
    found = machine(tmp_path)
    assert found.read_memory_b() == 600 * 1024
    assert found.read_row()[-1] == 1.25
    found.close()


def test_memory_of_a_kernel_that_does_not_tell_is_nan(tmp_path):
    assert math.isnan(machine(tmp_path, meminfo="MemTotal: 1 kB\nMemFree: 1 kB\nBuffers: 1 kB\n").read_memory_b())


def test_disks_are_counted_without_their_parts_and_layers(tmp_path):
    row = "{} {} 1 0 {} 0 1 0 {} 0 0 0 0\n"
    lines = row.format("259 0", "nvme0n1", 100, 10) + row.format("259 1", "nvme0n1p1", 100, 10)
    lines += row.format("253 0", "dm-0", 100, 10) + row.format("7 0", "loop0", 5, 5) + row.format("8 0", "sda", 1, 2)
    hardware(tmp_path, "block/nvme0n1", "block/sda")
    assert machine(tmp_path, diskstats=lines).read_disk_b() == (101 * 512, 12 * 512)


def test_without_disks_there_is_no_number(tmp_path):
    assert all(math.isnan(v) for v in machine(tmp_path).read_disk_b())


def test_interfaces_with_hardware_count_and_all_others_in_a_container(tmp_path):
    row = "{}: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n"
    lines = "a\nb\n" + row.format("    lo", 9, 9) + row.format("  eth0", 100, 50) + row.format("veth12", 7, 3)
    assert machine(tmp_path, net_dev=lines).read_net_b() == (107, 53)
    hardware(tmp_path, "class/net/eth0")
    assert machine(tmp_path, net_dev=lines).read_net_b() == (100, 50)


def test_busy_is_a_share_since_the_last_reading(tmp_path):
    path = tmp_path / "stat"
    path.write_text("cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 1 2 3\n")
    load = CpuLoad(tmp_path)
    assert math.isnan(load.read_share())  # no time has passed
    path.write_text("cpu  150 0 0 950 0 0 0 0 0 0\n")
    assert load.read_share() == 0.5
    path.write_text("cpu  150 0 0 1050 0 0 0 0 0 0\n")
    assert load.read_share() == 0
    path.write_text("cpu  1 2\n")
    with pytest.raises(ReadFailed):
        load.read_share()
    load.close()


class Processes:
    """A procfs of processes, changed by a test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, pid, parent, ticks=0, ended=0, pages=1, start=1, read=0, written=0, io=True):
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        middle = "1 1 0 -1 0 0 0 0 0"
        (folder / "stat").write_text(
            f"{pid} (odd) name (x) S {parent} {middle} {ticks} 0 {ended} 0 20 0 1 0 {start} 99 {pages} 0\n"
        )
        (folder / "io").write_text(f"rchar: 1\nread_bytes: {read}\nwrite_bytes: {written}\n" if io else "")

    def end(self, pid):
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def processes(tmp_path):
    (tmp_path / "stat").write_text("")
    made = Processes(tmp_path)
    made.put(1, 0)
    made.put(50, 1, ticks=1000)
    return made


def test_follows_descendants_also_of_ended_parents(processes):
    tree = ProcessTree(processes.root)
    processes.put(100, 1, ticks=100, pages=10, read=5, written=6)
    processes.put(101, 100, ticks=200, pages=20, read=50, written=60)
    processes.put(102, 101, ticks=300, pages=30)
    tree.follow_process(100)
    cpu_s, memory_b, read_b, written_b, count = tree.read_row()
    assert (cpu_s, count) == (6.0, 3)
    assert memory_b == 60 * 4096
    assert (read_b, written_b) == (55, 66)
    processes.end(101)
    processes.put(100, 1, ticks=100, ended=200, pages=10, read=55, written=66)  # waited for, so its time moved up
    processes.put(102, 1, ticks=310, pages=30)  # given to another parent, and still one of the workload's
    processes.put(103, 102, ticks=5)
    assert tree.read_row() == (6.15, (10 + 30 + 1) * 4096, 55, 66, 3)


def test_a_process_of_the_run_that_lost_its_parents_is_followed(processes):
    tree = ProcessTree(processes.root)
    for pid, run, start in ((90, "a", 1), (100, "a", 5), (101, "a", 6), (103, "b", 6)):
        processes.put(pid, 1, ticks=100, start=start)
        (processes.root / str(pid) / "environ").write_text(f"JOULELAB_RUN=/runs/{run}\0")
    processes.put(102, 101, ticks=100, start=7)
    tree.follow_process(100)
    assert tree.read_row()[::4] == (3.0, 3)  # not 90, which is older: its run is over
    assert sorted(tree.take_joined()) == [100, 101, 102]


def test_what_ended_unwaited_stays_counted(processes):
    tree = ProcessTree(processes.root)
    processes.put(100, 1, ticks=100)
    processes.put(101, 100, ticks=900, read=7)
    tree.follow_process(100)
    assert tree.read_row()[0] == 10
    processes.end(101)
    assert tree.read_row()[0] == 10
    assert tree.read_row()[2] == 7
    processes.put(100, 1, ticks=150)
    assert tree.read_row()[0] == 10.5
    processes.end(100)
    assert tree.read_row() == (10.5, 0, 7, 0, 0)


def test_a_number_used_again_is_another_process(processes):
    tree = ProcessTree(processes.root)
    processes.put(100, 1, ticks=100, start=5)
    tree.follow_process(100)
    assert tree.read_row()[0] == 1
    processes.put(100, 1, ticks=9900, start=6)
    assert tree.read_row() == (1, 0, 0, 0, 0)


def test_disk_use_that_may_not_be_read_is_nan(processes):
    tree = ProcessTree(processes.root)
    processes.put(100, 1, ticks=100, read=3)
    processes.put(101, 100, io=False)
    tree.follow_process(100)
    row = tree.read_row()
    assert row[0] == 1
    assert math.isnan(row[2])
    processes.end(101)
    assert tree.read_row()[2] == 3


def test_held_totals_never_fall():
    held = RisingTotal()
    assert [held.add_gone(v) for v in (1, 3, 2, 2.5, 0, 1)] == [1, 3, 3, 3.5, 3.5, 4.5]
    assert math.isnan(held.add_gone(math.nan))
    assert held.add_gone(1) == 4.5
