"""The writer: rows and events reach the disk, through a disk that fills and clears, and stuck meters are told."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorder.virtual import START, VirtualMeter, World, sampler_of, stream

from joulelab.core.clock import NS
from joulelab.core.errors import WriteFailed
from joulelab.recorder.rows import RowQueue, make_row_tables
from joulelab.recorder.writer import Watchdog, Writer
from joulelab.store.journal import JournalWriter, read_header

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.core.spec import Stream
    from joulelab.store.journal import HeaderFields

HEADER = {"segment": 0, "host": "h", "boot_id": "b"}


class Disk:
    """A disk with room for so many bytes of rows; parts of a batch fit, as on a real one."""

    def __init__(self) -> None:
        self.room = 1 << 60

    def open(self, path: Path, header: HeaderFields, streams: Sequence[Stream]) -> JournalWriter:
        disk = self

        class Small(JournalWriter):
            def append_rows(self, data: Any) -> int:
                size = self.row.size
                fits = min(len(data), disk.room) // size * size
                disk.room -= fits
                super().append_rows(data[:fits])
                if fits < len(data):
                    full = OSError(errno.ENOSPC, "No space left on device")
                    raise WriteFailed("cannot write", where="here", error=full, rows_written=fits // size)
                return fits // size

        return Small(path, header, streams)


def add(table: RowQueue, *numbers: int) -> None:
    table.rows.extend(table.pack(0, n, n, float(n), 0.0) for n in numbers)


def stored(folder: Path) -> list[int]:
    path = folder / "fake.power.0.journal"
    header = read_header(path)
    data = path.read_bytes()[header.data_offset :]
    return [int.from_bytes(data[i + 8 : i + 16], "little") for i in range(0, len(data), header.row_bytes)]


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.0.jsonl").read_text().splitlines()]


def test_rows_and_events_are_written_in_order(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = [{"t": 1, "event": "x"}]
    writer = Writer(tmp_path, HEADER, told)
    writer.tables = make_row_tables("fake", [stream("gpu:0.power"), stream("gpu:1.power")])
    add(writer.tables[0], 1, 2)
    writer.write()
    assert stored(tmp_path) == [1, 2]
    assert events(tmp_path) == [{"t": 1, "event": "x"}]
    add(writer.tables[0], 3)
    told.append({"t": 2, "event": "y"})
    writer.close()
    assert stored(tmp_path) == [1, 2, 3]
    assert [e["event"] for e in events(tmp_path)] == ["x", "y"]
    header = read_header(tmp_path / "fake.power.0.journal")
    assert (header.meter, header.table, header.host, header.boot_id) == ("fake", "power", "h", "b")
    assert [s.name for s in header.streams] == ["gpu:0.power", "gpu:1.power"]


def test_a_full_disk_keeps_rows_in_memory_until_there_is_room(tmp_path: Path) -> None:
    disk = Disk()
    writer = Writer(tmp_path, HEADER, [], open_journal=disk.open)
    (table,) = writer.tables = make_row_tables("fake", [stream()])
    add(table, 0)
    writer.write()
    disk.room = 3 * table.row_bytes + 7
    add(table, *range(1, 10))
    writer.write()
    assert stored(tmp_path) == [0, 1, 2, 3]
    assert writer.waiting == 6
    writer.write()
    disk.room = 1 << 60
    add(table, 10)
    writer.close()
    assert stored(tmp_path) == list(range(11))
    assert writer.dropped == writer.waiting == 0
    assert [e["event"] for e in events(tmp_path)] == ["disk", "disk-end"]
    assert "ENOSPC" in events(tmp_path)[0]["error"]


def test_beyond_the_limit_the_oldest_rows_go_and_are_counted(tmp_path: Path) -> None:
    disk = Disk()
    writer = Writer(tmp_path, HEADER, [], open_journal=disk.open, limit=400)
    (table,) = writer.tables = make_row_tables("fake", [stream()])
    add(table, 0)
    writer.write()
    disk.room = 0
    for n in range(1, 41):
        add(table, n)
        writer.write()
    disk.room = 1 << 60
    writer.close()
    assert stored(tmp_path) == [0, *range(31, 41)]
    kinds = [(e["event"], e["dropped_rows"]) for e in events(tmp_path)]
    assert kinds == [("disk", 0), ("disk", 30), ("disk-end", 30)]


@pytest.mark.system  # pure, and slow
@settings(max_examples=40)
@given(steps=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1200)), max_size=25))
def test_whatever_the_disk_does_rows_are_whole_in_order_and_counted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("writer")
    disk = Disk()
    writer = Writer(folder, HEADER, [], open_journal=disk.open, limit=600)
    (table,) = writer.tables = make_row_tables("fake", [stream()])
    total = 0
    for count, room in steps:
        disk.room = room
        add(table, *range(total, total + count))
        total += count
        writer.write()
    disk.room = 1 << 60
    writer.close()
    found = stored(folder) if total else []
    assert found == sorted(set(found))
    assert len(found) + writer.dropped == total


def test_a_folder_that_cannot_be_written_never_raises(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "gone", HEADER, [])
    (table,) = writer.tables = make_row_tables("fake", [stream()])
    add(table, 1, 2)
    writer.write()
    (tmp_path / "gone").mkdir()
    writer.close()
    assert stored(tmp_path / "gone") == [1, 2]


def test_the_watchdog_tells_a_stuck_meter_and_its_return() -> None:
    world = World()
    sampler = sampler_of(world, VirtualMeter(world, [stream()]))
    told: list[dict[str, Any]] = []
    watchdog = Watchdog(told, now=world.now)
    sampler.busy, sampler.busy_ns = sampler.readings[0], world.t
    world.t += 19 * NS // 10
    watchdog.look([sampler])
    assert told == []
    world.t += NS
    watchdog.look([sampler])
    watchdog.look([sampler])
    assert [(e["event"], e["from"]) for e in told] == [("stuck", START), ("gap", START)]
    assert told[1]["reason"] == "no answer for 2.9 s"
    sampler.busy_ns = 0
    sampler.readings[0].good_ns = world.t
    watchdog.look([sampler])
    assert [e["event"] for e in told] == ["stuck", "gap", "gap-end"]
    assert told[-1]["to"] == world.t


def test_a_slow_meter_is_given_five_periods() -> None:
    world = World()
    sampler = sampler_of(world, VirtualMeter(world, [stream(period_s=10.0)]))
    sampler.busy, sampler.busy_ns = sampler.readings[0], world.t
    told: list[dict[str, Any]] = []
    watchdog = Watchdog(told, now=world.now)
    world.t += 49 * NS
    watchdog.look([sampler])
    assert told == []
    world.t += 2 * NS
    watchdog.look([sampler])
    assert told[0]["event"] == "stuck"


def test_a_reading_that_fails_after_all_is_ended_by_the_sampler_alone() -> None:
    world = World()
    sampler = sampler_of(world, VirtualMeter(world, [stream()]))
    told: list[dict[str, Any]] = []
    watchdog = Watchdog(told, now=world.now)
    sampler.busy, sampler.busy_ns = sampler.readings[0], world.t
    world.t += 3 * NS
    watchdog.look([sampler])
    sampler.busy_ns, sampler.readings[0].retry_ns = 0, world.t
    watchdog.look([sampler])
    assert [e["event"] for e in told] == ["stuck", "gap"]


def test_a_disk_that_stays_full_is_told_with_the_rows_it_cost(tmp_path: Path) -> None:
    disk = Disk()
    writer = Writer(tmp_path, HEADER, [], open_journal=disk.open)
    writer.tables = make_row_tables("fake", [stream("gpu:0.power"), stream("gpu:1.power")])
    add(writer.tables[0], 1)
    writer.write()
    disk.room = 0
    add(writer.tables[0], 2, 3, 4)
    writer.close()
    assert [e["dropped_rows"] for e in events(tmp_path) if e["event"] == "disk"] == [0, 3]


def test_secrets_are_taken_out_of_every_text_but_names(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER, [], hidden=["event", "pdu1", "", "pdu1-long"])
    told = {"event": "meter", "meter": "pdu1", "what": "no event of pdu1-long", "missing": [{"why": "pdu1"}], "t": 1}
    line = json.loads(writer.line(told))
    assert line == {"event": "meter", "meter": "pdu1", "what": "no *** of ***", "missing": [{"why": "***"}], "t": 1}
    assert json.loads(Writer(tmp_path, HEADER, []).line(told)) == told


def test_secrets_are_taken_out_of_values_at_any_depth_and_of_any_kind(tmp_path: Path) -> None:
    writer = Writer(tmp_path, HEADER, [], hidden=["hunter2"])
    values = {"1.3.6": "hunter2", "deep": [{"x": ("a hunter2", b"hunter2")}], "meter": "hunter2", "number": 2}
    line = writer.line({"t": 1, "event": "trap", "from": "hunter2", "text": "hunter2", "values": values})
    assert b"hunter2" not in line
    assert json.loads(line)["values"] == {
        "1.3.6": "***", "deep": [{"x": ["a ***", "b'***'"]}], "meter": "***", "number": 2
    }  # fmt: skip
    ready = {"is": "ready", "meters": [{"meter": "hunter2", "status": "open", "what": "hunter2"}]}
    assert json.loads(writer.line(ready))["meters"] == [{"meter": "hunter2", "status": "open", "what": "***"}]
