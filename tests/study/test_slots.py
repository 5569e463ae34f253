from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import every_row
from tests.study.bench import make_study, only_cell, place

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, NewerSchema, StoreError
from joulelab.core.process_identity import identify_process
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.folder import Plan, Settings, check_name, join_study, make_default_name, open_study
from joulelab.study.knobs import Knob
from joulelab.study.matrix import Workload, make_cells
from joulelab.study.slots import (
    CLAIM,
    State,
    claim_slot,
    is_claim_stale,
    list_claimed_slots,
    note_stop,
    read_slot,
    remove_remnants,
    set_slot_aside,
)
from joulelab.study.study_file import read_study, write_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.folder import Study

GONE = {"ticks": 1}
EXIT: dict[str, Any] = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path / "s")


@pytest.fixture
def slot(study: Study) -> Path:
    return study.get_slot_folder(only_cell(study), 1)


@pytest.mark.parametrize(
    ("claim", "end", "stopped", "state", "why"),
    [
        ({}, None, {}, State.LIVE, "it runs"),
        (GONE, None, {}, State.STALE, ""),
        ({}, EXIT, {}, State.DONE, ""),
        (GONE, EXIT, {}, State.DONE, ""),
        (GONE, EXIT | {"exit_code": 2}, {}, State.FAILED, "exit code 2"),
        ({}, EXIT | {"exit_code": 2}, {}, State.LIVE, ""),
        (GONE, EXIT | {"outcome": "signal", "exit_code": None, "signal": 9}, {}, State.FAILED, "signal 9"),
        (GONE, {"outcome": "interrupted", "signal": 15}, {}, State.STALE, "before the command"),
        (GONE, {"outcome": "not-started", "message": "no such command"}, {}, State.REFUSED, "no such command"),
        (GONE, EXIT, {"why": "interrupted", "t_ns": 15}, State.STALE, "it was interrupted"),
        (GONE, EXIT, {"why": "interrupted", "t_ns": 25}, State.DONE, ""),
        (GONE, EXIT, {"why": "timeout", "t_ns": 15, "after_s": 3}, State.FAILED, "longer than 3 s"),
    ],
)
def test_what_became_of_a_slot(slot: Path, claim: Any, end: Any, stopped: Any, state: State, why: str) -> None:
    assert read_slot(slot).state is State.FREE
    place(slot, claim, end, **stopped)
    found = read_slot(slot)
    assert found.state is state
    assert why in found.why
    assert (found.run is None) == (end is None)


@pytest.mark.parametrize("text", ["", '{"schema": 1, "outco', "[]", '{"schema": 1, "outcome": "exit", "end_ns": "x"}'])
def test_an_end_that_cannot_be_read_is_an_interruption(study: Study, slot: Path, text: str) -> None:
    place(slot, GONE, EXIT, why="interrupted", t_ns=25)
    (file,) = slot.glob("*/end.json")
    file.write_text(text)
    found = read_slot(slot)
    assert (found.state, found.why) == (State.STALE, "its end.json is damaged")
    aside = set_slot_aside(found, study.folder)
    assert aside is not None
    assert aside.name == "r01.interrupted-1"
    place(slot, {}, EXIT)  # its process lives: it is not touched
    next(slot.glob("*/end.json")).write_text("")
    assert read_slot(slot).state is State.LIVE


def test_an_end_of_a_newer_joulelab_is_no_damage(slot: Path) -> None:
    place(slot, GONE, EXIT)
    next(slot.glob("*/end.json")).write_text('{"schema": 99}')
    with pytest.raises(NewerSchema):
        read_slot(slot)


def test_a_claim_that_cannot_be_read_holds_as_long_as_it_is_locked(slot: Path) -> None:
    with claim_slot(slot, {}):
        (slot / CLAIM).write_text("")
        assert read_slot(slot).state is State.LIVE
    assert read_slot(slot).state is State.STALE


def test_a_folder_without_a_claim_is_no_claim(slot: Path) -> None:
    slot.mkdir()
    assert read_slot(slot).state is State.STALE


def test_one_of_many_claims_a_slot(slot: Path) -> None:
    got: list[bool] = []
    ready = threading.Barrier(8)

    def try_it() -> None:
        ready.wait()
        with claim_slot(slot, {"study": "s"}) as mine:
            got.append(mine)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]
    assert [p.name for p in slot.parent.iterdir() if p.is_dir()] == ["r01"]
    assert read_json(slot / CLAIM)["study"] == "s"
    assert read_slot(slot).state is State.LIVE


def test_a_claim_that_cannot_be_made_is_told(study: Study) -> None:
    with pytest.raises(StoreError, match="cannot claim"), claim_slot(study.folder / "cells" / "none" / "r01", {}):
        pass


@pytest.mark.system
def test_only_a_process_that_is_known_to_have_ended_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told = identify_process(child.pid)
    file = tmp_path / CLAIM
    assert not is_claim_stale(told, file)
    assert is_claim_stale({**told, "ticks": 1}, file)
    assert is_claim_stale({**told, "boot": "another"}, file)
    assert not is_claim_stale({**told, "boot": "another", "host": "elsewhere"}, file)
    child.communicate(b"\n", timeout=120)
    assert is_claim_stale(told, file)
    # In another container of this machine the number means nothing; the lock does.
    file.touch()
    elsewhere = {**told, "space": "pid:[1]"}
    assert is_claim_stale(elsewhere, file)
    with file.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert not is_claim_stale(elsewhere, file)
    assert is_claim_stale(elsewhere, tmp_path / "none")


def test_a_claim_is_locked_as_long_as_its_process_lives(slot: Path) -> None:
    with claim_slot(slot, {}):
        claim = {**read_json(slot / CLAIM), "space": "pid:[1]"}
        assert not is_claim_stale(claim, slot / CLAIM)
    assert is_claim_stale(claim, slot / CLAIM)


def test_what_is_set_aside_is_kept_and_numbered(study: Study, slot: Path) -> None:
    for n in (1, 2):
        place(slot, GONE)
        aside = set_slot_aside(read_slot(slot), study.folder)
        assert aside is not None
        assert aside.name == f"r01.interrupted-{n}"
        assert read_slot(slot).state is State.FREE
    place(slot, GONE, EXIT | {"exit_code": 1})
    aside = set_slot_aside(read_slot(slot), study.folder)
    assert aside is not None
    assert aside.name == "r01.failed-1"
    assert list_claimed_slots(slot.parent) == []


def test_what_changed_since_it_was_seen_is_not_set_aside(study: Study, slot: Path) -> None:
    place(slot, GONE)
    seen = read_slot(slot)
    slot.rename(slot.with_name("r01.interrupted-1"))
    assert set_slot_aside(seen, study.folder) is None  # somebody else did
    with claim_slot(slot, {}):  # and a new process has it
        assert set_slot_aside(seen, study.folder) is None
        assert set_slot_aside(read_slot(slot), study.folder) is None
        assert read_slot(slot).state is State.LIVE


def test_the_first_reason_to_stop_stays(slot: Path) -> None:
    place(slot)
    before = monotonic_ns()
    note_stop(slot, "timeout", after_s=2)
    note_stop(slot, "interrupted")
    noted = read_json(slot / "stopped.json")
    assert noted["why"] == "timeout"
    assert before <= noted["t_ns"] <= monotonic_ns()


def test_claims_that_were_never_placed_are_removed(slot: Path) -> None:
    cell = slot.parent
    place(cell / ".r01.77-abcdef", GONE)
    place(cell / f".r02.{os.getpid()}-abcdef")
    (cell / ".r03.1-abcdef").mkdir()
    place(cell / "r04", GONE)
    remove_remnants(cell)
    assert sorted(p.name for p in cell.iterdir() if p.is_dir()) == [
        ".r02." + str(os.getpid()) + "-abcdef",
        ".r03.1-abcdef",
        "r04",
    ]
    remove_remnants(cell / "none")
    assert list_claimed_slots(cell / "none") == []


def plan_of(command: tuple[str, ...], caps: str) -> Plan:
    workload = Workload(command)
    planned = make_cells(workload, [Knob.parse("cap", caps)])
    return Plan(planned, repeats=2, settings=Settings(idle_s=1, meters=("nvml",)))


def test_a_study_grows_and_keeps_its_seed(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "s"
    first = join_study(folder, "s", plan_of(("a",), "100,200"), None)
    again = join_study(folder, "s", plan_of(("a",), "200,300"), first.seed)
    assert again.seed == first.seed
    assert again.data["created"] == first.data["created"]
    assert len(open_study(folder).read_cells()) == 3
    assert open_study(folder).settings == Settings(idle_s=1, meters=("nvml",))
    assert Settings.from_json({"idle_s": 2, "of_tomorrow": 1}) == Settings(idle_s=2)


def test_a_sweep_goes_on_as_the_file_that_was_written_of_it(tmp_path: Path) -> None:
    folder, file, plan = tmp_path / "s", tmp_path / "s.toml", plan_of(("a",), "100,200")
    first = join_study(folder, "s", plan, None)
    file.write_text(write_sweep(plan, "s", first.seed))
    found = read_study(file)
    again = join_study(folder, "s", found.plan, found.seed)
    assert again.data["created"] == first.data["created"]
    assert again.data["file"] == str(file)
    assert {cell.key for cell in found.plan.cells} == set(again.read_cells())
    with pytest.raises(ConfigError, match="joulelab study run"):
        join_study(folder, "s", plan, None)
    file.write_text(write_sweep(plan_of(("b",), "100"), "s"))
    join_study(tmp_path / "t", "t", plan, None)
    with pytest.raises(ConfigError, match="another study of that name"):
        join_study(tmp_path / "t", "t", read_study(file).plan, None)


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    join_study(folder, "s", plan_of(("a", "--token", "hidden"), "100"), 5)
    with pytest.raises(ConfigError, match="another command") as refused:
        join_study(folder, "s", plan_of(("b",), "100"), 5)
    assert "hidden" not in str(refused.value)
    with pytest.raises(ConfigError, match="seed 5"):
        join_study(folder, "s", plan_of(("a", "--token", "hidden"), "100"), 6)
    with pytest.raises(ConfigError, match="cannot name"):
        join_study(folder, "../s", plan_of(("a",), "100"), 6)
    with pytest.raises(StoreError, match="no study"):
        open_study(tmp_path / "none")
    write_json_atomic(folder / "study.json", {"schema": 99})
    with pytest.raises(NewerSchema):
        open_study(folder)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot make"):
        join_study(tmp_path / "file" / "s", "s", plan_of(("a",), "100"), 1)


@every_row("name", ["../x", ".", "", "a/b", "a" * 300, "-x", "x\n"])
def test_names_that_cannot_be_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a study; letters, digits") as refused:
        check_name(name)
    assert len(str(refused.value)) < 200
    with pytest.raises(ConfigError, match="cannot name"):
        join_study(tmp_path / "s", name, plan_of(("a",), "100"), None)
    assert not (tmp_path / "s").exists()


@every_row("text", ["", "{", "[]", "{}", '{"knobs": []}', "another"])
def test_a_damaged_cell_is_left_out_and_written_anew(tmp_path: Path, text: str) -> None:
    plan = plan_of(("a",), "100,200")
    study = join_study(tmp_path / "s", "s", plan, 5)
    whole, damaged = (study.folder / "cells" / cell.key / "cell.json" for cell in plan.cells)
    place(damaged.parent / "r01", GONE, EXIT)
    damaged.write_text(whole.read_text() if text == "another" else text)
    assert list(study.read_cells()) == [whole.parent.name]
    (note,) = study.notes
    assert note.code == "cell-unreadable"
    assert str(damaged.parent) in str(note.texts["error"])
    again = join_study(tmp_path / "s", "s", plan, 5)
    assert sorted(again.read_cells()) == sorted(cell.key for cell in plan.cells)
    assert again.notes == []
    assert read_slot(damaged.parent / "r01").state is State.DONE


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1}'])
def test_a_damaged_study_tells_what_to_do(tmp_path: Path, text: str) -> None:
    join_study(tmp_path / "s", "s", plan_of(("a",), "100"), 5)
    (tmp_path / "s" / "study.json").write_text(text)
    with pytest.raises(StoreError, match=r"study.json is damaged.*remove it, then repeat"):
        join_study(tmp_path / "s", "s", plan_of(("a",), "100"), None)
    (tmp_path / "s" / "study.json").unlink()
    assert len(join_study(tmp_path / "s", "s", plan_of(("a",), "100"), None).read_cells()) == 1


def test_a_name_is_made_of_the_command() -> None:
    assert make_default_name(Workload(("python", "/x/train_it.py", "--gpus", "{gpus}"))).startswith("python-train-it-")
    assert make_default_name(Workload(("./run.sh", "{cap}"))) != make_default_name(Workload(("./run.sh", "{gpus}")))
    assert len(make_default_name(Workload(("{x}",)))) == 6
