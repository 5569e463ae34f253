from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.store.make import POWER, UTC_NS, close_run, gpus, make_run, ramp, write_rows

from joulelab.store import run_query as run_query_module
from joulelab.store.run_folder import read_meta, write_json_atomic
from joulelab.store.run_query import RESULT_COLUMNS, run_query
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system  # pure, and slow

DAY = 86_400 * 10**9


@pytest.fixture
def two(runs: Path) -> Path:
    for k, name in enumerate(("first", "second")):
        started = {"mono_ns": 5, "utc_ns": UTC_NS + k * DAY, "width_ns": 1, "kernel_error_ns": None, "boot_id": "b"}
        run = make_run(runs, name=name, labels={"model": name[0], "it's": '"odd"'}, started=started)
        write_rows(run, gpus(2 + k), ramp(12, streams=2 + k))
        write_rows(run, gpus(1, [POWER], table="slow"), [(0, 1, 2, [math.nan]), (0, 3, 4, [10.0])], meter="my-meter")
        close_run(run)
        seal_run(run)
    return runs


@pytest.mark.system  # pure, and slow
def test_runs(two: Path) -> None:
    columns, rows = run_query(
        two,
        "SELECT name, state, outcome, duration_s, started::VARCHAR, command, labels['model'] FROM runs ORDER BY run",
    )
    assert columns[:2] == ["name", "state"]
    assert rows[0] == ("first", "closed", "exit", 1.0, "2023-11-14 22:13:20", "python train.py", "f")
    assert rows[1][4] == "2023-11-15 22:13:20"


@pytest.mark.system  # pure, and slow
def test_samples_of_all_runs(two: Path) -> None:
    picked = "SELECT r.name, s.stream, count(*), max(power)"
    _, rows = run_query(two, f"{picked} FROM nvml_fast s JOIN runs r USING (run) GROUP BY ALL ORDER BY ALL")
    assert rows == [("first", "gpu0", 6, 10.125), ("first", "gpu1", 6, 11.125)] + [
        ("second", f"gpu{k}", 4, 9.125 + k) for k in range(3)
    ]
    columns, rows = run_query(two, "SELECT * FROM nvml_fast LIMIT 1")
    assert columns == ["run", "host", "stream", "scope", "segment", "t0_ns", "t1_ns", "energy", "power"]
    assert rows[0][1] == "node1"


def test_not_read_is_null(two: Path) -> None:
    assert run_query(two, "SELECT avg(power), count(power), count(*) FROM my_meter_slow")[1] == [(10.0, 2, 4)]


@pytest.mark.system  # pure, and slow
def test_results(two: Path) -> None:
    energies = [{"host": "node1", "scope": "gpu:0", "energy_j": 10.5 * k, "extra": k, "terms": [1]} for k in (0, 1)]
    given = iter(energies)
    sql = "SELECT * FROM energies ORDER BY energy_j"
    columns, rows = run_query(two, sql, results=lambda _: {"energies": [next(given)]})
    assert columns == [*RESULT_COLUMNS["energies"], "extra", "terms"]
    assert [row[columns.index("energy_j")] for row in rows] == [0.0, 10.5]
    assert rows[1][-2:] == (1, "[1]")
    assert run_query(two, "SELECT count(*) FROM phases")[1] == [(0,)]


def test_the_caller_computes_results(two: Path) -> None:
    asked = []

    def results(run: Path) -> dict[str, list[dict[str, object]]]:
        asked.append(run.name)
        return {
            "phases": [
                {"phase": "epoch", "n": 1, "energy_j": None, "ok": True},
                {"phase": "epoch", "n": 2, "energy_j": 1e-300},
            ]
        }

    columns, rows = run_query(two, "SELECT * FROM phases ORDER BY run, n", results=results)
    assert asked == sorted(asked)
    assert len(asked) == 2
    assert columns[-1] == "ok"
    first, second = (row[2:] for row in rows[:2])
    assert (first, second) == ((1, *[None] * 5, True), (2, None, None, 1e-300, *[None] * 3))


def test_empty_store(runs: Path) -> None:
    assert run_query(runs, "SELECT run FROM runs")[1] == []
    assert run_query(runs, "SELECT sum(energy_j) FROM energies")[1] == [(None,)]


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE x AS SELECT 1",
        "COPY runs TO '{out}'",
        "EXPLAIN ANALYZE COPY runs TO '{out}'",
        "COPY nvml_fast TO '{parquet}' (USE_TMP_FILE false)",
        "EXPORT DATABASE '{out}'",
        "ATTACH '{out}'",
        "DROP TABLE runs",
        "DELETE FROM runs",
        "INSTALL httpfs",
        "SET threads = 1",
    ],
)
def test_statements_that_write_are_refused(two: Path, tmp_path: Path, sql: str) -> None:
    parquet = next(two.glob("*/*/nvml.fast.parquet"))
    before = parquet.read_bytes()
    with raises_code("refused.query-changes"):
        run_query(two, sql.format(out=tmp_path / "out", parquet=parquet))
    assert not (tmp_path / "out").exists()
    assert parquet.read_bytes() == before


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    "source", ["read_text('/etc/hostname')", "glob('/etc/*')", "'/etc/hostname.csv'", "read_csv('{runs}/../x.csv')"]
)
def test_other_files_are_out_of_reach(two: Path, source: str) -> None:
    (two.parent / "x.csv").write_text("a\n1\n")
    with raises_code("refused.query-files"):
        run_query(two, f"SELECT * FROM {source.format(runs=two)}")


def test_local_variables_are_out_of_reach(two: Path) -> None:
    import numpy as np

    secret = {"x": np.arange(3)}
    with raises_code("config.query-failed"):
        run_query(two, "SELECT * FROM secret")
    assert len(secret) == 1


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT * FROM energiez", "config.query-failed"),
        ("SELECT powr FROM nvml_fast", "config.query-failed"),
        ("SELEC 1", "config.query-syntax"),
        ("SELECT 1; SELECT 2", "config.query-statements"),
        (" ", "config.query-statements"),
    ],
)
def test_mistakes_are_refused(two: Path, sql: str, code: str) -> None:
    with raises_code(code):
        run_query(two, sql)


def test_every_view_is_shown(two: Path) -> None:
    assert [row[0] for row in run_query(two, "SHOW TABLES")[1]] == [
        "energies",
        "facts",
        "my_meter_slow",
        "nvml_fast",
        "phases",
        "runs",
    ]


def test_damaged_runs_do_not_stop_a_query(two: Path) -> None:
    first, second = sorted(p for p in two.iterdir())
    (first / "node1" / "nvml.fast.parquet").write_bytes(b"PAR1 broken PAR1")
    assert run_query(two, "SELECT DISTINCT run FROM nvml_fast")[1] == [(second.name,)]
    write_json_atomic(first / "run.json", {**read_meta(first), "schema": 99})
    (second / "run.json").write_text("{")
    assert run_query(two, "SELECT run, state FROM runs ORDER BY 1")[1] == [
        (first.name, "newer schema"),
        (second.name, "damaged"),
    ]


@pytest.mark.system  # pure, and slow
def test_a_run_whose_start_has_no_time_is_damaged_and_stops_no_query(two: Path) -> None:
    first, second = sorted(p for p in two.iterdir())
    write_json_atomic(first / "run.json", {**read_meta(first), "started": {"mono_ns": 5}})
    assert run_query(two, "SELECT run, state FROM runs ORDER BY 1")[1] == [
        (first.name, "damaged"),
        (second.name, "closed"),
    ]


def test_only_what_is_mentioned_is_read(two: Path) -> None:
    def refuse(run: Path) -> dict[str, list[dict[str, object]]]:
        raise AssertionError(run)

    assert run_query(two, "SELECT count(*) AS how_many FROM runs", results=refuse)[1] == [(2,)]
    assert run_query(two, "SELECT count(*) FROM nvml_fast", results=refuse)[1] == [(24,)]
    with pytest.raises(AssertionError):
        run_query(two, "SELECT count(*) FROM Energies", results=refuse)


def test_runs_with_journals_are_prepared_before_their_samples_are_read(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(2), ramp(5, streams=2))
    close_run(run)
    asked: list[Path] = []

    def prepare(path: Path) -> None:
        asked.append(path)
        seal_run(path)

    assert run_query(runs, "SELECT count(*) FROM runs", prepare=prepare)[1] == [(1,)]
    assert asked == []
    assert run_query(runs, "SELECT count(*) FROM nvml_fast", prepare=prepare)[1] == [(5,)]
    assert run_query(runs, "SELECT count(*) FROM nvml_fast", prepare=prepare)[1] == [(5,)]
    assert asked == [run]


def test_journals_that_cannot_be_sealed_are_read_as_they_are(runs: Path) -> None:
    for k in range(2):
        run = make_run(runs)
        write_rows(run, gpus(2), ramp(5, streams=2))
        if k:
            close_run(run)
            seal_run(run)
            write_rows(run, gpus(2), ramp(5, streams=2), segment=1)  # a part of it is sealed
        else:
            close_run(run)
        before = sorted(run.rglob("*"))
        left_out: dict[Path, str] = {}
        sql = (
            f"SELECT run, host, count(*), max(t0_ns), max(energy) FROM nvml_fast WHERE run = '{run.name}' GROUP BY 1, 2"
        )
        assert run_query(runs, sql, prepare=lambda _: None, left_out=left_out)[1] == [
            (run.name, "node1", 5 + 5 * k, 5_000_004_000, 4.0)
        ]
        assert (left_out, sorted(run.rglob("*"))) == ({}, before)


def test_runs_that_have_not_ended_or_cannot_be_read_are_named(runs: Path) -> None:
    live = make_run(runs, owner=None)
    write_rows(live, gpus(2), ramp(5, streams=2))
    broken = make_run(runs)
    write_rows(broken, gpus(2), ramp(5, streams=2)).write_bytes(b"x")
    close_run(broken)
    left_out: dict[Path, str] = {}
    with raises_code("config.query-failed") as failed:
        run_query(runs, "SELECT * FROM nvml_fast", left_out=left_out)
    assert "nvml_fast" in str(failed.value.next)
    assert left_out[live / "node1" / "nvml.fast"] == "the run has not ended"
    assert "header" in left_out[broken / "node1" / "nvml.fast"]


@pytest.mark.parametrize("sealed", [False, True])
def test_samples_of_a_journal_that_was_cut_are_left_out(runs: Path, sealed: bool) -> None:
    paths = []
    for _ in range(2):
        run = make_run(runs)
        paths.append(write_rows(run, gpus(2), ramp(20, streams=2)))
        close_run(run)
    header = paths[0].stat().st_size - 20 * 40
    os.truncate(paths[0], header + 4 * 40)
    if sealed:
        for path in paths:
            seal_run(path.parents[1])
    left_out: dict[Path, str] = {}
    assert run_query(runs, "SELECT max(energy) - min(energy) FROM nvml_fast", left_out=left_out)[1] == [(19.0,)]
    assert left_out == {paths[0].with_name("nvml.fast.parquet"): "its journal was cut off after 4 rows"}


def test_values_that_do_not_fit_their_column_are_told_or_kept_as_text(two: Path) -> None:
    rows = {"phases": [{"phase": "a", "big": 2**70, "mixed": 1}, {"phase": "b", "mixed": "x", "flag": False}]}

    def results(run: Path) -> dict[str, list[dict[str, object]]]:
        return rows if run.name == min(p.name for p in two.iterdir()) else {}

    _, found = run_query(two, "SELECT phase, mixed, flag FROM phases WHERE mixed = 'x'", results=results)
    assert found == [("b", "x", False)]


@every_row(
    ("sql", "code"),
    [
        ("SELECT count(*) FROM range(100000000) a, range(100000000) b", "refused.query-time"),
        ("SELECT list(range) FROM range(100000000)", "refused.query-memory"),
        ("SELECT range FROM range(6)", "refused.query-rows"),
    ],
)
def test_time_memory_and_rows_have_limits(runs: Path, monkeypatch: pytest.MonkeyPatch, sql: str, code: str) -> None:
    monkeypatch.setattr(run_query_module, "MOST_ROWS", 5)
    if code.endswith("memory"):  # or the query that takes long may reach this limit first
        monkeypatch.setattr(run_query_module, "MOST_MEMORY_B", 32 << 20)
    with raises_code(code):
        run_query(runs, sql, limit_s=0.05 if code.endswith("time") else None)
    assert run_query(runs, "SELECT range FROM range(5)", limit_s=600)[1] == [(k,) for k in range(5)]
