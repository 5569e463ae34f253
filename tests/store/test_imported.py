from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.codes import raises_code
from tests.rows import every_row

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.store.imported import ImportedMeter, ImportedPhase, RunImport, import_run, name_meters
from joulelab.store.run_folder import RunState, list_runs
from joulelab.store.run_query import run_query
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_714_564_800 * NS
ACCURACY = Accuracy("datasheet", gain=0.01, shared="pdu")


def power(scope: str, watts: float, *, host: str = "", count: int = 101, name: str = "") -> Fetched:
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=ACCURACY)
    stream = Stream(name or scope, "power", scope, 1.0, (spec,))
    rows = [(T0 + k * NS, T0 + k * NS, (watts,)) for k in range(count)]
    return Fetched(stream, rows, host)


def wanted(*parts: ImportedMeter, **more: Any) -> RunImport:
    about = {"source": "csv", "archives": [{"file": "power.csv", "sha256": "0" * 64}]}
    base = RunImport(parts, T0, T0 + 100 * NS, about, ["joulelab", "import", "csv", "power.csv"])
    return replace(base, **more)


def test_a_run_of_what_was_measured_elsewhere(tmp_path: Path) -> None:
    run = import_run(tmp_path, wanted(ImportedMeter("pdu1", [power("node.ac", 500.0)]), host="node7", name="elsewhere"))
    seal_run(run)
    with open_run(run) as opened:
        assert opened.state is RunState.CLOSED
        assert opened.meta["imported"]["archives"][0]["file"] == "power.csv"
        assert opened.end is not None
        assert (opened.end["outcome"], opened.end["start_ns"], opened.end["end_ns"]) == ("imported", T0, T0 + 100 * NS)
        pairs = opened.clock_pairs()
        assert [(p.mono_ns, p.utc_ns) for p in pairs] == [(T0, T0), (T0 + 100 * NS, T0 + 100 * NS)]
        assert not opened.problems()
        result = analyse_run(opened)
    assert (result.outcome, result.state, result.host, result.name) == ("imported", "closed", "node7", "elsewhere")
    assert result.start_utc == "2024-05-01T12:00:00.000+00:00"
    assert result.energy is not None
    assert result.energy.value == pytest.approx(50_000, rel=1e-9)
    assert run.name.startswith("20240501-120000-")


def test_hosts_meters_phases_and_idle(tmp_path: Path) -> None:
    first, second = power("node.ac", 500.0, host="a"), power("node.ac", 300.0, host="b")
    other = power("node.ac", 510.0, host="a")
    phases = [ImportedPhase("train", T0 + 20 * NS, T0 + 60 * NS), ImportedPhase("test", T0 + 60 * NS, T0 + 80 * NS)]
    what = wanted(
        ImportedMeter("pdu1", [first, second]), ImportedMeter("bmc", [other]), phases=phases, idle=(T0, T0 + 10 * NS)
    )
    run = import_run(tmp_path, replace(what, start_ns=T0 + 10 * NS))
    with open_run(run) as opened:
        assert opened.hosts == ("a", "b")
        assert {(t.host, t.meter) for t in opened.tables()} == {("a", "pdu1"), ("b", "pdu1"), ("a", "bmc")}
        assert {p.mono_ns - p.utc_ns for p in opened.clock_pairs("b")} == {0}
        result = analyse_run(opened)
    assert [(p.name, p.start_s, p.duration_s) for p in result.phases] == [("train", 10.0, 40.0), ("test", 50.0, 20.0)]
    assert result.phases[0].energy["node.ac"].value == pytest.approx(800 * 40, rel=1e-6)
    on_a = next(s for s in result.scopes if s.host == "a")
    assert len(on_a.others) == 1
    assert on_a.idle_w is not None
    assert on_a.idle_w.value == pytest.approx(500.0, rel=0.03)


def test_gaps_and_problems_are_events_of_the_run(tmp_path: Path) -> None:
    gap = {"t": T0 + NS, "event": "gap", "meter": "file", "stream": "node.ac", "from": T0 + NS, "reason": "no rows"}
    end = {"t": T0 + 9 * NS, "event": "gap-end", "meter": "file", "stream": "node.ac", "to": T0 + 9 * NS}
    told = {"t": T0, "event": "problem", "meter": "file", "what": "3 rows are left out"}
    fetched = replace(power("node.ac", 500.0), events=[told, gap, end])
    run = import_run(tmp_path, wanted(ImportedMeter("pdu1", [fetched])))
    with open_run(run) as opened:
        events = [e for e in opened.events() if e["event"] in ("gap", "problem")]
        assert [(e["event"], e["meter"]) for e in events] == [("problem", "pdu1"), ("gap", "pdu1")]
        (found,) = analyse_run(opened).gaps
    assert (found.meter, found.from_ns, found.to_ns, found.reason) == ("pdu1", T0 + NS, T0 + 9 * NS, "no rows")


def test_queries_find_it_among_the_others(tmp_path: Path) -> None:
    run = import_run(tmp_path, wanted(ImportedMeter("pdu1", [power("node.ac", 500.0)]), labels={"rack": "7"}))
    seal_run(run)
    _, rows = run_query(tmp_path, "SELECT run, outcome, state, duration_s FROM runs")
    assert [tuple(row) for row in rows] == [(run.name, "imported", "closed", 100.0)]
    assert list_runs(tmp_path) == [run]


@every_row(
    ("what", "code"),
    [
        (wanted(ImportedMeter("pdu1", [power("node.ac", 1.0)]), end_ns=T0), "store.no-interval"),
        (wanted(ImportedMeter("pdu 1", [power("node.ac", 1.0)])), "store.bad-name"),
        (wanted(ImportedMeter("pdu1", [power("node.ac", 1.0), power("node.ac", 2.0)])), "store.name-clash"),
        (
            wanted(ImportedMeter("pdu1", [replace(power("node.ac", 1.0), rows=[(T0, T0 - 1, (1.0,))])])),
            "store.bad-times",
        ),
        (wanted(ImportedMeter("pdu1", [replace(power("node.ac", 1.0), rows=[(T0, T0, (1.0, 2.0))])])), "store.bad-row"),
        (wanted(ImportedMeter("pdu1", [power("node.ac", 1.0)]), host="../up"), "store.bad-name"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, what: RunImport, code: str) -> None:
    with raises_code(code):
        import_run(tmp_path, what)
    assert not [p for p in tmp_path.glob("*") if (p / "run.json").exists()]


def test_names_of_meters_fit_files_and_differ() -> None:
    assert name_meters(["pdu 1", "pdu/1", "", "é"]) == ["pdu-1", "pdu-1-2", "file", "file-2"]


def test_a_host_that_is_named_nowhere(tmp_path: Path) -> None:
    run = import_run(tmp_path, wanted(ImportedMeter("pdu1", [power("node.ac", 500.0)])))
    assert json.loads((run / "run.json").read_text())["host"] == "imported"
