"""Slots that run as jobs of a cluster: who has claimed them, what their condition says, and who tries again."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.study.bench import make_study, only_cell, place

from joulelab.core.errors import StoreError
from joulelab.core.process_identity import identify_process
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.drive import Driver, SlotEvent, StopRequest, list_planned_slots
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.folder import Plan, Settings, join_study
from joulelab.study.matrix import NodeType, PlannedCell, Workload
from joulelab.study.slots import (
    JOB,
    State,
    clear_earlier_attempt,
    list_lock_files,
    read_own_job,
    read_slot,
    remove_remnants,
    set_slot_aside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.executors import Fate
    from joulelab.study.folder import Study

DONE: dict[str, Any] = {"outcome": "exit", "exit_code": 0, "start_ns": 10, "end_ns": 20}
ELSEWHERE = {"host": "node07", "boot": "another", "job": "12", "cluster": "c", "restart": 0}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path / "s")


@pytest.fixture
def slot(study: Study) -> Path:
    return study.get_slot_folder(only_cell(study), 1)


@pytest.mark.parametrize(("answer", "state"), [(None, State.LIVE), (False, State.LIVE), (True, State.STALE)])
def test_of_another_host_the_job_tells(slot: Path, answer: bool | None, state: State) -> None:
    place(slot, ELSEWHERE)
    assert read_slot(slot).state is State.LIVE
    assert read_slot(slot, lambda claim: answer if claim["job"] == "12" else True).state is state


def test_a_claim_without_a_job_is_not_asked_for(slot: Path) -> None:
    place(slot, {"host": "node07", "boot": "another"})
    assert read_slot(slot, lambda _: True).state is State.LIVE


@pytest.mark.parametrize(
    ("condition", "end", "state", "why"),
    [
        ("TIMEOUT", None, State.FAILED, "job 12: TIMEOUT"),
        ("OUT_OF_MEMORY", {"outcome": "interrupted"}, State.FAILED, "job 12: OUT_OF_MEMORY"),
        ("CANCELLED by 1000", None, State.STALE, "job 12: CANCELLED by 1000"),
        ("NODE_FAIL", None, State.STALE, "job 12: NODE_FAIL"),
        ("FAILED", None, State.STALE, "job 12: FAILED"),
        ("COMPLETED", DONE, State.DONE, ""),
        ("TIMEOUT", DONE, State.DONE, ""),
        ("FAILED", DONE | {"exit_code": 3}, State.FAILED, "exit code 3"),
        ("", None, State.STALE, ""),
    ],
)
def test_the_condition_of_a_job_says_what_became_of_its_slot(
    slot: Path, condition: str, end: Any, state: State, why: str
) -> None:
    place(slot, ELSEWHERE, end)
    write_json_atomic(slot / JOB, {"job": "12", "state": condition})
    assert (read_slot(slot).state, read_slot(slot).why) == (state, why)


def test_a_job_is_known_by_its_environment() -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURMD_NODENAME": "n1", "SLURM_RESTART_COUNT": "2"}
    assert read_own_job({"SLURMD_NODENAME": "n1"}) == {}
    assert read_own_job(inside) == {"job": "7", "cluster": "c", "node": "n1", "restart": 2}
    assert read_own_job({**inside, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"})["task"] == "5_1"
    assert read_own_job({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "?"}) == {"job": "7", "restart": 0}


def test_a_requeued_job_sets_its_own_earlier_attempt_aside(study: Study, slot: Path) -> None:
    place(slot, ELSEWHERE)
    for other in ({}, {"job": "13", "cluster": "c", "restart": 1}, {"job": "12", "cluster": "c", "restart": 0}):
        clear_earlier_attempt(slot, study.folder, other)
        assert slot.is_dir(), "it is another's, or our own"
    clear_earlier_attempt(slot, study.folder, {"job": "12", "cluster": "c", "restart": 1})
    assert not slot.exists()
    assert (slot.parent / "r01.interrupted-1").is_dir()


def test_what_is_done_stays_whoever_comes_again(study: Study, slot: Path) -> None:
    place(slot, ELSEWHERE, DONE)
    clear_earlier_attempt(slot, study.folder, {"job": "12", "cluster": "c", "restart": 1})
    assert read_slot(slot).state is State.DONE


def test_only_what_is_over_is_set_aside(study: Study, slot: Path) -> None:
    place(slot, ELSEWHERE)
    seen = read_slot(slot, lambda _: True)
    assert set_slot_aside(seen, study.folder) is None
    assert set_slot_aside(seen, study.folder, lambda _: True) is not None


@pytest.mark.parametrize(("node", "suffix"), [("n1", "-n1"), ("", "")])
def test_nodes_of_one_machine_have_turns_of_their_own(tmp_path: Path, node: str, suffix: str) -> None:
    inside = {"JOULELAB_STATE": str(tmp_path), "SLURM_JOB_ID": "7", "SLURMD_NODENAME": node}
    assert list_lock_files(inside)[0].name == f"slot{suffix}.lock"
    assert list_lock_files({"JOULELAB_STATE": str(tmp_path), "SLURMD_NODENAME": "n1"})[0].name == "slot.lock"


class Cluster:
    """Run slots by a script, many at once; `over` are the jobs that have ended."""

    def __init__(self, act: Callable[[Path], SlotEnd | SlotWait], at_once: int = 3) -> None:
        self.at_once, self._act = at_once, act
        self.sent: list[Path] = []
        self.most = 0
        self._now: list[Path] = []

    def submit(self, slot: Path) -> None:
        assert (slot.parent / "cell.json").is_file(), "the cell is there before its slot is sent"
        self.sent.append(slot)
        self._now.append(slot)
        self.most = max(self.most, len(self._now))

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        slots, self._now = self._now, []
        return [self._act(slot) for slot in slots]

    def cancel(self, slot: Path) -> None: ...

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        return None

    def close(self) -> None: ...


def of_two_types(folder: Path, count: int = 4) -> tuple[Study, dict[str, PlannedCell]]:
    nodes = {"here": NodeType("here"), "there": NodeType("there", "slurm")}
    planned = [PlannedCell(Workload((str(n),), f"w{n}", name), {}) for name in nodes for n in range(count)]
    made = Plan(planned, settings=Settings(), nodes=nodes, file=folder / "s.toml")
    return join_study(folder, "s", made, 1), {cell.key: cell for cell in planned}


def done(slot: Path) -> SlotEnd:
    place(slot, {"ticks": 1}, DONE)
    return SlotEnd(slot, {"is": "ended"})


def test_each_node_type_has_its_executor_and_its_room(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s")
    here, there = Cluster(done, 1), Cluster(done, 3)
    ticks: list[int] = []
    driver = Driver(
        study, cells, 2, {"here": here, "there": there}, lambda _: None, tick=lambda s: ticks.append(len(s))
    )
    with StopRequest() as stop:
        outcome = driver.run(stop)
    assert outcome.done == outcome.total == 16
    assert (here.most, there.most) == (1, 3)
    for place_, name in ((here, "here"), (there, "there")):
        assert {cells[slot.parent.name].workload.node_type for slot in place_.sent} == {name}
        assert len(place_.sent) == 8
    assert max(ticks) == 4
    assert {slot.state for slot in list_planned_slots(study, list(cells), 2)} == {State.DONE}


@pytest.mark.parametrize(
    ("fate", "counts", "told"),
    [("cancelled", (3, 0, 1), "cancelled"), ("failed", (3, 1, 0), "failed"), ("again", (4, 0, 0), "interrupted")],
)
def test_what_the_cluster_did_to_a_job_decides_what_becomes_of_its_slot(
    tmp_path: Path, fate: Fate, counts: tuple[int, int, int], told: str
) -> None:
    study, cells = of_two_types(tmp_path / "s", 2)
    struck: list[Path] = []

    def act(slot: Path) -> SlotEnd:
        if not struck:
            struck.append(slot)
            return SlotEnd(slot, None, "job 9: by root", fate)
        return done(slot)

    news: list[SlotEvent] = []
    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, Cluster(act), news.append).run(stop)
    assert (outcome.done, outcome.failed, outcome.cancelled) == counts
    assert outcome.error is None
    assert (told, "job 9: by root") in [(each.what, each.why) for each in news]
    # The next call runs what was not run.
    with StopRequest() as stop:
        assert Driver(study, cells, 1, Cluster(done), lambda _: None).run(stop).done == 4


def test_one_bad_node_does_not_stop_the_others(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 2)
    first: list[Path] = []

    def act(slot: Path) -> SlotEnd:
        first[:] = first or [slot]
        return SlotEnd(slot, None, "exit code 1: module: command not found") if slot in first else done(slot)

    news: list[SlotEvent] = []
    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, Cluster(act, 3), news.append).run(stop)
    assert outcome.error is None
    assert (outcome.done, outcome.failed) == (3, 1)
    assert "a slot was cut off 3 times: exit code 1: module" in next(n.why for n in news if n.what == "failed")


def refused(slot: Path) -> SlotEnd:
    place(slot, {"ticks": 1}, {"outcome": "not-started", "message": "no such command"})
    error = {"what": "no such command", "where": "x", "why": None, "next": None, "kind": "WorkloadError"}
    return SlotEnd(slot, {"is": "error", "error": error})


def test_a_workload_that_cannot_be_started_does_not_keep_others_from_it(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 2)

    def act(slot: Path) -> SlotEnd:
        return refused(slot) if cells[slot.parent.name].workload.name == "w1" else done(slot)

    news: list[SlotEvent] = []
    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, Cluster(act, 1), news.append).run(stop)
    assert (outcome.done, outcome.failed, outcome.error) == (2, 2, None)
    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, Cluster(done), news.append).run(stop)
    assert (outcome.done, outcome.failed) == (2, 2), "it is run again on request"
    assert [told.why for told in news if told.what == "refused before"] == ["no such command"] * 2
    with StopRequest() as stop:
        assert Driver(study, cells, 1, Cluster(done), news.append, retry=True).run(stop).done == 4


def test_a_folder_that_cannot_be_used_ends_the_drive_in_good_order(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 1)
    place = Cluster(done)

    def tick(slots: Sequence[Path]) -> None:
        raise PermissionError(13, "Permission denied", str(slots[0]))

    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, place, lambda _: None, tick=tick).run(stop)
    assert "the study's folder cannot be used (Permission denied); mend that" in str(outcome.error)
    assert outcome.done == len(place.sent) == 2, "what ran has ended and counts"


def test_who_runs_a_slot_elsewhere_is_said_and_what_to_do(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 1)
    study.add_cells(cells.values())
    key = next(iter(cells))
    place(study.get_slot_folder(key, 1), {**ELSEWHERE, "task": "5_1", "utc_ns": 0})
    news: list[SlotEvent] = []

    class Ends(Cluster):
        def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
            if not self._now:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().poll(timeout_s, also)

    with StopRequest() as stop:
        Driver(study, cells, 1, Ends(done), news.append).run(stop)
    (why,) = (told.why for told in news if told.what == "waits")
    assert "it is run by job 5_1 on node07 since 1970-01-01 00:00:00 UTC; if that is gone for good, move" in why


def test_how_long_several_at_once_take_is_told_by_how_fast_they_were(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 4)
    news: list[SlotEvent] = []
    with StopRequest() as stop:
        Driver(study, cells, 1, Cluster(done, 3), news.append).run(stop)
    left = [told.left_s for told in news]
    assert all(each is not None for each in left)
    assert left[-1] == 0.0


def test_a_slot_is_run_by_its_cell_whatever_the_file_says_by_now() -> None:
    node = NodeType("a", "slurm", "cpu", {"A": "1"}, {"partition": "p", "nodes": 2, "time": 60})
    found = NodeType.from_identity("a", node.get_identity())
    assert (found.executor, found.uses, found.environment, found.launch) == ("slurm", "cpu", {"A": "1"}, "srun")
    assert found.options == {"partition": "p", "nodes": 2}
    assert NodeType.from_identity("local", {}) == NodeType()


def test_what_a_cluster_waits_for_is_told_once(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 1)
    asked: list[Path] = []

    def act(slot: Path) -> SlotEnd | SlotWait:
        asked.append(slot)
        return done(slot)

    class Slow(Cluster):
        def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
            waits: list[SlotEnd | SlotWait] = [SlotWait(slot, "sacct does not answer", "cluster") for slot in self._now]
            return waits + super().poll(timeout_s, also)

    news: list[SlotEvent] = []
    with StopRequest() as stop:
        Driver(study, cells, 1, Slow(act, 1), news.append).run(stop)
    assert [each.why for each in news if each.what == "cluster"] == ["sacct does not answer"]


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 1)
    study.add_cells(cells.values())
    key = next(iter(cells))
    rests = [study.folder / ".study.json.7-ab.tmp", study.folder / "cells" / key / ".cell.json.7-ab.tmp"]
    for rest in rests:
        rest.write_text("{")
    study.remove_leftovers()
    assert not any(rest.exists() for rest in rests)
    assert study.read_cells().keys() == cells.keys()


def test_what_a_slot_was_about_to_write_is_removed_once_it_has_gone(study: Study, slot: Path) -> None:
    place(slot, {}, DONE)
    (run,) = (path.parent for path in slot.glob("*/run.json"))
    rests = [slot / ".trial.json.7-ab.tmp", run / ".results.json.7-ab.tmp"]
    for rest in rests:
        rest.write_text("{")
    remove_remnants(slot.parent)
    assert all(rest.exists() for rest in rests), "it may still be writing"
    write_json_atomic(slot / "claim.json", {**identify_process(), "ticks": 1})
    remove_remnants(slot.parent)
    assert not any(rest.exists() for rest in rests)
    assert read_slot(slot).state is State.DONE


def test_a_cell_that_cannot_be_made_stops_the_drive(tmp_path: Path) -> None:
    study, cells = of_two_types(tmp_path / "s", 1)
    (study.folder / "cells").write_text("in the way")
    with StopRequest() as stop:
        outcome = Driver(study, cells, 1, Cluster(done), lambda _: None).run(stop)
    assert isinstance(outcome.error, StoreError)
