from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import epochs, make_run

from joulelab.core.errors import NotARun
from joulelab.report import cache
from joulelab.report.cache import fingerprint, query_rows, read_cache, results_of, rows_of, write_cache
from joulelab.store.query import query

if TYPE_CHECKING:
    from pathlib import Path


def test_results_are_kept_until_the_run_changes(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs)
    first = results_of(run)
    assert json.loads((run / "results.json").read_text()) == first
    monkeypatch.setattr(cache, "result_of", lambda path: pytest.fail("worked out again"))
    assert results_of(run) == first
    marks = run / "node1" / "marks" / "9-9.jsonl"
    marks.write_text("")
    assert read_cache(run) is None
    marks.unlink()
    assert read_cache(run) == first


def test_the_fingerprint_sees_names_sizes_and_times(runs: Path) -> None:
    run = make_run(runs)
    before = fingerprint(run)
    write_cache(run, cache.result_of(run))
    assert fingerprint(run) == before  # the cache is not part of what it is made from
    os.utime(run / "end.json", ns=(1, 1))
    assert fingerprint(run) != before


def test_a_live_run_is_not_kept(runs: Path) -> None:
    run = make_run(runs, state="live")
    assert results_of(run)["result"]["state"] == "live"
    assert not (run / "results.json").exists()


def test_a_damaged_cache_is_worked_out_again(runs: Path) -> None:
    run = make_run(runs)
    good = results_of(run)
    (run / "results.json").write_text("{")
    assert results_of(run) == good
    (run / "results.json").write_text('{"schema": 99}')
    assert results_of(run) == good


def test_a_store_that_cannot_be_written_is_read_all_the_same(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs, state="closed")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache, "write_json_atomic", refuse)
    assert results_of(run)["result"]["run"] == run.name
    assert not (run / "results.json").exists()


def test_rows_feed_the_views_of_queries(runs: Path) -> None:
    run = make_run(runs, gpus=2, cpus=1, core=True, marks=epochs(3, 9.0), seconds=9.0)
    sql = "SELECT sum(energy_j) FILTER (counted), count(*) FROM energies"
    _, [(total, count)] = query(runs, sql, results=query_rows)
    assert count == 4
    assert total == pytest.approx(results_of(run)["result"]["energy"]["value"])
    _, rows = query(runs, "SELECT phase, n, work_samples FROM phases ORDER BY n", results=query_rows)
    assert rows[0] == ("epoch", 1, 64.0)
    _, rows = query(runs, "SELECT count(*) FROM nvml_power", results=query_rows)
    assert rows[0][0] > 100


def test_a_run_that_cannot_be_read_does_not_hide_the_others(runs: Path) -> None:
    make_run(runs)
    bad = make_run(runs)
    (bad / "end.json").write_text("[]")
    _, rows = query(runs, "SELECT DISTINCT run FROM energies", results=query_rows)
    assert len(rows) == 1
    with pytest.raises(NotARun):
        results_of(runs / "nothing")


def test_rows_are_kept_apart_and_valid_as_long_as_the_run_is_the_same(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(runs, marks=epochs(3, 9.0), seconds=9.0)
    first = rows_of(run)
    assert first["listed"]["energy"]["value"] == results_of(run)["result"]["energy"]["value"]
    (run / "results.json").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(cache, "result_of", lambda path: pytest.fail("worked out again"))
        assert rows_of(run) == first
    os.utime(run / "end.json", ns=(1, 1))
    again = rows_of(run)
    assert again["inputs"] != first["inputs"]
    assert again["energies"] == first["energies"]
    assert json.loads((run / "rows.json").read_text()) == again


def test_rows_are_made_of_results_that_are_there(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs)
    first = rows_of(run)
    (run / "rows.json").write_text("[")
    monkeypatch.setattr(cache, "result_of", lambda path: pytest.fail("worked out again"))
    assert rows_of(run) == first
    (run / "rows.json").unlink()
    assert rows_of(run) == first
    assert json.loads((run / "rows.json").read_text()) == first


def test_a_planted_link_is_not_followed_by_the_cache(runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in ("rows.json", "results.json", f".rows.json.{os.getpid()}"):
        (run / name).symlink_to(precious)
    rows_of(run)
    write_cache(run, cache.result_of(run))
    assert precious.read_text() == "kept"
    assert not (run / "rows.json").is_symlink()


def test_nothing_is_cached_in_the_folder_of_another_user(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs)
    there = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    assert rows_of(run)["listed"]["energy"]["value"] > 0
    assert not (run / "results.json").exists()
    assert not (run / "rows.json").exists()
    monkeypatch.undo()
    results_of(run)
    (run / "rows.json").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    rows_of(run)
    assert not (run / "rows.json").exists()
