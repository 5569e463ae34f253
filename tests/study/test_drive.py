from __future__ import annotations

import fcntl
import os
import pwd
import stat
import tempfile
from typing import TYPE_CHECKING, Any

import pytest
from tests.study.bench import make_study, place

from joulelab.core.errors import ConfigError, StoreError
from joulelab.store.run_folder import write_json_atomic
from joulelab.study import executors
from joulelab.study import slots as turns
from joulelab.study.drive import Driver, Pace, SlotEvent, StopRequest
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.executors.local import LocalExecutor
from joulelab.study.slots import hold_turn, list_lock_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GONE = {"ticks": 1}
DONE = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


class Scripted:
    """Run slots by a script: what is left of each, and what it tells."""

    at_once = 1

    def __init__(self, act: Callable[[Path], SlotEnd]) -> None:
        self._act = act
        self._slots: list[Path] = []
        self.started: list[Path] = []

    def submit(self, slot: Path) -> None:
        self._slots.append(slot)
        self.started.append(slot)

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        slots, self._slots = self._slots, []
        return [SlotWait(slot, "root (pid 7)") for slot in slots] + [self._act(slot) for slot in slots]

    def cancel(self, slot: Path) -> None: ...

    def is_over(self, claim: Mapping[str, Any]) -> bool | None: ...

    def close(self) -> None: ...


def drive(folder: Path, act: Callable[[Path], SlotEnd], **options: Any) -> tuple[Driver, Scripted, list[SlotEvent]]:
    study = make_study(folder, "true", "{n}", knobs={"n": options.pop("knobs", "1:8:1")})
    executor, news = Scripted(act), list[SlotEvent]()
    driver = Driver(study, study.read_cells(), options.pop("repeats", 1), executor, news.append, **options)
    with StopRequest() as stop:
        driver.run(stop)
    return driver, executor, news


def ended(slot: Path, **end: Any) -> SlotEnd:
    place(slot, GONE, DONE | end)
    return SlotEnd(slot, {"is": "ended"})


def test_a_command_that_only_fails_stops_the_sweep(tmp_path: Path) -> None:
    driver, executor, _ = drive(tmp_path / "s", lambda slot: ended(slot, exit_code=4))
    assert "the first 5 slots failed (exit code 4; see" in str(driver.outcome.error)
    assert len(executor.started) == driver.outcome.failed == 5
    # Where one has succeeded, failures are told and the rest is run.
    first = executor.started[0].parent.name
    driver, executor, _ = drive(tmp_path / "t", lambda slot: ended(slot, exit_code=int(slot.parent.name != first)))
    assert driver.outcome.error is None
    assert (driver.outcome.done, driver.outcome.failed) == (1, 7)


def test_failures_are_not_added_to_until_asked_for(tmp_path: Path) -> None:
    driver, executor, news = drive(tmp_path / "s", lambda slot: ended(slot, exit_code=4))
    first = executor.started
    driver, executor, news = drive(tmp_path / "s", ended)
    assert executor.started == []
    assert "the first 5 slots failed (all failed before); mend the command, then type the same with --retry" in str(
        driver.outcome.error
    )
    assert [told.what for told in news] == ["failed before"] * 5
    driver, executor, _ = drive(tmp_path / "s", ended, retry=True)
    assert driver.outcome.error is None
    assert driver.outcome.done == len(executor.started) == 8
    assert executor.started[:5] == first


def test_where_nothing_is_left_to_run_failures_are_only_told(tmp_path: Path) -> None:
    for _ in range(2):
        driver, _, _ = drive(tmp_path / "s", lambda slot: ended(slot, exit_code=4), knobs="1:5:1")
        assert driver.outcome.error is None
        assert driver.outcome.failed == 5


def test_who_waits_for_a_turn_says_so_once(tmp_path: Path) -> None:
    _, _, news = drive(tmp_path / "s", ended)
    assert [told.why for told in news if told.what == "waits for its turn"] == ["held by root (pid 7)"]


@pytest.mark.parametrize(("code", "kept"), [(0, "r01"), (1, "r01.failed-1")])
def test_a_full_disk_stops_the_sweep_and_what_it_spoilt_is_run_again(tmp_path: Path, code: int, kept: str) -> None:
    def act(slot: Path) -> SlotEnd:
        ended(slot, exit_code=code)
        return SlotEnd(slot, {"is": "ended", "full": "ENOSPC: No space left on device"})

    driver, executor, _ = drive(tmp_path / "s", act)
    assert "the disk is full (ENOSPC: No space left on device); free some space, then" in str(driver.outcome.error)
    assert driver.outcome.failed == 0
    assert driver.outcome.done == int(code == 0)
    (slot,) = executor.started
    assert (slot.parent / kept).is_dir()


def test_a_run_that_is_done_counts_though_its_slot_failed_after_it(tmp_path: Path) -> None:
    def act(slot: Path) -> SlotEnd:
        ended(slot)
        return SlotEnd(slot, {"is": "error", "error": {"what": "no", "where": "x", "why": None, "next": None}})

    driver, executor, _ = drive(tmp_path / "s", act)
    assert driver.outcome.done == len(executor.started) == 1
    assert executor.started[0].is_dir()


def test_a_slot_that_is_always_cut_off_is_given_up(tmp_path: Path) -> None:
    def act(slot: Path) -> SlotEnd:
        place(slot, GONE)
        return SlotEnd(slot, None, "killed by signal 9")

    driver, executor, news = drive(tmp_path / "s", act)
    assert "cut off 3 times (killed by signal 9)" in str(driver.outcome.error).replace(f"{executor.started[0]}: ", "")
    assert [told.what for told in news].count("interrupted") >= 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "a slot was cut off 3 times (exit code 1: Traceback); see what ends it, then type the same again"),
        (
            {"is": "error", "error": {"what": "no", "where": "gpu:0", "why": "held", "next": "wait"}},
            "gpu:0: no (held); wait",
        ),
    ],
)
def test_what_no_slot_can_do_stops_the_sweep(tmp_path: Path, told: Any, said: str) -> None:
    driver, executor, _ = drive(tmp_path / "s", lambda slot: SlotEnd(slot, told, "exit code 1: Traceback"))
    assert said in str(driver.outcome.error).replace(f"{executor.started[0]}: ", "")
    assert len(executor.started) == (3 if told is None else 1)
    assert len(set(executor.started)) == 1


def test_a_slot_that_somebody_else_took_is_counted_once(tmp_path: Path) -> None:
    def act(slot: Path) -> SlotEnd:
        place(slot, GONE, DONE)
        return SlotEnd(slot, {"is": "taken"})

    driver, executor, news = drive(tmp_path / "s", act)
    assert len(executor.started) == driver.outcome.done == 8
    assert news[-1].finished == 8


def test_a_warm_up_is_not_counted(tmp_path: Path) -> None:
    driver, executor, news = drive(tmp_path / "s", ended, warmup=2, repeats=2)
    assert [slot.name for slot in executor.started[:2]] == ["w01", "w02"]
    assert {slot.parent for slot in executor.started[:3]} == {executor.started[2].parent}
    assert (driver.outcome.done, driver.outcome.total, len(executor.started)) == (16, 16, 18)
    assert news[1].what == "warm-up done"
    _, executor, _ = drive(tmp_path / "s", ended, warmup=2, repeats=2)
    assert executor.started == []


def test_the_time_left_is_by_cell_where_known(tmp_path: Path) -> None:
    pace = Pace()
    assert pace.left_s(["a"]) is None
    for key, took_s in (("a", 2.0), ("a", 4.0), ("b", 7.0)):
        pace.add(key, took_s)
    assert pace.left_s(["a", "b", "c"]) == 3 + 7 + 5
    assert pace.left_s([]) == 0
    slot = tmp_path / "d" / "r01"
    slot.mkdir(parents=True)
    pace.add_slot(slot)
    write_json_atomic(slot / "slot.json", {"took_s": None})
    pace.add_slot(slot)
    write_json_atomic(slot / "slot.json", {"took_s": 9})
    pace.add_slot(slot)
    assert pace.left_s(["d"]) == 9


def never(_: float) -> bool:
    return False


def in_vain(environ: dict[str, str]) -> bool:
    """Return whether a turn cannot be had now."""
    with hold_turn(environ, never) as mine:
        return not mine


def test_slots_take_turns(tmp_path: Path) -> None:
    environ = {"JOULELAB_STATE": str(tmp_path / "state")}
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 3

    with hold_turn(environ, pause) as mine:
        assert mine
        with hold_turn(environ, pause) as too:
            assert not too
        assert len(waits) == 3
    with hold_turn(environ, pause) as mine:
        assert mine
    assert list_lock_files(environ)[0] == tmp_path / "state" / "slot.lock"


def test_who_waits_is_told_for_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_NOTICE_S", 0.0)
    environ = {"JOULELAB_STATE": str(tmp_path)}
    told: list[str] = []
    left = [True, True, False]
    with (
        hold_turn(environ, never, command="mine: cap 100 W (r01)"),
        hold_turn(environ, lambda _: left.pop(0), report=told.append),
    ):
        pass
    (words,) = told
    assert f"(pid {os.getpid()}, `mine: cap 100 W (r01)`, since 20" in words


def test_who_can_only_read_the_lock_holds_up_nobody(tmp_path: Path) -> None:
    environ = {"JOULELAB_STATE": str(tmp_path)}
    lock = tmp_path / "slot.lock"
    lock.touch(0o644)
    with lock.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        assert not in_vain(environ)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600


@pytest.fixture
def no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment without a folder for state, where the system's folder for temporary files is ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    return {"JOULELAB_STATE": str(tmp_path / "file"), "XDG_RUNTIME_DIR": str(tmp_path / "none")}


def test_without_state_the_lock_is_of_the_user(tmp_path: Path, no_state: dict[str, str]) -> None:
    name = f"joulelab-slot-{os.geteuid()}.lock"
    assert list_lock_files(no_state) == [tmp_path / name]
    (tmp_path / "none").mkdir()
    assert list_lock_files(no_state) == [tmp_path / "none" / name, tmp_path / name]
    with hold_turn(no_state, never):
        assert in_vain(no_state)
    (tmp_path / "none" / name).unlink()
    (tmp_path / "none" / name).mkdir()  # what cannot be opened is passed over
    with hold_turn(no_state, never):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "strange"])
def test_what_others_put_in_its_place_is_refused_at_once(tmp_path: Path, no_state: dict[str, str], kind: str) -> None:
    (lock,) = list_lock_files(no_state)
    why = {"pipe": "it is not a plain file", "strange": "it belongs to nobody"}.get(kind, "")
    if kind == "link":
        lock.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        lock.touch()
        os.chown(lock, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(StoreError, match=f"take turns.*{why}.*set JOULELAB_STATE"), hold_turn(no_state, never):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_of_somebody_else_is_no_place_for_a_lock(tmp_path: Path, no_state: dict[str, str]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, pwd.getpwnam("nobody").pw_uid, -1)
    assert len(list_lock_files({"JOULELAB_STATE": str(theirs), "XDG_RUNTIME_DIR": str(theirs)})) == 1


def test_executors_are_found_by_name(tmp_path: Path) -> None:
    assert isinstance(executors.open_executor("local", {}, {}, tmp_path), LocalExecutor)
    with pytest.raises(ConfigError, match=r"there are .*local"):
        executors.open_executor("cloud", {}, {}, tmp_path)
