"""What a killed twin leaves behind is removed by the next one."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from joulelab.core.process_identity import identify_process, read_start_ticks
from joulelab.twin.twin_server import PREFIX, TwinServer, remove_leftovers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system


def left_by(parent: Path, name: str, told: dict[str, object] | None) -> Path:
    folder = parent / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "truth").write_text("")
    if told is not None:
        (folder / "owner").write_text(json.dumps(told))
    return folder


def test_only_what_dead_twins_left_is_swept(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    alive = identify_process(child.pid)
    live = left_by(tmp_path, "live", alive)
    reused = left_by(tmp_path, "reused", alive | {"ticks": 1})
    rebooted = left_by(tmp_path, "rebooted", alive | {"boot": "another", "space": "another"})
    elsewhere = left_by(tmp_path, "elsewhere", alive | {"space": "pid:[1]"})
    unknown = left_by(tmp_path, "unknown", None)
    (tmp_path / f"{PREFIX}link").symlink_to(reused)
    try:
        remove_leftovers(tmp_path)
        assert [p.exists() for p in (live, elsewhere, unknown)] == [True] * 3
        assert [p.exists() for p in (reused, rebooted)] == [False] * 2
    finally:
        child.kill()
        child.wait()
    remove_leftovers(tmp_path)
    assert not live.exists()


def test_a_twin_sweeps_when_it_starts_and_says_whose_it_is(tmp_path: Path) -> None:
    dead = left_by(tmp_path, "dead", identify_process() | {"ticks": 1})
    with TwinServer(directory=tmp_path) as twin:
        assert not dead.exists()
        told = json.loads((twin.directory / "owner").read_text())
        assert (told["pid"], told["ticks"]) == (os.getpid(), read_start_ticks())
        remove_leftovers(tmp_path)
        assert twin.directory.exists()
    assert list(tmp_path.iterdir()) == []
