from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pytest
from tests.codes import raises_code
from tests.store.make import START_NS, close_run, gpus, make_run, ramp, write_rows

from joulelab.core.clock import ClockPair
from joulelab.store.run_export import export_run, to_utc_ns
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["sealed", "journals"])
def run(request: pytest.FixtureRequest, runs: Path) -> Path:
    run = make_run(runs, name="größer")
    rows = ramp(5)
    rows[2] = (*rows[2][:3], [math.nan, 7.0])
    write_rows(run, gpus(), rows)
    write_rows(run, gpus(1), [(0, START_NS + 10**8, START_NS + 10**8 + 5, [1.0, 2.0])], host="node2")
    close_run(run)
    if request.param == "sealed":
        seal_run(run)
    return run


@pytest.mark.system  # pure, and slow
def test_csv(run: Path, tmp_path: Path) -> None:
    files = export_run(open_run(run), "csv", tmp_path / "out")
    assert [p.name for p in files] == ["node1.nvml.fast.csv", "node2.nvml.fast.csv", "metadata.json"]
    assert sorted((tmp_path / "out").iterdir()) == sorted(files)
    with files[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["utc", "t_s", "read_s", "stream", "scope", "segment", "energy", "power"]
    assert rows[0]["utc"] == "2023-11-14T22:13:20.000000Z"
    assert rows[1] | {"energy": None} == {
        "utc": "2023-11-14T22:13:20.000002Z",
        "t_s": "2e-06",
        "read_s": "3e-07",
        "stream": "gpu0",
        "scope": "gpu:0",
        "segment": "0",
        "energy": None,
        "power": "7.0",
    }
    assert rows[1]["energy"] == ""
    assert [r["stream"] for r in rows] == ["gpu0"] * 3 + ["gpu1"] * 2
    with files[1].open(newline="") as file:
        assert next(csv.DictReader(file))["utc"] == "2023-11-14T22:13:20.100000Z", "of one boot, so of one clock"


def test_parquet(run: Path, tmp_path: Path) -> None:
    files = export_run(open_run(run), "parquet", tmp_path / "out")
    rows = duckdb.sql(f"SELECT stream, t0_ns, energy, power FROM '{files[0]}'").fetchall()
    assert len(rows) == 5
    assert rows[1] == ("gpu0", START_NS + 2000, None, 7.0)
    assert json.loads(files[-1].read_text())["run"]["name"] == "größer"
    assert (run / "node1").is_dir()


@pytest.mark.system  # pure, and slow
def test_json(run: Path, tmp_path: Path) -> None:
    (file,) = export_run(open_run(run), "json", tmp_path / "out")
    data = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["end"]["outcome"] == "exit"
    assert data["tables"][0]["streams"][0]["channels"][1]["unit"] == "W"
    sample = data["samples"][0]
    assert (sample["host"], sample["stream"]) == ("node1", "gpu0")
    assert sample["utc"][0] == "2023-11-14T22:13:20.000000Z"
    assert sample["t_s"] == [0.0, 2e-6, 4e-6]
    assert sample["channels.energy"] == [0.0, None, 4.0]
    assert data["samples"][2]["utc"] == ["2023-11-14T22:13:20.100000Z"]


@pytest.mark.system  # pure, and slow
def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    export_run(open_run(run), "json", tmp_path / "out")
    with raises_code("refused.exists"):
        export_run(open_run(run), "json", tmp_path / "out")


def test_an_unwritable_place(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("store.export"):
        export_run(open_run(run), "csv", tmp_path / "file" / "out")


def pair(mono: int, utc: int) -> ClockPair:
    return ClockPair(mono, utc, 0, None, "b")


def test_utc_between_clock_pairs() -> None:
    day = 1_700_000_000 * 10**9
    pairs = [pair(0, day), pair(1000, day + 1010), pair(2000, day + 2010 + 10**10)]
    mono = np.array([-500, 0, 500, 1000, 1500, 1999, 2000, 9000])
    expected = [-500, 0, 505, 1010, 1510, 2009, 2010 + 10**10, 9010 + 10**10]
    assert (to_utc_ns(pairs, mono) - day).tolist() == expected
    with raises_code("store.no-clock"):
        to_utc_ns([], mono)
