"""What `results.json` promises: the same Result, as long as the run is the same; and a head for lists."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from tests.report.synthetic import NS, START, epochs, make_run

from joulelab.analysis import results_file
from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.result import Check, Result
from joulelab.analysis.results_file import (
    analyse_ended,
    list_query_rows,
    load_head,
    load_result,
    make_head,
    read_head,
    read_result,
    write_result,
)
from joulelab.core.errors import NotARun
from joulelab.core.quantity import Quantity
from joulelab.report.messages import word_check
from joulelab.report.result_json import describe_head
from joulelab.site.site_settings import read_site
from joulelab.store.manifest import compute_fingerprint
from joulelab.store.run_folder import end_run
from joulelab.store.run_query import run_query

if TYPE_CHECKING:
    from joulelab.store.run_reader import Run

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "runs").iterdir())
GOLDEN = sorted(run for run in (ROOT / "tests" / "golden").glob("schema-*/*") if run.is_dir())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def no_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_file, "analyse_ended", lambda path: pytest.fail("analysed again"))


@pytest.mark.parametrize(
    "path", [*GOLDEN, *(pytest.param(path, marks=pytest.mark.system) for path in EXAMPLES)], ids=lambda path: path.name
)
def test_a_result_reads_back_as_it_was(path: Path, tmp_path: Path) -> None:
    run = shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("results.json", "head.json"))
    result = analyse_ended(run)[0]
    write_result(run, result)
    back = read_result(run)
    assert back == result
    assert back is not None
    assert repr(back) == repr(result)  # no whole number became a fraction
    assert json.dumps(back.to_json()) == json.dumps(result.to_json())
    assert read_head(run) == make_head(result)


def test_a_run_with_phases_facts_and_checks_reads_back(runs: Path) -> None:
    run = make_run(runs, gpus=2, cpus=1, core=True, marks=epochs(3, 9.0), seconds=9.0)
    result = analyse_ended(run)[0]
    write_result(run, result)
    assert read_result(run) == result


def test_numbers_that_are_not_finite_read_back_as_nan(runs: Path) -> None:
    run = make_run(runs)
    result = analyse_ended(run)[0]
    nowhere = Quantity(math.nan, {"gain:m": math.inf, "edge:m": 1.0}, bounds={"m": math.nan})
    odd = replace(
        result,
        facts={"loss": math.nan, "n": 5, "real": 5.0, "yes": True},
        work={"samples": math.nan},
        groups=tuple(replace(group, energy=nowhere) for group in result.groups),
    )
    write_result(run, odd)
    assert b"NaN" not in (run / "results.json").read_bytes()
    back = read_result(run)
    assert back is not None
    assert repr(back.facts) == "{'loss': nan, 'n': 5, 'real': 5.0, 'yes': True}"
    assert math.isnan(back.work["samples"])
    assert math.isnan(back.groups[0].energy.value)
    assert math.isnan(back.groups[0].energy.terms["gain:m"])
    assert back.groups[0].energy.terms["edge:m"] == 1.0
    assert (back.scopes, back.phases, back.checks) == (result.scopes, result.phases, result.checks)
    head = read_head(run)
    assert head == make_head(odd)
    assert head is not None
    assert head.list_fact_rows()[0] == {"fact": "loss", "value": "nan", "number": None}


def test_numbers_of_numpy_are_stored(runs: Path) -> None:
    run = make_run(runs)
    energy = Quantity(np.float64(5.5), {"gain:m": np.float64(0.5)})
    result = replace(analyse_ended(run)[0], work={"samples": np.float32(2.0)}, ratios={"gpu / node": energy})
    write_result(run, result)
    assert read_result(run) == result


def test_a_command_that_is_no_text_reads_back(runs: Path) -> None:
    run = make_run(runs)
    result = replace(analyse_ended(run)[0], command=["echo", "\udc80"])
    write_result(run, result)
    assert read_result(run) == result
    assert load_head(run).command == result.command


def test_a_changed_shape_needs_a_new_version() -> None:
    """Raise RESULT_VERSION with this number: else files of before are read as what they are not."""
    schema = msgspec.json.schema_components([Result, results_file.ResultHead])
    shape = re.sub(r'"description": "[^"]*"', "", json.dumps(schema, sort_keys=True))
    assert (results_file.RESULT_VERSION, sha256(shape.encode()).hexdigest()[:12]) == (7, "36dc546130da")


def test_a_stored_result_is_read_until_the_run_changes(runs: Path, no_analysis: None) -> None:
    run = make_run(runs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results_file, "analyse_ended", analyse_ended)
        first = load_result(run)
    assert load_result(run) == first
    marks = run / "node1" / "marks" / "9-9.jsonl"
    marks.write_text("")
    assert read_result(run) is None
    assert read_head(run) is None
    marks.unlink()
    assert read_result(run) == first


@pytest.mark.parametrize("name", ["RESULT_VERSION", "ANALYSIS_VERSION"])
def test_a_result_of_another_version_is_made_again(runs: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run = make_run(runs)
    load_result(run)
    monkeypatch.setattr(results_file, name, 99)
    assert read_result(run) is None
    load_head(run)
    assert read_result(run) is not None


def test_stored_results_are_no_part_of_the_fingerprint(runs: Path) -> None:
    run = make_run(runs)
    result = analyse_ended(run)[0]
    before = compute_fingerprint(run)
    write_result(run, result)
    assert compute_fingerprint(run) == before
    os.utime(run / "end.json", ns=(1, 1))
    assert compute_fingerprint(run) != before


def test_the_result_of_a_live_run_is_not_stored(runs: Path) -> None:
    run = make_run(runs, state="live")
    assert load_result(run).state == "live"
    assert load_head(run).state == "live"
    assert not (run / "results.json").exists()
    assert not (run / "head.json").exists()


def test_a_run_that_ends_while_it_is_analysed_is_analysed_again(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs, state="live")
    analysed = []

    def end_meanwhile(opened: Run) -> Result:
        result = analyse_run(opened)
        if not analysed:
            end_run(run, {"outcome": "exit", "exit_code": 0, "start_ns": result.start_ns, "end_ns": result.end_ns})
        analysed.append(result.state)
        return result

    monkeypatch.setattr("joulelab.analysis.analyse.analyse_run", end_meanwhile)
    assert load_result(run).state == "closed"
    assert analysed == ["live", "closed"]
    stored = read_result(run)
    assert stored is not None
    assert stored.state == "closed"


def test_a_run_that_changes_while_it_is_analysed_is_not_stored(runs: Path) -> None:
    run = make_run(runs)
    result, inputs = analyse_ended(run)
    os.utime(run / "end.json", ns=(1, 1))
    write_result(run, result, inputs)
    assert read_result(run) is None


def test_damaged_files_are_made_again(runs: Path) -> None:
    run = make_run(runs)
    good = load_result(run)
    stored = json.loads((run / "results.json").read_text())
    head = json.dumps(json.loads((run / "head.json").read_text()) | {"head": []})
    texts = ["{", "[]", "{}", '{"schema": 99}', "null", "[" * 100_000, '{"result": 1e999}']
    damaged = [(text, text) for text in texts]
    damaged += [(json.dumps(stored | {"result": result}), head) for result in ({}, {"run": 5})]
    for text, text_of_head in damaged:
        (run / "results.json").write_text(text)
        (run / "head.json").write_text(text_of_head)
        assert read_result(run) is None, text[:80]
        assert read_head(run) is None, text[:80]
        assert load_head(run) == make_head(good), text[:80]
        assert read_result(run) == good, text[:80]


def test_a_store_that_cannot_be_written_is_read_all_the_same(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs, state="closed")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(results_file, "replace_file", refuse)
    assert load_result(run).run == run.name
    assert not (run / "results.json").exists()


def test_heads_feed_the_views_of_queries(runs: Path) -> None:
    run = make_run(runs, gpus=2, cpus=1, core=True, marks=epochs(3, 9.0), seconds=9.0)
    sql = "SELECT sum(energy_j) FILTER (counted), count(*) FROM energies"
    _, [(total, count)] = run_query(runs, sql, results=list_query_rows)
    assert count == 4
    energy = load_result(run).energy
    assert energy is not None
    assert total == pytest.approx(energy.value)
    _, rows = run_query(runs, "SELECT phase, n, work_samples FROM phases ORDER BY n", results=list_query_rows)
    assert rows[0] == ("epoch", 1, 64.0)
    _, rows = run_query(runs, "SELECT count(*) FROM nvml_power", results=list_query_rows)
    assert rows[0][0] > 100


@pytest.mark.parametrize("sql", ["energy_kwh, duration_s, ended::VARCHAR", "NULL, duration_s, ended::VARCHAR"])
def test_a_killed_run_has_the_duration_and_end_of_its_result(runs: Path, sql: str) -> None:
    run = make_run(runs, state="killed")
    [(energy, duration_s, ended)] = run_query(runs, f"SELECT {sql} FROM runs", results=list_query_rows)[1]
    head = load_head(run)
    assert head.state == "killed"
    assert energy is None or energy > 0
    assert duration_s == head.duration_s > 0
    took = datetime.fromisoformat(f"{ended}+00:00") - datetime.fromisoformat(head.start_utc)
    assert took.total_seconds() == pytest.approx(duration_s, abs=1e-5)


def test_a_run_without_a_known_start_has_a_duration_and_no_end(runs: Path) -> None:
    head = load_head(make_run(runs, state="killed"))
    assert results_file._describe_end(replace(head, start_utc="")) == {"duration_s": head.duration_s}


def test_a_live_run_has_a_duration_and_no_end(runs: Path) -> None:
    make_run(runs, state="live")
    sql = "SELECT duration_s > 0, ended FROM runs"
    assert run_query(runs, sql, results=list_query_rows)[1] == [(True, None)]


def test_results_are_not_read_for_the_end_of_closed_runs(runs: Path) -> None:
    make_run(runs)
    sql = "SELECT duration_s > 0, ended IS NOT NULL FROM runs"
    assert run_query(runs, sql, results=lambda _: pytest.fail("read"))[1] == [(True, True)]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(runs: Path) -> None:
    make_run(runs)
    bad = make_run(runs)
    (bad / "end.json").write_text("[]")
    _, rows = run_query(runs, "SELECT DISTINCT run FROM energies", results=list_query_rows)
    assert len(rows) == 1
    with pytest.raises(NotARun):
        load_result(runs / "nothing")


def test_lists_name_the_check_after_which_there_is_no_energy(runs: Path) -> None:
    result = analyse_ended(make_run(runs))[0]
    wrong = Check("damaged", "failed", "node1/nvml.power.parquet", texts={"what": "it is cut off"})
    head = make_head(replace(result, checks=(*result.checks, wrong)))
    assert head.failed_check == wrong
    plain = describe_head(head)
    assert (plain["problem"], plain["check"]) == (word_check(wrong).text, "damaged")
    assert make_head(result).failed_check is None
    assert (describe_head(make_head(result))["problem"], describe_head(make_head(result))["check"]) == (None, None)


def test_impossible_powers_are_no_rows_of_queries(runs: Path) -> None:
    result = analyse_ended(make_run(runs))[0]
    first, *others = result.scopes
    wrong = Check("impossible-power.negative", "failed", first.scope, {"power_w": -50.0})
    head = make_head(replace(result, checks=(*result.checks, wrong)))
    assert [row["scope"] for row in head.energies] == [scope.scope for scope in others]
    assert {row["energy_j"] for row in head.phases} <= {None}
    assert len(make_head(result).energies) == len(result.scopes)


def test_a_head_is_made_of_the_result_that_is_there(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs)
    first = load_head(run)
    monkeypatch.setattr(results_file, "analyse_ended", lambda path: pytest.fail("analysed again"))
    (run / "results.json").rename(run / ".aside")
    assert load_head(run) == first, "lists read no more than the head"
    (run / ".aside").rename(run / "results.json")
    for damage in (lambda: (run / "head.json").write_text("["), (run / "head.json").unlink):
        damage()
        assert load_head(run) == first
        assert read_head(run) == first


def test_a_planted_link_is_not_followed(runs: Path, tmp_path: Path) -> None:
    run = make_run(runs)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for name in ("head.json", "results.json", f".head.json.{os.getpid()}"):
        (run / name).symlink_to(precious)
    load_head(run)
    write_result(run, *analyse_ended(run))
    assert precious.read_text() == "kept"
    assert not (run / "head.json").is_symlink()


def test_nothing_is_stored_in_the_folder_of_another_user(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(runs)
    there = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    assert load_head(run).energy is not None
    assert not (run / "results.json").exists()
    assert not (run / "head.json").exists()
    monkeypatch.undo()
    load_result(run)
    (run / "head.json").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: there + 1)
    load_head(run)
    assert not (run / "head.json").exists()


def test_a_phase_without_a_total_has_the_sum_of_its_families(runs: Path) -> None:
    result = analyse_ended(make_run(runs, marks=epochs(2, 10.0)))[0]
    phase = result.phases[0]
    parts = {name: energy for name, energy in phase.energy.items() if name != "measured"}
    found = result.phase_energy(replace(phase, energy=parts))
    assert found is not None
    assert found.value == pytest.approx(phase.energy["measured"].value)


def test_more_phases_than_are_listed_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.analysis.checks.MOST_PHASES", 2)
    result = analyse_ended(make_run(runs, marks=epochs(3, 10.0)))[0]
    (check,) = [c for c in result.checks if c.code == "too-many-phases"]
    assert check.numbers == {"marked": 4.0, "listed": 2.0}


def test_more_kinds_of_work_than_are_counted_are_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.analysis.marked_phases.MOST_KINDS", 2)
    times = [START + k * NS for k in range(1, 4)]
    marks = [{"t": t, "mark": "work", "from": t - 1, "amounts": {"samples": 1, f"kind{t}": 2}} for t in times]
    result = analyse_ended(make_run(runs, marks=marks))[0]
    assert result.work == {"samples": 3.0, f"kind{times[0]}": 2.0}
    (check,) = [c for c in result.checks if c.code == "too-many-kinds"]
    assert check.numbers["reports"] == 2.0


def test_a_head_that_was_made_while_a_file_changed_is_not_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, name="before")
    load_result(run)
    (run / results_file.HEAD_FILE).unlink()

    def make_late(result: Result) -> results_file.ResultHead:
        (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"name": "renamed"}))
        return make_head(result)

    monkeypatch.setattr(results_file, "make_head", make_late)
    assert load_head(run).name == "before"
    assert read_head(run) is None


@pytest.mark.parametrize(
    ("site", "columns"),
    [
        ({"price": "0.1 EUR"}, {"cost", "currency"}),
        ({"intensity": 45, "source": "us", "year": 2025}, {"co2e_kg", "intensity_g_per_kwh"}),
    ],
)
def test_a_query_has_the_columns_that_a_site_is_known_for(
    tmp_path: Path, site: dict[str, object], columns: set[str]
) -> None:
    run = make_run(tmp_path)
    head = make_head(load_result(run).with_site(read_site(site)))
    row = results_file._describe_footprint(head)
    assert columns == set(row) & {"cost", "currency", "co2e_kg", "intensity_g_per_kwh"}
