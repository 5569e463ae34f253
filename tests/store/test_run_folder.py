from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.store.make import NOBODY, STARTED, close_run, gpus, make_run, open_journal, write_rows

from joulelab.core.clock import read_boot_id
from joulelab.store.documents import read_json
from joulelab.store.run_folder import (
    RUN_ID,
    RunState,
    create_run,
    end_run,
    find_host_dir,
    find_run,
    identify_owner,
    list_runs,
    read_end,
    read_meta,
    read_run_state,
    write_json_atomic,
)


def test_a_new_run_says_what_was_known_at_the_start(runs: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "WANDB_API_KEY": "secret", "RANK": "0"}
    given = {"host": "n", "command": ["a", "--token=abc"], "environment": environment, "name": "first"}
    run = create_run(runs, {**given, "labels": {"token": "abc", "batch": "64"}})
    meta = read_meta(run)
    assert RUN_ID.fullmatch(run.name)
    assert meta["id"] == run.name
    assert meta["schema"] == 1
    assert (meta["name"], meta["command"]) == ("first", ["a", "--token=***"])
    assert meta["labels"] == {"token": "***", "batch": "64"}
    assert meta["environment"] == {"CUDA_VISIBLE_DEVICES": "0,1", "RANK": "0"}
    assert meta["owner"] == identify_owner()
    assert meta["started"]["boot_id"] == read_boot_id()
    assert (run / "n" / "marks").is_dir()
    assert "secret" not in (run / "run.json").read_text()
    assert "abc" not in (run / "run.json").read_text()


def test_ids_are_unique_within_a_second(runs: Path) -> None:
    made = [make_run(runs) for _ in range(50)]
    assert len({p.name for p in made}) == 50
    assert list_runs(runs) == sorted(made)


def test_states(runs: Path) -> None:
    run = make_run(runs, owner=None)
    assert read_run_state(run) is RunState.LIVE
    close_run(run)
    assert read_run_state(run) is RunState.CLOSED
    assert read_run_state(make_run(runs)) is RunState.KILLED


def test_a_reused_pid_is_not_the_owner(runs: Path) -> None:
    me = identify_owner()
    assert read_run_state(make_run(runs, owner=me)) is RunState.LIVE
    assert read_run_state(make_run(runs, owner={**me, "start_ticks": me["start_ticks"] + 1})) is RunState.KILLED
    assert read_run_state(make_run(runs, owner={**me, "boot_id": "another boot"})) is RunState.KILLED


@pytest.mark.system
def test_a_zombie_is_dead(runs: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    who = identify_owner(child.pid)
    run = make_run(runs, owner=who)
    assert read_run_state(run) is RunState.LIVE
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists(), "not yet reaped"
    assert read_run_state(run) is RunState.KILLED
    child.wait()
    assert read_run_state(run) is RunState.KILLED


def test_a_held_journal_keeps_a_run_live_although_its_owner_is_gone(runs: Path) -> None:
    run = make_run(runs)
    with open_journal(run, gpus()):
        assert read_run_state(run) is RunState.LIVE
    assert read_run_state(run) is RunState.KILLED


def test_a_run_of_another_host_is_live_while_its_journals_grow(runs: Path) -> None:
    run = make_run(runs, owner={**NOBODY, "boot_id": "elsewhere"})
    path = write_rows(run, gpus(), [])
    assert read_run_state(run) is RunState.LIVE
    os.utime(path, (time.clock_gettime(time.CLOCK_REALTIME) - 3600,) * 2)
    assert read_run_state(run) is RunState.KILLED


def test_a_run_ends_once(runs: Path) -> None:
    run = make_run(runs)
    assert read_end(run) is None
    close_run(run, message="fine")
    end = read_end(run)
    assert end is not None
    assert (end["outcome"], end["message"], end["signal"], end["restarts"]) == ("exit", "fine", None, 0)
    with raises_code("store.closed"):
        end_run(run, {"outcome": "exit"})


def test_json_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "end.json"
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        with raises_code("write-failed.no-space"):
            write_json_atomic(path, {"text": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert list(tmp_path.iterdir()) == []
    write_json_atomic(path, {"text": "größer"})
    assert read_json(path) == {"text": "größer"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1'])
def test_damaged_json_is_a_store_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with raises_code("store.damaged"):
        read_json(tmp_path / "run.json")


def test_newer_runs_are_refused(runs: Path) -> None:
    run = make_run(runs)
    write_json_atomic(run / "run.json", {**read_meta(run), "schema": 99})
    with raises_code("newer-schema"):
        read_meta(run)


@every_row("host", ["", ".", "..", "a/b", ".hidden"])
def test_hosts_stay_in_the_run(tmp_path: Path, host: str) -> None:
    with raises_code("store.bad-name"):
        find_host_dir(tmp_path, host)


def test_an_unwritable_store_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code("store.not-created"):
        create_run(tmp_path / "file", {"host": "n", "command": []})


def test_find_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_run(runs, name="baseline")
    second = make_run(runs, name="baseline", started={**STARTED, "utc_ns": STARTED["utc_ns"] + 3600 * 10**9})
    third = make_run(runs, started={**STARTED, "utc_ns": STARTED["utc_ns"] + 1}, name="other")
    assert find_run(runs, "last") == second
    assert find_run(runs, first.name) == first
    assert find_run(runs, "baseline") == second
    assert find_run(runs, second.name[:13]) == second
    assert find_run(runs, str(first)) == first
    monkeypatch.chdir(runs)
    assert find_run(runs, third.name + "/") == Path(third.name)
    with raises_code("not-a-run.ambiguous"):
        find_run(runs, second.name[:4])
    for unknown in ("baselin", "zzz"):
        with raises_code("not-a-run.unknown"):
            find_run(runs, unknown)
    with raises_code("not-a-run.folder"):
        find_run(runs, "./nowhere")


def test_last_of_one_second_goes_by_the_clock(runs: Path) -> None:
    made = [make_run(runs, started={**STARTED, "utc_ns": STARTED["utc_ns"] + k}) for k in (3, 9, 5)]
    assert find_run(runs, "last") == made[1]


def test_an_empty_store(runs: Path) -> None:
    assert list_runs(runs) == []
    with raises_code("not-a-run.none-yet"):
        find_run(runs, "last")


def test_unfinished_and_damaged_folders_do_not_disturb(runs: Path) -> None:
    run = make_run(runs, name="good")
    (runs / "20990101-000000-0000").mkdir()
    (runs / "20990101-000000-0001").mkdir()
    (runs / "20990101-000000-0001" / "run.json").write_text("{torn")
    (runs / "notes").mkdir()
    assert [p.name for p in list_runs(runs)] == [run.name, "20990101-000000-0001"]
    assert find_run(runs, "good") == run


def test_run_json_is_readable_by_people(runs: Path) -> None:
    assert json.loads((make_run(runs) / "run.json").read_text())["host"] == "node1"
