"""The index: what is new, changed, gone or broken is seen; what is not is not read again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import make_run
from tests.study.bench import make_study, place
from tests.web.conftest import END, started

from joulelab.report.cache import rows_of
from joulelab.store.folder import end_run, list_runs, owner
from joulelab.web import index as index_module
from joulelab.web import studies as studies_module
from joulelab.web.index import Index, Snapshot
from joulelab.web.studies import StudyLooker, _planned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.web.conftest import Asked

    from joulelab.web.entries import Entry, Place


def until(index: Index, true: Callable[[Snapshot], bool]) -> Snapshot:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if true(index.snapshot()):
            return index.snapshot()
        time.sleep(0.02)
    raise AssertionError([(e.id, e.status, e.problem) for e in index.snapshot().entries])


def small(runs: Path, **more: object) -> Path:
    return make_run(runs, seconds=1.0, gpus=1, cpus=0, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LOOK_S", 0.03)
    monkeypatch.setattr(index_module, "WHOLE_S", 0.1)
    monkeypatch.setattr(index_module, "LIVE_S", 0.1)


@pytest.mark.system
def test_every_kind_of_run_has_its_status(served: Asked) -> None:
    by_id, ids = served.index.snapshot().by_id, served.stores.ids
    statuses = {name: by_id[run].status for name, run in ids.items()}
    assert statuses == {
        "first": "ok",
        "second": "ok",
        "live": "live",
        "killed": "killed",
        "failed": "failed",
        "twin": "ok",
        "none": "ok",
        "hostile": "ok",
        "long": "ok",
        "torn": "broken",
        "empty": "broken",
        "link": "broken",
        "inner": "broken",
    }
    assert "leads out" in by_id[ids["link"]].problem
    assert "leads out" in by_id[ids["inner"]].problem
    assert by_id[ids["twin"]].twin == "h100x8"
    assert by_id[ids["twin"]].workload == "burn"
    assert by_id[ids["none"]].energy is None
    assert by_id[ids["none"]].hosts == ("node1",)
    assert all(str(served.stores.root) not in entry.problem for entry in by_id.values())


@pytest.mark.system
def test_what_is_listed_is_what_ls_tells(served: Asked) -> None:
    for path in list_runs(served.stores.runs):
        entry = served.index.snapshot().by_id[path.name]
        if entry.status in ("broken", "live"):
            continue
        listed = rows_of(path)["listed"]
        assert entry.duration_s == listed["duration_s"]
        assert entry.start_utc == listed["start_utc"]
        told = listed["energy"] and {key: listed["energy"][key] for key in ("value", "expanded")}
        assert entry.energy == told


@pytest.mark.system
def test_studies_and_the_runs_of_their_slots_are_found(served: Asked) -> None:
    snapshot = served.index.snapshot()
    sweep, torn = snapshot.study_by_id["sweep"], snapshot.study_by_id["torn"]
    assert (sweep.slots, sweep.planned, sweep.status) == ({"done": 1, "failed": 1}, 3, "open")
    assert torn.status == "broken"
    (run,) = [e for e in snapshot.entries if e.study == "sweep" and e.name == "in a study"]
    assert run.id.startswith(f"{run.path.name}@sweep.{run.cell}.r01")
    assert snapshot.find(run.path.name) == [run]


@pytest.mark.parametrize(
    ("data", "planned"),
    [
        ({"repeats": 3, "warmup": 1}, 8),  # of a sweep all cells are there
        ({"repeats": 3, "warmup": 1, "cells": 9}, 8),
        ({"file": "a.toml", "cells": 5, "repeats": 2}, 10),
        ({"file": "a.toml", "repeats": 2}, None),
    ],
)
def test_slots_are_counted_before_they_are_there(data: dict[str, Any], planned: int | None) -> None:
    assert _planned(data, 2) == planned


@pytest.mark.system
def test_runs_come_change_and_go(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with Index(runs, None) as index:
        assert index.snapshot().entries == ()
        first = small(runs, name="one", started=started(1))
        until(index, lambda s: first.name in s.by_id and s.by_id[first.name].status == "ok" and s.entries[0].told)
        live = small(runs, name="two", state="live", started=started(0))
        seen = until(index, lambda s: live.name in s.by_id and s.by_id[live.name].energy is not None)
        assert seen.by_id[live.name].status == "live"
        assert [e.id for e in seen.entries] == [live.name, first.name]
        end_run(live, END | {"start_ns": 100 * 10**9, "end_ns": 101 * 10**9})
        until(index, lambda s: s.by_id[live.name].status == "ok" and s.by_id[live.name].told)
        shutil.rmtree(first)
        until(index, lambda s: first.name not in s.by_id)
        shutil.rmtree(runs)
        until(index, lambda s: not s.entries)


@pytest.mark.system
def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [small(tmp_path, started=started(hours)) for hours in range(3)]
    for path in made:
        rows_of(path)
    read: list[str] = []
    quick = index_module.quick_entry

    def noted(place: Place) -> Entry:
        if place.root == tmp_path.resolve():
            read.append(place.id)
        return quick(place)

    monkeypatch.setattr(index_module, "quick_entry", noted)
    index = Index(tmp_path, None)
    index.look()
    assert read == sorted((path.name for path in made), reverse=True)  # the newest first
    for _ in range(3):
        time.sleep(0.11)
        index.look()
    assert len(read) == 3
    (made[1] / "rows.json").unlink()
    time.sleep(0.11)
    index.look()
    assert read[3:] == [made[1].name]


@pytest.mark.system
def test_a_killed_owner_is_noticed(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    run = small(tmp_path, state="live", owner=owner(process.pid))
    with Index(tmp_path, None) as index:
        until(index, lambda s: bool(s.entries) and s.entries[0].status == "live")
        process.kill()
        process.wait()
        until(index, lambda s: s.by_id[run.name].status == "killed" and s.by_id[run.name].told)


@pytest.mark.system
def test_a_killed_owner_leaves_no_trace_and_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LIVE_S", 1000.0)
    process = subprocess.Popen(["sleep", "60"])
    run = small(tmp_path, state="live", owner=owner(process.pid))
    index = Index(tmp_path, None)
    index.look()
    assert index.work()
    assert not index.work()  # not again so soon
    process.kill()
    process.wait()
    index.look()
    assert index.snapshot().by_id[run.name].status == "killed"
    assert index.work()  # one that has ended does not wait
    assert index.snapshot().by_id[run.name].told


def test_what_is_asked_for_is_read_first_then_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(tmp_path, started=started(0))
    for k in range(4):
        shutil.copytree(first, tmp_path / f"20261101-00000{k}-0001")
    names = sorted((path.name for path in tmp_path.iterdir()), reverse=True)
    read: list[str] = []
    index = Index(tmp_path, None)

    def noted(place: Place) -> Entry:
        if place.root != tmp_path.resolve():  # of another test's server
            return real(place)
        read.append(place.id)
        if len(read) == 2:  # a page is asked for while runs are read
            index.ask_for([index.snapshot().by_id[name] for name in names[3:]])
        return real(place)

    for name, act in (("quick_entry", index.look), ("full_entry", index.work)):
        real = getattr(index_module, name)
        read.clear()
        index._asked = ()
        monkeypatch.setattr(index_module, name, noted)
        monkeypatch.setattr(index_module, "SHOW_S", 60.0)
        act()
        assert read == [names[k] for k in (0, 1, 3, 4, 2)]
    index.ask_for(index.settled().entries)
    assert index._asked == tuple(names[3:])  # what is known need not be read


def test_work_comes_back_soon_for_what_has_come_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "SHOW_S", 0.0)
    old = small(tmp_path, started=started(9))
    older = shutil.copytree(old, tmp_path / "20261101-000000-0001")
    index = Index(tmp_path, None)
    index.look()
    assert index.work()
    new = shutil.copytree(older, tmp_path / "20261201-000000-0001")
    index.look()
    assert index.work()
    told = {entry.id: entry.told for entry in index.snapshot().entries}
    assert told == {old.name: True, new.name: True, older.name: False}


@pytest.mark.system
def test_what_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = {"look": 3, "work": 3}
    index = Index(tmp_path, None)

    def failing(name: str) -> Callable[[], object]:
        real = getattr(index, name)

        def act() -> object:
            if fails[name]:
                fails[name] -= 1
                raise RuntimeError(f"{name} of an odd disk")
            return real()

        return act

    for name in fails:
        monkeypatch.setattr(index, name, failing(name))
    run = small(tmp_path)
    with index:
        until(index, lambda s: run.name in s.by_id and s.by_id[run.name].told)
    told = [record.exc_text or str(record.exc_info) for record in caplog.records if record.name == "joulelab.web"]
    assert len(told) == 2
    assert all(any(f"{name} of an odd disk" in text for text in told) for name in fails)


def test_a_slot_that_is_made_anew_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path / "sweep", "true", "{n}", knobs={"n": "1,2"})
    slot = study.slot(next(iter(study.cells())), 1)
    place(slot, {"ticks": 1}, END)
    looks: list[Path] = []
    look = studies_module.look
    monkeypatch.setattr(studies_module, "look", lambda path: looks.append(path) or look(path))
    looker = StudyLooker(tmp_path)
    for _ in range(2):
        assert looker.look()[0].slots == {"done": 1}
    assert looks == [slot]
    shutil.rmtree(slot)
    place(slot, {"ticks": 1}, END | {"exit_code": 3})
    assert looker.look()[0].slots == {"failed": 1}


@pytest.mark.system
def test_a_folder_that_is_being_made_is_not_broken_yet(tmp_path: Path) -> None:
    run = tmp_path / "20261101-000000-0001"
    run.mkdir()
    index = Index(tmp_path, None)
    index.look()
    assert index.snapshot().entries[0].status == "reading"
    os.utime(run, (1, 1))
    time.sleep(0.11)
    index.look()
    assert index.snapshot().entries[0].status == "broken"


ODD = [
    ("duration_s", "long"),
    ("energy", {"value": "x", "expanded": None}),
    ("start_utc", "now"),
    ("labels", [1]),
    ("command", 5),
    ("duration_s", 1e999),
    ("energy", {"value": None}),
    ("state", None),
]


def test_odd_caches_break_their_own_run_only(tmp_path: Path) -> None:
    good = small(tmp_path, started=started(0))
    rows = rows_of(good)
    for hours, (key, value) in enumerate(ODD, 1):
        odd = shutil.copytree(good, tmp_path / f"20261114-{hours:02d}0000-0000", copy_function=shutil.copy2)
        (odd / "rows.json").write_text(json.dumps({**rows, "listed": {**rows["listed"], key: value}}))
    with Index(tmp_path, None) as index:
        found = index.settled()
        statuses = {entry.id: entry.status for entry in found.entries}
        assert statuses.pop(good.name) == "ok"
        assert list(statuses.values()) == ["broken"] * len(ODD)
        for order in ("start", "energy", "time", "name", "status", "host"):
            assert len(found.ordered(order)) == len(ODD) + 1


def test_unreadable_folders_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(tmp_path)
    import joulelab.web.entries as entries

    def refused(place: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(entries, "check_inside", refused)
    index = Index(tmp_path, None)
    index.look()
    assert index.snapshot().by_id[run.name].problem == "PermissionError: Permission denied"


def test_a_missing_store_is_an_empty_one(tmp_path: Path) -> None:
    index = Index(tmp_path / "none", tmp_path / "nor")
    index.look()
    assert index.snapshot().entries == index.snapshot().studies == ()
