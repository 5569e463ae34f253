from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.study.bench import make_study, place

from joulelab.core.errors import ConfigError, StoreError
from joulelab.store.folder import write_json_atomic
from joulelab.study import executors
from joulelab.study.drive import Driver, Stop, Told
from joulelab.study.executors import Ended
from joulelab.study.executors.local import Local
from joulelab.study.progress import Pace
from joulelab.study.turn import lock_file, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GONE = {"ticks": 1}
DONE = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}


class Scripted:
    """Run slots by a script: what is left of each, and what it tells."""

    at_once = 1

    def __init__(self, act: Callable[[Path], Ended]) -> None:
        self._act = act
        self._slots: list[Path] = []
        self.started: list[Path] = []

    def submit(self, slot: Path) -> None:
        self._slots.append(slot)
        self.started.append(slot)

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[Ended]:
        slots, self._slots = self._slots, []
        return [self._act(slot) for slot in slots]

    def cancel(self, slot: Path) -> None: ...

    def close(self) -> None: ...


def drive(folder: Path, act: Callable[[Path], Ended], **options: Any) -> tuple[Driver, Scripted, list[Told]]:
    study = make_study(folder, "true", "{n}", knobs={"n": "1:20:1"})
    executor, news = Scripted(act), list[Told]()
    driver = Driver(study, study.cells(), options.pop("repeats", 1), executor, news.append, **options)
    with Stop() as stop:
        driver.run(stop)
    return driver, executor, news


def ended(slot: Path, **end: Any) -> Ended:
    place(slot, GONE, DONE | end)
    return Ended(slot, {"is": "ended"})


def test_a_command_that_only_fails_stops_the_sweep(tmp_path: Path) -> None:
    driver, executor, _ = drive(tmp_path / "s", lambda slot: ended(slot, exit_code=4))
    assert "the first 5 slots failed (exit code 4; see" in str(driver.outcome.error)
    assert len(executor.started) == driver.outcome.failed == 5
    # Where one has succeeded, failures are told and the rest is run.
    first = executor.started[0].parent.name
    driver, executor, _ = drive(tmp_path / "t", lambda slot: ended(slot, exit_code=int(slot.parent.name != first)))
    assert driver.outcome.error is None
    assert (driver.outcome.done, driver.outcome.failed) == (1, 19)


def test_a_slot_that_is_always_cut_off_is_given_up(tmp_path: Path) -> None:
    def act(slot: Path) -> Ended:
        place(slot, GONE)
        return Ended(slot, None, "killed by signal 9")

    driver, executor, news = drive(tmp_path / "s", act)
    assert "cut off 3 times (killed by signal 9)" in str(driver.outcome.error).replace(f"{executor.started[0]}: ", "")
    assert [told.what for told in news].count("interrupted") >= 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "a slot's process failed (exit code 1: Traceback)"),
        (
            {"is": "error", "error": {"what": "no", "where": "gpu:0", "why": "held", "next": "wait"}},
            "gpu:0: no (held); wait",
        ),
    ],
)
def test_what_no_slot_can_do_stops_the_sweep(tmp_path: Path, told: Any, said: str) -> None:
    driver, executor, _ = drive(tmp_path / "s", lambda slot: Ended(slot, told, "exit code 1: Traceback"))
    assert said in str(driver.outcome.error).replace(f"{executor.started[0]}: ", "")
    assert len(executor.started) == 1


def test_a_slot_that_somebody_else_took_is_counted_once(tmp_path: Path) -> None:
    def act(slot: Path) -> Ended:
        place(slot, GONE, DONE)
        return Ended(slot, {"is": "taken"})

    driver, executor, news = drive(tmp_path / "s", act)
    assert len(executor.started) == driver.outcome.done == 20
    assert news[-1].finished == 20


def test_a_warm_up_is_not_counted(tmp_path: Path) -> None:
    driver, executor, news = drive(tmp_path / "s", ended, warmup=2, repeats=2)
    assert [slot.name for slot in executor.started[:2]] == ["w01", "w02"]
    assert {slot.parent for slot in executor.started[:3]} == {executor.started[2].parent}
    assert (driver.outcome.done, driver.outcome.total, len(executor.started)) == (40, 40, 42)
    assert news[0].what == "warm-up done"
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


def test_slots_take_turns(tmp_path: Path) -> None:
    environ = {"JOULELAB_STATE": str(tmp_path / "state")}
    waits: list[float] = []

    def pause(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) < 3

    with turn(environ, pause) as mine:
        assert mine
        with turn(environ, pause) as too:
            assert not too
        assert len(waits) == 3
    with turn(environ, pause) as mine:
        assert mine
    assert lock_file(environ).parent == tmp_path / "state"
    (tmp_path / "file").touch()
    assert lock_file({"JOULELAB_STATE": str(tmp_path / "file")}).name == "joulelab-slot.lock"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "joulelab-slot.lock").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    with (
        pytest.raises(StoreError, match="take turns"),
        turn({"JOULELAB_STATE": str(tmp_path / "file")}, lambda _: True),
    ):
        pass


def test_executors_are_found_by_name() -> None:
    assert isinstance(executors.open_executor("local", {}), Local)
    with pytest.raises(ConfigError, match="there are local"):
        executors.open_executor("cloud", {})
