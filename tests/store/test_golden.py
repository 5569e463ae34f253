"""Old folders read to the same values for ever: one golden folder per schema."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from joulelab.core.spec import Stream
from joulelab.store.journal import MAGIC, make_row_struct, pack_row, read_header
from joulelab.store.run_query import run_query
from joulelab.store.run_reader import Run, open_run
from joulelab.store.seal import seal_run
from joulelab.store.upgrade import SCHEMA

if TYPE_CHECKING:
    from joulelab.store.series import SampleSeries

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = {
    (folder.name, name): expected
    for folder in sorted(GOLDEN.glob("schema-*"))
    for name, expected in json.loads((folder / "expected.json").read_text()).items()
}


@pytest.fixture(params=EXPECTED, ids="/".join)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    schema, name = request.param
    run = tmp_path / name
    shutil.copytree(GOLDEN / schema / name, run)
    for file in run.rglob("*.journal"):
        os.utime(file, (0, 0))  # A clone is new; what it holds is not.
    (run / "node1" / "marks").mkdir(exist_ok=True)
    return run, EXPECTED[request.param]


def test_every_schema_has_one() -> None:
    assert {schema for schema, _ in EXPECTED} == {f"schema-{n}" for n in range(1, SCHEMA + 1)}


def test_reads_as_ever(golden: tuple[Path, dict[str, Any]]) -> None:
    run, expected = golden
    check(open_run(run), expected)


def test_reads_as_ever_once_sealed(golden: tuple[Path, dict[str, Any]]) -> None:
    run, expected = golden
    seal_run(run)
    assert list(run.rglob("*.journal")) == []
    check(open_run(run), expected)
    assert run_query(run.parent, "SELECT count(*) FROM nvml_fast")[1] == [(expected["tables"][-1]["rows"],)]


def check(run: Run, expected: dict[str, Any]) -> None:
    # Keys that later versions add are welcome, those that were there must stay.
    assert {k: run.meta[k] for k in expected["meta"]} == expected["meta"] | {"schema": SCHEMA}
    assert (run.end is None) == (expected["end"] is None)
    assert run.end is None or {k: run.end[k] for k in expected["end"]} == expected["end"] | {"schema": SCHEMA}
    assert str(run.state) == expected["state"]
    assert list(run.hosts) == expected["hosts"]
    assert run.events() == expected["events"]
    assert run.marks() == expected["marks"]
    assert [[p.mono_ns, p.utc_ns] for p in run.clock_pairs()] == expected["clock_pairs"]
    assert [p.what for p in run.problems()] == expected["problems"]
    infos = run.tables()
    assert [(i.host, i.meter, i.table, i.rows) for i in infos] == [
        (t["host"], t["meter"], t["table"], t["rows"]) for t in expected["tables"]
    ]
    for info, table in zip(infos, expected["tables"], strict=True):
        assert info.streams == tuple(Stream.from_json(s) for s in table["streams"])
        for name, series in table["series"].items():
            same(run.series(info, name), series)


def same(series: SampleSeries, expected: dict[str, Any]) -> None:
    assert series.t0_ns.tolist() == expected["t0_ns"]
    assert series.t1_ns.tolist() == expected["t1_ns"]
    assert series.segment.tolist() == expected["segment"]
    assert list(series.values) == list(expected["values"])
    for name, values in expected["values"].items():
        np.testing.assert_array_equal(series.values[name], [math.nan if v is None else v for v in values])


def test_the_writer_still_writes_this_layout() -> None:
    path = GOLDEN / f"schema-{SCHEMA}" / "20231114-221320-bbbb" / "node1" / "load.slow.0.journal"
    header, content = read_header(path), path.read_bytes()
    row = make_row_struct(len(header.columns))
    first = pack_row(row, 0, 5_000_000_000, 5_000_001_234, [1000.5, 300.125])
    assert content[header.data_offset : header.data_offset + row.size] == first
    assert content[:4] == MAGIC
    assert header.data_offset % 8 == 0
