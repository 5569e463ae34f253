from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from tests.codes import raises_code
from tests.store.make import START_NS, close_run, gpus, make_run, ramp, write_rows

from joulelab.store.damage import CHANGED
from joulelab.store.journal import read_header
from joulelab.store.run_reader import Run, open_run
from joulelab.store.sample_tables import connect_database, read_sealed
from joulelab.store.seal import seal_run
from joulelab.store.verification import verify_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def large_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs end as large ones do: without hashes in `end.json`."""
    monkeypatch.setattr("joulelab.store.run_folder.HASHED_BYTES", -1)


STARTED_0 = {"event": "recorder-started", "segment": 0}
DIED_0 = {"event": "recorder-died", "segment": 0, "status": "signal 9"}
STOP = {"event": "stop", "reason": "asked"}
WORK = '{"t": 5000000001, "mark": "work", "from": 5000000000, "amounts": {"samples": 64}}\n'


def recorded(runs: Path, *events: dict[str, Any], closed: bool = True) -> Path:
    """Make a run with two streams of nvml, as a recorder with these events would have left it."""
    run = make_run(runs)
    write_rows(run, gpus(), ramp(100))
    add_events(run, "0", *events)
    if closed:
        close_run(run)
    return run


def add_events(run: Path, source: str, *events: dict[str, Any]) -> None:
    with (run / "node1" / f"events.{source}.jsonl").open("a") as file:
        file.writelines(json.dumps({"t": START_NS, **event}) + "\n" for event in events)


def opened(streams: int, meter: str = "nvml") -> dict[str, Any]:
    return {"event": "meter", "meter": meter, "status": "open", "streams": streams}


def lost(run: Path) -> list[Any]:
    """Return name, code and numbers of the files that are lost."""
    with open_run(run) as folder:
        return [(p.path.name, p.code, p.numbers) for p in damage(folder) if p.lost]


def damage(run: Run) -> Any:
    run.tables()
    return run.damage(run.events())


def test_a_run_that_has_all_its_streams_is_whole(tmp_path: Path) -> None:
    assert lost(recorded(tmp_path, opened(2))) == []


def test_a_meter_with_fewer_streams_than_it_was_opened_with_lacks_a_file(tmp_path: Path) -> None:
    run = recorded(tmp_path, opened(4), opened(1, "rapl"))
    missing = [
        ("nvml", "missing-streams", {"stored": 2, "wanted": 4}),
        ("rapl", "missing-streams", {"stored": 0, "wanted": 1}),
    ]
    assert lost(run) == missing
    seal_run(run)
    assert lost(run) == missing


def test_a_stream_that_never_answered_is_a_gap_and_no_missing_file(tmp_path: Path) -> None:
    gap = {"event": "gap", "meter": "nvml", "stream": "gpu2", "reason": "timed out", "from": START_NS}
    assert lost(recorded(tmp_path, opened(3), gap)) == []


def test_a_live_run_may_have_no_files_yet(tmp_path: Path) -> None:
    run = make_run(tmp_path, owner=None)
    add_events(run, "0", opened(2))
    (run / "node1" / "nvml.fast.0.journal").touch()  # its header is being written
    assert lost(run) == []


def test_a_meter_of_an_import_has_its_samples_on_any_host(tmp_path: Path) -> None:
    told = {"event": "meter", "meter": "nvml", "status": "open"}
    run = recorded(tmp_path)
    (run / "other").mkdir()
    (run / "other" / "events.0.jsonl").write_text(json.dumps({"t": START_NS, **told}) + "\n")
    assert lost(run) == []
    (run / "node1" / "nvml.fast.0.journal").unlink()
    assert len(lost(run)) == 1


def test_a_recorder_that_left_samples_has_left_events(tmp_path: Path) -> None:
    run = recorded(tmp_path, opened(2), STOP)
    add_events(run, "run", STARTED_0)
    assert lost(run) == []
    (run / "node1" / "events.0.jsonl").unlink()
    assert lost(run) == [("events.0.jsonl", "missing", {})]


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", ["marks/1-1.jsonl", "events.run.jsonl", "events.0.jsonl", "journal"])
def test_a_link_that_leads_nowhere_is_a_damaged_file(tmp_path: Path, name: str, sealed: bool) -> None:
    run = recorded(tmp_path, opened(2), STOP)
    add_events(run, "run", STARTED_0)
    (run / "node1" / "marks" / "1-1.jsonl").write_text(WORK)
    if sealed:
        seal_run(run)
    file = name.replace("journal", "nvml.fast.parquet" if sealed else "nvml.fast.0.journal")
    path = run / "node1" / file
    path.unlink()
    path.symlink_to("/nonexist")
    for _ in range(2):
        with open_run(run) as folder:
            folder.marks()
            found = [(p.path, p.code) for p in damage(folder) if p.lost]
            assert found in ([(path, "missing")], [(path, "unreadable")])
        seal_run(run)


def test_the_folder_of_the_host_that_started_the_run_is_needed(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run / "node1").rename(run / "node2")
    assert lost(run) == [("node1", "missing-host", {})]


def test_a_file_with_other_rows_than_it_was_written_with_is_damaged(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    seal_run(run)
    path = run / "node1" / "nvml.fast.parquet"
    text = json.dumps(json.loads(_document(path)), separators=(",", ":")).replace("'", "''")
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE t AS SELECT * FROM '{path}' LIMIT 40")
        con.execute(f"COPY t TO '{path}' (FORMAT parquet, KV_METADATA {{joulelab: '{text}'}})")
    assert lost(run) == [("nvml.fast.parquet", "other-file", {})]


def test_a_copy_of_another_table_is_damaged(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    seal_run(run)
    path = run / "node1" / "nvml.fast.parquet"
    copy = path.with_name("rapl.energy.parquet")
    copy.write_bytes(path.read_bytes())
    with connect_database() as con, raises_code("store.other-file"):
        read_sealed(copy, con)


def test_pages_that_cannot_be_decoded_make_the_file_damaged(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    seal_run(run)
    path = run / "node1" / "nvml.fast.parquet"
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    (run / "manifest.json").unlink()  # as joulelab 0.1.1 left it
    with open_run(run) as folder:
        (info,) = folder.tables()
        assert len(folder.series(info, "gpu0")) == 0
        assert [p.path for p in damage(folder)] == [path]
        assert path in [p.path for p in folder.problems()]


def test_a_journal_without_rows_was_cut(tmp_path: Path) -> None:
    run = recorded(tmp_path, opened(2))
    path = run / "node1" / "nvml.fast.0.journal"
    os.truncate(path, read_header(path).data_offset)
    assert lost(run) == [("nvml.fast", "no-rows", {})]


def test_damaged_lines_are_told_and_cost_no_file(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    with (run / "node1" / "events.0.jsonl").open("a") as file:
        file.write("{broken}\n")
    assert lost(run) == []
    with open_run(run) as folder:
        assert [p.code for p in damage(folder)] == ["bad-lines"]


def marked(runs: Path, *, closed: bool = True) -> tuple[Path, Path]:
    """Make a run with two lines of marks, and return it and the file of marks."""
    run = recorded(runs, closed=False)
    marks = run / "node1" / "marks" / "7-7.jsonl"
    marks.write_text(2 * WORK)
    if closed:
        close_run(run)
    return run, marks


def test_a_run_that_ended_has_whole_lines_of_marks(tmp_path: Path) -> None:
    run, marks = marked(tmp_path)
    assert lost(run) == []
    os.truncate(marks, len(WORK) + 20)
    assert lost(run) == [("7-7.jsonl", "cut-off", {"bytes": len(WORK) + 20})]


def test_marks_that_were_cut_between_lines_are_found_by_their_size(tmp_path: Path) -> None:
    run, marks = marked(tmp_path)
    os.truncate(marks, len(WORK))
    assert lost(run) == [("7-7.jsonl", "cut-off", {"bytes": len(WORK)})]
    marks.write_text(3 * WORK)  # of a process that outlived the run
    assert lost(run) == []


@pytest.mark.parametrize("sealed", [False, True])
def test_a_line_without_its_end_that_was_added_after_the_run_costs_nothing(tmp_path: Path, sealed: bool) -> None:
    run, marks = marked(tmp_path)
    if sealed:
        seal_run(run)
    size = marks.stat().st_size
    with marks.open("a") as file:
        file.write('{"t": 50')
    for _ in range(2):
        assert lost(run) == []
        with open_run(run) as folder:
            (found,) = damage(folder)
            assert (found.code, found.numbers) == ("torn-line", {"bytes": size + 8, "recorded": size})
            assert len(folder.marks()) == 2
        seal_run(run)


@pytest.mark.parametrize("hashed", [-1, 1 << 20])
def test_a_journal_that_grew_is_changed_with_and_without_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: int
) -> None:
    monkeypatch.setattr("joulelab.store.run_folder.HASHED_BYTES", hashed)
    run = recorded(tmp_path)
    journal = run / "node1" / "nvml.fast.0.journal"
    size = journal.stat().st_size
    with journal.open("ab") as file:
        file.write(b"x")
    assert lost(run) == [(journal.name, "changed", {"bytes": size + 1, "recorded": size})]
    assert verify_run(tmp_path, run.name).problems == ((f"node1/{journal.name}", CHANGED),)


def test_marks_that_were_recorded_and_are_missing_are_damage(tmp_path: Path) -> None:
    run, marks = marked(tmp_path)
    marks.unlink()
    assert lost(run) == [("7-7.jsonl", "missing", {})]
    marks.parent.rmdir()
    assert lost(run) == [("marks", "missing", {})]
    os.mkfifo(marks.parent)
    assert lost(run) == [("marks", "no-folder", {})]


def test_a_run_without_marks_may_lack_their_folder(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    (run / "node1" / "marks").rmdir()  # git and object stores keep no empty folder
    assert lost(run) == []


def test_a_killed_run_may_end_within_a_line_and_a_row(tmp_path: Path) -> None:
    run, marks = marked(tmp_path, closed=False)
    os.truncate(marks, len(WORK) + 20)
    journal = run / "node1" / "nvml.fast.0.journal"
    os.truncate(journal, journal.stat().st_size - 1)
    add_events(run, "run", STARTED_0)
    add_events(run, "0", opened(2))
    assert lost(run) == []


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("bytes_less", [1, 40])  # within a row, and a whole row
def test_a_journal_of_an_ended_run_that_was_cut_is_damaged(tmp_path: Path, sealed: bool, bytes_less: int) -> None:
    run = recorded(tmp_path)
    journal = run / "node1" / "nvml.fast.0.journal"
    os.truncate(journal, journal.stat().st_size - bytes_less)
    if sealed:
        seal_run(run)
    assert lost(run) == [("nvml.fast.0.journal", "cut-off", {"rows": 99})]


def test_a_recorder_that_was_killed_leaves_a_torn_row_and_no_stop(tmp_path: Path) -> None:
    run = recorded(tmp_path, opened(2), closed=False)
    journal = run / "node1" / "nvml.fast.0.journal"
    os.truncate(journal, journal.stat().st_size - 1)
    with (run / "node1" / "events.0.jsonl").open("a") as file:
        file.write('{"t": 50')
    add_events(run, "run", STARTED_0, DIED_0)
    close_run(run)
    assert lost(run) == []


def test_events_of_an_ended_run_end_with_a_whole_line_and_stop(tmp_path: Path) -> None:
    run = recorded(tmp_path, opened(2), STOP)
    add_events(run, "run", STARTED_0)
    events = run / "node1" / "events.0.jsonl"
    size = events.stat().st_size
    os.truncate(events, size - 4)
    assert lost(run) == [("events.0.jsonl", "cut-off", {"bytes": size - 4})]
    (run / "end.json").write_text(json.dumps({**json.loads((run / "end.json").read_text()), "files": None}))
    assert lost(run) == [("events.0.jsonl", "cut-off", {"bytes": size - 4})]
    events.write_text(json.dumps({"t": START_NS, **opened(2)}) + "\n")
    assert lost(run) == [("events.0.jsonl", "no-stop", {})]


def test_a_node_that_was_lost_may_have_left_files_that_end_anywhere(tmp_path: Path) -> None:
    run = recorded(tmp_path, closed=False)
    journal = write_rows(run, gpus(), ramp(10), host="node2")
    os.truncate(journal, journal.stat().st_size - 1)
    (run / "node2" / "events.node.jsonl").write_text(json.dumps({"t": START_NS, **STARTED_0}) + "\n")
    (run / "node2" / "events.0.jsonl").write_text(json.dumps({"t": START_NS, **opened(2)}) + "\n{")
    close_run(run)
    assert lost(run) == []
    os.truncate(journal, journal.stat().st_size - 40)
    assert lost(run) == [("nvml.fast.0.journal", "cut-off", {"rows": 8})]


def _document(path: Path) -> str:
    query = f"SELECT decode(value) FROM parquet_kv_metadata('{path}') WHERE decode(key) = 'joulelab'"
    with duckdb.connect() as con:
        ((text,),) = con.execute(query).fetchall()
    return str(text)
