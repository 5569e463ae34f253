"""What an archive told is added to a closed run: once, whole, and beside what is there."""

from __future__ import annotations

import hashlib
import json
import math
import threading

import numpy as np
import pytest
from tests.analysis.folders import UTC, Folder, power

from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS
from joulelab.core.errors import StoreError
from joulelab.core.spec import Fetched, Spec, Stream
from joulelab.run.run_import import attach_archive
from joulelab.store.imported import ImportedMeter, attach_host
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

FACTS = {"job": "7", "nodes": ["node1"], "covers": ["node.dc"], "row": ".batch", "plugin": "pm_counters"}
T = np.arange(0, 20, 0.1)


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path).add("bmc", power("node.dc"), T, np.full(T.size, 500.0))
    return found.close(5.0, 15.0)


def told(joules=6000.0, start=4, end=16):
    spec = Spec("energy_j", "energy", "J", "counter", 1e-9)
    stream = Stream("job", "job", "job", 12.0, (spec,), device="7", model="slurm pm_counters")
    rows = [(UTC + start * NS, UTC + start * NS, (0.0,)), (UTC + end * NS, UTC + end * NS, (joules,))]
    problem = {"t": UTC + start * NS, "event": "problem", "meter": "slurm", "what": "its edges are wide"}
    return [Fetched(stream, rows, "n[1-2]", (problem,))]


def files(run):
    """Return every file of a run with its content."""
    return {str(p.relative_to(run)): hashlib.sha256(p.read_bytes()).hexdigest() for p in run.rglob("*") if p.is_file()}


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("sealed", [False, True])
def test_it_is_a_host_of_its_own_and_nothing_else_is_touched(folder, sealed):
    if sealed:
        seal_run(folder.path)
    load_result(folder.path)
    before = files(folder.path)
    attach_archive(folder.path, "slurm-7", told(), FACTS)
    after = files(folder.path)
    assert before.pop("results.json")
    assert before.pop("head.json")
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"slurm-7"}
    with open_run(folder.path) as run:
        assert run.hosts == ("node1", "slurm-7")
        (table,) = [t for t in run.tables() if t.host == "slurm-7"]
        assert (table.meter, [s.scope for s in table.streams]) == ("slurm", ["job"])
        series = run.series(table, "job")
        assert series.values["energy_j"].tolist() == [0.0, 6000.0]
        assert int(series.t1_ns[-1] - series.t0_ns[0]) == 12 * NS
        (event,) = [e for e in run.events() if e.get("event") == "attached"]
        assert {**FACTS, "host": "slurm-7"}.items() <= event.items()
        assert [e["what"] for e in run.events() if e.get("event") == "problem"] == ["its edges are wide"]
        assert {p.mono_ns - p.utc_ns for p in run.clock_pairs("slurm-7")} == {0}
        assert {p.boot_id for p in run.clock_pairs("slurm-7")} == {"imported"}
        assert not run.problems()
    found = load_result(folder.path).to_json()
    assert {s["scope"] for s in found["scopes"]} == {"node.dc", "job"}
    assert [g["scopes"] for g in found["groups"] if g["name"] == "measured"] == [["node.dc"]]
    seal_run(folder.path)
    assert not list(folder.path.glob("*/*.journal"))
    assert {s["scope"] for s in load_result(folder.path).to_json()["scopes"]} == {"node.dc", "job"}


def test_the_second_of_a_name_is_refused_and_another_name_is_not(folder):
    attach_archive(folder.path, "slurm-7", told(), FACTS)
    before = files(folder.path)
    with pytest.raises(StoreError, match="has slurm-7 already"):
        attach_archive(folder.path, "slurm-7", told(7000.0), FACTS)
    assert files(folder.path) == before
    attach_archive(folder.path, "slurm-7-again", told(7000.0), FACTS)
    with open_run(folder.path) as run:
        assert run.hosts == ("node1", "slurm-7", "slurm-7-again")


def test_of_many_at_once_one_succeeds_and_no_half_is_left(folder):
    refused, start = [], threading.Barrier(8)

    def one(k):
        start.wait()
        try:
            attach_archive(folder.path, "slurm-7", told(1000.0 + k), FACTS)
        except StoreError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    assert all("has slurm-7 already" in text for text in refused)
    assert sorted(p.name for p in folder.path.iterdir() if p.is_dir()) == ["node1", "slurm-7"]


def test_a_run_that_goes_on_or_was_cut_off_is_left_alone(tmp_path):
    live = Folder(tmp_path, live=True).add("bmc", power("node.dc"), T, np.full(T.size, 500.0))
    with pytest.raises(StoreError, match="not closed"):
        attach_archive(live.path, "slurm-7", told(), FACTS)
    killed = Folder(tmp_path).add("bmc", power("node.dc"), T, np.full(T.size, 500.0))
    with pytest.raises(StoreError, match="not closed"):
        attach_archive(killed.path, "slurm-7", told(), FACTS)
    assert not list(tmp_path.glob("*/slurm-7"))


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "a/b", ".hidden"])
def test_a_name_does_not_lead_outside(folder, name):
    with pytest.raises(StoreError):
        attach_archive(folder.path, name, told(), FACTS)


def test_what_cannot_be_written_leaves_nothing(folder):
    with pytest.raises(StoreError, match="nothing to add"):
        attach_archive(folder.path, "slurm-7", [], FACTS)
    bad = [Fetched(told()[0].stream, [(UTC, UTC - 1, (0.0,))])]
    with pytest.raises(StoreError, match="ends before it begins"):
        attach_archive(folder.path, "slurm-7", bad, FACTS)
    (folder.path / "slurm-8").write_text("in the way")
    with pytest.raises(StoreError, match="cannot add to the run"):
        attach_host(folder.path, "slurm-8", [ImportedMeter("slurm", told())], FACTS, (UTC, UTC + NS))
    assert sorted(p.name for p in folder.path.iterdir() if p.is_dir()) == ["node1"]


def test_facts_are_plain_and_what_was_not_read_is_a_gap(folder):
    gap = {"event": "gap", "meter": "slurm", "stream": "job", "reason": "0 J in 12 s", "t": UTC + 4 * NS}
    fetched = told(math.nan)[0]
    rows = [(t0, t1, (math.nan,)) for t0, t1, _ in fetched.rows]
    attach_archive(folder.path, "slurm-7", [Fetched(fetched.stream, rows, "", (gap,))], {**FACTS, "path": folder.path})
    lines = [json.loads(line) for line in (folder.path / "slurm-7" / "events.0.jsonl").read_text().splitlines()]
    assert next(e for e in lines if e["event"] == "attached")["path"] == str(folder.path)
    found = load_result(folder.path).to_json()
    assert [s["scope"] for s in found["scopes"]] == ["node.dc"]
    assert [g["reason"] for g in found["gaps"]] in ([], ["0 J in 12 s"])
