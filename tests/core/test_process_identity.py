"""What /proc says of processes."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from joulelab.core.process_identity import find_process, identify_process, is_pending, is_stopped, read_start_ticks

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.system
def test_start_ticks_tell_processes_apart() -> None:
    assert read_start_ticks() == read_start_ticks(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as process:
        assert (read_start_ticks(process.pid) or 0) >= (read_start_ticks() or 0)
        process.kill()
        until(lambda: read_start_ticks(process.pid) is None)  # a zombie has ended
    assert read_start_ticks(process.pid) is None


def test_names_with_brackets_and_spaces(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(4, 30))
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z b) S {fields}\n")
    assert read_start_ticks(7, tmp_path) == 22
    (tmp_path / "7" / "stat").write_text("7 (torn")
    assert read_start_ticks(7, tmp_path) is None


def test_an_identified_process_is_found_again() -> None:
    me = identify_process()
    assert me == identify_process(os.getpid())
    assert find_process(me) == "alive"
    assert find_process({**me, "ticks": 1}) == "ended"  # its number was given to another
    assert find_process({**me, "boot": "another"}) == "ended"
    assert find_process({**me, "boot": "another", "host": "elsewhere"}) == "elsewhere"
    assert find_process({**me, "space": "pid:[1]"}) == "hidden"
    assert find_process({"pid": "x", "ticks": None, "boot": me["boot"]}) == "ended"
    assert find_process({}) == "elsewhere"


def test_notes_of_run_folders_and_of_earlier_twins_are_read() -> None:
    me = identify_process()
    stored = {"pid": me["pid"], "start_ticks": me["ticks"], "boot_id": me["boot"]}
    assert find_process(stored) == "alive"
    assert find_process({**stored, "start_ticks": None}) == "ended"
    assert find_process({**stored, "boot_id": "another"}) == "ended"
    assert find_process({key: me[key] for key in ("pid", "ticks", "boot", "space")}) == "alive"


@pytest.mark.system
def test_stopped_and_pending() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
        process.send_signal(signal.SIGTERM)
        assert is_pending(process.pid, signal.SIGTERM)
        assert not is_pending(process.pid, signal.SIGINT)
        process.kill()
    assert not is_pending(process.pid, signal.SIGTERM)
    assert not is_stopped(process.pid)


def test_without_namespaces_a_process_is_known_by_its_number_and_start(tmp_path: Path) -> None:
    assert identify_process(4, proc=tmp_path, boot="b") | {"host": ""} == {
        "pid": 4, "ticks": None, "boot": "b", "space": "", "host": "",
    }  # fmt: skip
