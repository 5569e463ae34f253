from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
from tests.codes import raises_code
from tests.store.make import (
    BOOT,
    ENDED,
    ENERGY,
    POWER,
    START_NS,
    STARTED,
    close_run,
    gpus,
    make_run,
    open_journal,
    ramp,
    write_rows,
)

from joulelab.core.clock import ClockPair
from joulelab.core.spec import Spec
from joulelab.store.journal import pack_row
from joulelab.store.run_folder import RunState
from joulelab.store.run_reader import Run, TableInfo, open_run, read_series
from joulelab.store.sample_tables import SampleTable, connect_database, load_table
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path


def write_lines(path: Path, *lines: object, torn: str = "") -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def test_not_a_run(tmp_path: Path) -> None:
    with raises_code("not-a-run.folder"):
        open_run(tmp_path)


def test_reading_while_the_recorder_writes(runs: Path) -> None:
    run = make_run(runs, owner=None)
    opened = open_run(run)
    assert opened.tables() == []
    with open_journal(run, gpus()) as journal:
        for count in range(1, 30):
            journal.append_rows(pack_row(journal.row, *ramp(count)[-1]))
            (info,) = opened.tables()
            assert opened.state is RunState.LIVE
            assert sum(len(opened.series(info, s.name)) for s in info.streams) == count
    assert opened.end is None


def test_segments_join_in_time_order(runs: Path) -> None:
    run = make_run(runs)
    later, earlier = ramp(20, start_ns=START_NS + 50_000), ramp(30)
    write_rows(run, gpus(), later, segment=0)
    write_rows(run, gpus(), earlier, segment=1)
    for _ in range(2):
        with open_run(run) as opened:
            (info,) = opened.tables()
            series = opened.series(info, "gpu1")
        assert info.rows == 50
        assert len(series) == 25
        assert (np.diff(series.t0_ns) > 0).all()
        assert series.segment.tolist() == [1] * 15 + [0] * 10
        assert series.segment.dtype == np.int32
        assert series.values["power"].tolist() == [k + 1 / 8 for k in range(1, 30, 2)] + [
            k + 1 / 8 for k in range(1, 20, 2)
        ]
        seal_run(run)


def test_a_restarted_recorder_may_find_other_channels_and_devices(runs: Path) -> None:
    run = make_run(runs)
    clock = Spec("clock", "frequency", "Hz")
    write_rows(run, gpus(2, [ENERGY, POWER]), ramp(4))
    write_rows(run, gpus(1, [POWER, clock]), ramp(2, streams=1, start_ns=START_NS + 10**6), segment=1)
    write_rows(run, gpus(3, [ENERGY]), ramp(3, streams=3, start_ns=START_NS + 2 * 10**6, channels=1), segment=2)
    for _ in range(2):
        opened = open_run(run)
        (info,) = opened.tables()
        assert [s.name for s in info.streams] == ["gpu0", "gpu1", "gpu2"]
        assert [c.name for c in info.streams[0].channels] == ["energy", "power", "clock"]
        series = opened.series(info, "gpu0")
        expected = {
            "energy": [0.0, 2.0, math.nan, math.nan, 0.0],
            "power": [0.125, 2.125, 0.0, 1.0, math.nan],
            "clock": [math.nan, math.nan, 0.125, 1.125, math.nan],
        }
        for name, values in expected.items():
            np.testing.assert_array_equal(series.values[name], values)
        assert len(opened.series(info, "gpu2")) == 1
        assert seal_run(run).left == ()


def test_channels_are_read_as_asked(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(4))
    opened = open_run(run)
    (info,) = opened.tables()
    assert list(opened.series(info, "gpu0", channels=["power"]).values) == ["power"]
    assert opened.series(info, "gpu0", channels=[]).values == {}
    with raises_code("store.unknown-stream"):
        opened.series(info, "gpu7")
    with raises_code("store.unknown-channel"):
        opened.series(info, "gpu0", channels=["volts"])


def test_a_table_without_rows(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), [])
    write_rows(run, gpus(), [], segment=1)
    write_rows(run, gpus(), [], meter="rapl")
    for _ in range(2):
        opened = open_run(run)
        assert [i.rows for i in opened.tables()] == [0, 0]
        series = opened.series(opened.tables()[0], "gpu0")
        assert (len(series), series.t0_ns.dtype, series.values["power"].dtype) == (0, np.int64, np.float64)
        assert len(seal_run(run).left) == 0


def test_a_torn_header_is_reported_and_the_other_tables_are_read(runs: Path) -> None:
    run = make_run(runs)
    good = write_rows(run, gpus(), ramp(4))
    torn = write_rows(run, gpus(), ramp(4), meter="rapl")
    torn.write_bytes(torn.read_bytes()[:50])
    empty = good.with_name("nvml.fast.1.journal")
    empty.write_bytes(b"\0" * 4096)
    opened = open_run(run)
    assert [(i.meter, i.rows) for i in opened.tables()] == [("nvml", 4)]
    assert {p.path for p in opened.problems()} == {torn, empty}
    report = seal_run(run)
    assert report.sealed == ("node1/nvml.fast",)
    assert {name for name, _ in report.left} == {"node1/nvml.fast", "node1/rapl.fast"}
    assert torn.exists()
    assert empty.exists()
    assert not good.exists()
    assert len(opened.series(opened.tables()[0], "gpu0")) == 2


def test_what_a_power_loss_leaves_is_no_reading(runs: Path) -> None:
    run = make_run(runs)
    path = write_rows(run, gpus(), ramp(40))
    size = 24 + 16
    content = bytearray(path.read_bytes())
    start = len(content) - 40 * size
    content[start + 20 * size + 30 : start + 30 * size + 6] = b"\0" * (10 * size - 24)
    path.write_bytes(content + b"\0" * (3 * size + 5))
    opened = open_run(run)
    assert len(opened.problems()) == 2
    (info,) = opened.tables()
    before = [opened.series(info, s).t0_ns.tolist() for s in ("gpu0", "gpu1")]
    kept = sorted(t for times in before for t in times)
    # Rows 20 and 30 are half zero, 21-29 wholly; 39 stands beside the zeros at the end.
    assert kept == [START_NS + k * 1000 for k in [*range(20), *range(31, 39)]]
    assert seal_run(run).sealed
    assert path.with_suffix(".damaged").read_bytes() == content + b"\0" * (3 * size + 5)
    assert [opened.series(info, s).t0_ns.tolist() for s in ("gpu0", "gpu1")] == before
    assert ("bad-rows", {"rows": 15}) in [(p.code, p.numbers) for p in opened.problems()]


def test_a_reading_at_time_zero_is_a_reading(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), [(0, 0, 0, [0.0, 5.0]), (1, 0, 0, [0.0, 0.0])])
    opened = open_run(run)
    assert [len(opened.series(opened.tables()[0], s)) for s in ("gpu0", "gpu1")] == [1, 1]


def test_events_and_marks(runs: Path) -> None:
    run = make_run(runs)
    host = run / "node1"
    write_lines(host / "events.0.jsonl", {"t": 5, "event": "gap"}, {"t": 9, "event": "stop"}, torn='{"t": 12, "ev')
    write_lines(host / "events.run.jsonl", {"t": 7, "event": "workload"})
    write_lines(run / "node0" / "events.0.jsonl", {"t": 1, "event": "stop"})
    write_lines(
        host / "marks" / "12-34.jsonl", {"t": 3, "mark": "begin", "id": "a"}, {"t": 3, "mark": "end", "id": "a"}
    )
    write_lines(host / "marks" / "sh-1-2.jsonl", {"t": 1, "mark": "switch", "name": "x"}, torn="{")
    opened = open_run(run)
    assert opened.hosts == ("node1", "node0")
    assert [(e["host"], e["t"], e["source"]) for e in opened.events()] == [
        ("node1", 5, "events.0"),
        ("node1", 7, "events.run"),
        ("node1", 9, "events.0"),
        ("node0", 1, "events.0"),
    ]
    assert [(m["mark"], m["source"]) for m in opened.marks()] == [
        ("switch", "sh-1-2"),
        ("begin", "12-34"),
        ("end", "12-34"),
    ]
    assert opened.problems() == []


def test_damaged_lines_are_left_out_and_reported(runs: Path) -> None:
    run = make_run(runs)
    path = run / "node1" / "events.0.jsonl"
    path.write_bytes(
        b'{"t": 1, "event": "a"}\n\0\0\0\0{"t": 2}\n[]\n{"event": "no t"}\n\n{"t": true}\n{"t": 3, "event": "b"}\n'
    )
    opened = open_run(run)
    assert [e["t"] for e in opened.events()] == [1, 3]
    assert [p.path for p in opened.problems()] == [path]


def test_clock_pairs_come_from_everywhere(runs: Path) -> None:
    run = make_run(runs)
    middle = {**STARTED, "mono_ns": START_NS + 500, "utc_ns": STARTED["utc_ns"] + 501}
    write_lines(run / "node1" / "events.0.jsonl", {"t": 5, "event": "clock", **middle}, {"t": 6, "event": "clock"})
    write_lines(run / "node2" / "events.0.jsonl", {"t": 5, "event": "clock", **STARTED})
    opened = open_run(run)
    assert opened.clock_pairs() == [ClockPair(**STARTED), ClockPair(**middle)]
    close_run(run)
    assert opened.clock_pairs("node1") == [ClockPair(**STARTED), ClockPair(**middle), ClockPair(**ENDED)]
    assert opened.clock_pairs("node2") == [ClockPair(**STARTED)]
    assert opened.clock_pairs()[0].boot_id == BOOT


def test_a_closed_run_can_be_read_again(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(4))
    with open_run(run) as opened:
        (info,) = opened.tables()
        assert isinstance(info, TableInfo)
    assert len(opened.series(info, "gpu0")) == 2
    opened.close()
    opened.close()


def test_a_reader_that_loses_its_journals_finds_them_sealed(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(10))
    opened = open_run(run)
    (info,) = opened.tables()
    with connect_database() as con:
        stale = load_table(run / "node1", "nvml", "fast", con)
        seal_run(run)
        with pytest.raises(FileNotFoundError):
            read_series(stale, "gpu0", ["power"], con)

    class Late(Run):
        seen: ClassVar[list[SampleTable]] = [stale]

        def _table(self, host: str, meter: str, table: str) -> SampleTable:
            return self.seen.pop() if self.seen else super()._table(host, meter, table)

    late = Late(run, opened.meta)
    assert len(late.series(info, "gpu0")) == 5
    Late.seen += [stale] * 100
    with raises_code("store.vanishing"):
        Late(run, opened.meta).series(info, "gpu0")


def test_a_run_without_its_host_folder_says_so(runs: Path) -> None:
    run = make_run(runs)
    with connect_database() as con, raises_code("store.vanishing"):
        load_table(run / "gone", "nvml", "fast", con)
