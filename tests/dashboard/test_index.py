"""The index: what is new, changed, gone or broken is seen; what is not is not read again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.dashboard.conftest import END, Driven, started
from tests.report.synthetic import NOBODY, make_run
from tests.study.bench import make_study, place
from tests.waiting import until

from joulelab.analysis.results_file import load_head
from joulelab.dashboard import index as index_module
from joulelab.dashboard import run_entries as entries_module
from joulelab.dashboard import studies as studies_module
from joulelab.dashboard.index import LIVE_S, LOOK_S, MOST_FAILURES, WHOLE_S, Index
from joulelab.dashboard.run_search import find, parse
from joulelab.dashboard.run_table import ORDERS
from joulelab.dashboard.studies import StudyLooker, _planned
from joulelab.store.run_folder import end_run, identify_owner, list_runs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboard.conftest import Stores

    from joulelab.dashboard.run_entries import Entry, Place

pytestmark = pytest.mark.system  # pure, and slow


def small(runs: Path, **more: object) -> Path:
    return make_run(runs, seconds=1.0, gpus=1, cpus=0, **more)  # type: ignore[arg-type]


def change_in_place(path: Path, **changes: object) -> None:
    """Change a JSON file without a trace in the time of its folder."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_kind_of_run_has_its_status(stores: Stores, indexed: Index) -> None:
    by_id, ids = indexed.snapshot().by_id, stores.ids
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
    assert all(str(stores.root) not in entry.problem for entry in by_id.values())


def test_what_is_listed_is_what_ls_tells(stores: Stores, indexed: Index) -> None:
    for path in list_runs(stores.runs):
        entry = indexed.snapshot().by_id[path.name]
        if entry.status in ("broken", "live"):
            continue
        listed = load_head(path).to_json()
        assert entry.duration_s == listed["duration_s"]
        assert entry.start_utc == listed["start_utc"]
        if entry.energy is None:
            assert listed["energy"] is None
            continue
        assert entry.energy.value == listed["energy"]["value"]
        assert entry.energy.expanded == pytest.approx(listed["energy"]["expanded"])


@pytest.mark.system  # pure, and slow
def test_studies_and_the_runs_of_their_slots_are_found(indexed: Index) -> None:
    snapshot = indexed.snapshot()
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


def test_runs_come_change_and_go(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    driven = Driven(runs)
    assert driven.go_on().entries == ()
    first = small(runs, name="one", started=started(1))
    (entry,) = driven.go_on().entries
    assert (entry.id, entry.status, entry.is_complete) == (first.name, "ok", True)
    live = small(runs, name="two", state="live", started=started(0))
    seen = driven.go_on()
    assert [(e.id, e.status) for e in seen.entries] == [(live.name, "live"), (first.name, "ok")]
    assert seen.by_id[live.name].energy is not None
    end_run(live, END | {"start_ns": 100 * 10**9, "end_ns": 101 * 10**9})
    ended = driven.go_on().by_id[live.name]
    assert (ended.status, ended.is_complete) == ("ok", True)
    shutil.rmtree(first)
    assert first.name not in driven.go_on().by_id
    shutil.rmtree(runs)
    assert not driven.go_on().entries


@pytest.mark.system
def test_threads_see_runs_come_and_go_and_a_killed_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "WHOLE_S", "LIVE_S"):
        monkeypatch.setattr(index_module, name, 0.05)
    runs = tmp_path / "runs"
    process = subprocess.Popen(["sleep", "600"])
    with Index(runs, None) as index:
        assert index.snapshot().entries == ()
        first = small(runs, started=started(1))
        until(lambda: index.snapshot().by_id.get(first.name) and index.settled().by_id[first.name].status == "ok")
        live = small(runs, state="live", owner=identify_owner(process.pid))
        seen = until(lambda: (e := index.snapshot().by_id.get(live.name)) and e.energy and e, "the energy so far")
        assert seen.status == "live"
        process.kill()
        process.wait()
        until(lambda: index.snapshot().by_id[live.name].status == "killed" and index.settled(), "the killed owner")
        shutil.rmtree(first)
        until(lambda: first.name not in index.snapshot().by_id, "what is gone")


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [small(tmp_path, started=started(0))]
    made += [shutil.copytree(made[0], tmp_path / f"20261101-00000{k}-0001") for k in range(2)]
    for path in made:
        load_head(path)
    read: list[str] = []
    quick = index_module.read_entry

    def noted(place: Place, *site: Any) -> Entry:
        if place.root == tmp_path.resolve():
            read.append(place.id)
        return quick(place, *site)

    monkeypatch.setattr(index_module, "read_entry", noted)
    driven = Driven(tmp_path)
    for _ in range(4):
        driven.go_on(WHOLE_S)
    assert read == sorted((path.name for path in made), reverse=True)  # the newest first
    (made[1] / "head.json").unlink()
    driven.go_on(WHOLE_S)
    assert read[3:] == [made[1].name]


@pytest.mark.parametrize("name", ["run.json", "end.json"])
def test_a_file_that_is_half_written_does_not_break_a_run(tmp_path: Path, name: str) -> None:
    run = small(tmp_path, state="live" if name == "run.json" else "closed")
    whole = (run / name).read_text()
    (run / name).write_text(whole[:20])
    driven = Driven(tmp_path)
    assert driven.go_on().by_id[run.name].status == "reading"
    (run / name).write_text(whole)
    assert driven.go_on().by_id[run.name].status == ("live" if name == "run.json" else "ok")


def test_a_live_run_that_fails_to_read_once_stays_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(tmp_path, state="live")
    driven = Driven(tmp_path)
    before = driven.go_on().by_id[run.name]
    refuse(monkeypatch, tmp_path, times=2)  # of the check whether its owner lives, and of what that leads to
    after = driven.go_on(LIVE_S).by_id[run.name]
    assert (after.status, after.energy) == ("live", before.energy)
    driven.go_on()
    assert driven.go_on(LIVE_S).by_id[run.name].problem == ""


def test_a_live_run_that_cannot_be_read_is_broken_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small(tmp_path, state="live")
    driven = Driven(tmp_path)
    refuse(monkeypatch, tmp_path, times=MOST_FAILURES + 2)
    found = [driven.go_on(LIVE_S).by_id[run.name] for _ in range(MOST_FAILURES + 3)]
    assert [entry.status for entry in found] == ["reading", "reading", "broken", "broken", "broken", "live"]
    assert found[3].problem == "PermissionError: Permission denied"


def test_a_run_that_cannot_be_read_twice_is_broken_until_its_files_change(tmp_path: Path) -> None:
    run = small(tmp_path)
    whole = (run / "run.json").read_text()
    (run / "run.json").write_text("{")
    driven = Driven(tmp_path)
    found = [driven.go_on().by_id[run.name] for _ in range(2)]
    assert [(entry.status, entry.is_complete) for entry in found] == [("reading", False), ("broken", True)]
    assert found[1].problem == "run.json is damaged (not JSON)"
    (run / "run.json").write_text("{]")
    assert not driven.go_on(WHOLE_S).by_id[run.name].is_complete  # something changes it
    (run / "run.json").write_text(whole)
    assert driven.go_on(WHOLE_S).by_id[run.name].status == "ok"


def test_a_run_that_was_known_is_read_again_soon_where_it_is_half_written(tmp_path: Path) -> None:
    run = small(tmp_path)
    driven = Driven(tmp_path)
    assert driven.go_on().by_id[run.name].is_complete
    whole = (run / "end.json").read_text()
    (run / "head.json").unlink()
    (run / "results.json").unlink()
    (run / "end.json").write_text(whole[:9])
    assert (driven.go_on(WHOLE_S).by_id[run.name].status, driven.waits_for(run)) == ("ok", True)
    (run / "end.json").write_text(whole)
    assert (driven.go_on().by_id[run.name].status, driven.waits_for(run)) == ("ok", False)


def refuse(monkeypatch: pytest.MonkeyPatch, root: Path, times: int) -> None:
    """Let reading fail so often below a folder; other tests' servers go on."""
    check, left = entries_module.check_inside, [times]

    def refused(place: Place) -> None:
        if place.root == root.resolve() and left[0]:
            left[0] -= 1
            raise PermissionError(13, "Permission denied")
        check(place)

    monkeypatch.setattr(entries_module, "check_inside", refused)


def test_a_killed_owner_leaves_no_trace_and_is_looked_for(tmp_path: Path) -> None:
    run = small(tmp_path, state="live")
    driven = Driven(tmp_path)
    index = driven.index
    driven.now += WHOLE_S
    index.look()
    assert index.work()
    assert not index.work()  # not again so soon
    change_in_place(run / "run.json", owner=NOBODY)
    driven.now += LOOK_S
    index.look()
    assert index.snapshot().by_id[run.name].status == "killed"
    assert index.work()  # one that has ended does not wait
    assert index.snapshot().by_id[run.name].is_complete


def test_what_is_asked_for_is_read_first_then_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(tmp_path, started=started(0))
    for k in range(4):
        shutil.copytree(first, tmp_path / f"20261101-00000{k}-0001")
    names = sorted((path.name for path in tmp_path.iterdir()), reverse=True)
    read: list[str] = []
    index = Driven(tmp_path).index

    def noted(place: Place, *site: Any) -> Entry:
        if place.root != tmp_path.resolve():  # of another test's server
            return real(place, *site)
        read.append(place.id)
        if len(read) == 2:  # a page is asked for while runs are read
            index.ask_for([index.snapshot().by_id[name] for name in names[3:]])
        return real(place, *site)

    for name, act in (("read_entry", index.look), ("load_entry", index.work)):
        real = getattr(index_module, name)
        read.clear()
        index._asked = ()
        monkeypatch.setattr(index_module, name, noted)
        act()
        assert read == [names[k] for k in (0, 1, 3, 4, 2)]
    index.ask_for(index.settled().entries)
    assert index._asked == tuple(names[3:])  # what is known need not be read


def test_work_comes_back_soon_for_what_has_come_meanwhile(tmp_path: Path) -> None:
    old = small(tmp_path, started=started(9))
    older = shutil.copytree(old, tmp_path / "20261101-000000-0001")
    driven = Driven(tmp_path, tick_s=1.0)  # each run takes longer than work may
    index = driven.index
    index.look()
    assert index.work()
    new = shutil.copytree(older, tmp_path / "20261201-000000-0001")
    index.look()
    assert index.work()
    told = {entry.id: entry.is_complete for entry in index.snapshot().entries}
    assert told == {old.name: True, new.name: True, older.name: False}


def test_what_fails_is_told_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index, at_once = Index(tmp_path, None), threading.Event()
    at_once.set()
    outcomes = ["an odd disk", "an odd disk", "another", "", "another", ""]

    def act() -> bool:
        if said := outcomes.pop(0):
            raise RuntimeError(said)
        if not outcomes:
            index._over.set()
        return False

    index._go_on(act, at_once)
    told = [str(record.exc_info) for record in caplog.records if record.name == "joulelab.dashboard"]
    assert [("an odd disk" in text, "another" in text) for text in told] == [
        (True, False),
        (False, True),
        (False, True),
    ]


def test_a_slot_that_is_made_anew_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path / "sweep", "true", "{n}", knobs={"n": "1,2"})
    slot = study.get_slot_folder(next(iter(study.read_cells())), 1)
    place(slot, {"ticks": 1}, END)
    looks: list[Path] = []
    look = studies_module.read_slot
    monkeypatch.setattr(studies_module, "read_slot", lambda path: looks.append(path) or look(path))
    looker = StudyLooker(tmp_path)
    for _ in range(2):
        assert looker.look()[0].slots == {"done": 1}
    assert [path for path in looks if path.is_relative_to(tmp_path)] == [slot]
    shutil.rmtree(slot)
    place(slot, {"ticks": 1}, END | {"exit_code": 3})
    os.utime(slot, ns=(1, 1))  # a coarse clock may give it the time of the old one
    assert looker.look()[0].slots == {"failed": 1}


def test_a_folder_that_is_being_made_is_not_broken_yet(tmp_path: Path) -> None:
    run = tmp_path / "20261101-000000-0001"
    run.mkdir()
    os.utime(run, (2**33, 2**33))  # however slowly this test runs, it is young
    driven = Driven(tmp_path)
    for _ in range(MOST_FAILURES + 1):
        assert driven.go_on().entries[0].status == "reading"
    os.utime(run, (1, 1))
    assert driven.go_on().entries[0].status == "broken"


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


def test_odd_caches_are_made_again(tmp_path: Path) -> None:
    good = small(tmp_path, started=started(0))
    load_head(good)
    stored = json.loads((good / "head.json").read_text())
    for hours, (key, value) in enumerate(ODD, 1):
        odd = shutil.copytree(good, tmp_path / f"20261114-{hours:02d}0000-0000", copy_function=shutil.copy2)
        (odd / "head.json").write_text(json.dumps({**stored, "head": {**stored["head"], key: value}}))
    driven = Driven(tmp_path)
    driven.go_on()
    found = driven.go_on()
    statuses = {entry.id: entry.status for entry in found.entries}
    assert statuses.pop(good.name) == "ok"
    assert list(statuses.values()) == ["ok"] * len(ODD), "what was changed by hand is made again"
    for order in ORDERS:
        assert len(find(found, parse([("sort", order)])).entries) == len(ODD) + 1


def test_a_missing_store_is_an_empty_one(tmp_path: Path) -> None:
    index = Index(tmp_path / "none", tmp_path / "nor")
    index.look()
    assert index.snapshot().entries == index.snapshot().studies == ()
