from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tests.hostile.folders import COMMANDS, KINDS, Kind, call, make_store, make_whole, tell_expected

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 20.0
# One folder of each sort in the quick tier; all of them in `make test`.
QUICK = (
    "run.json: a FIFO",
    "end.json: changed",
    "results.json: changed",
    "manifest.json: cut off",
    "Parquet: cut off",
    "journal: cut off",
    "events: a link out",
    "marks: deleted",
)
Whole = dict[bool, tuple["Path", "Path"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return two whole runs, sealed and not sealed."""
    return {sealed: make_whole(tmp_path_factory.mktemp("whole"), sealed=sealed) for sealed in (True, False)}


def list_kinds() -> list[object]:
    def choose_tier(name: str) -> list[pytest.MarkDecorator]:
        if name in QUICK:
            return []
        return [pytest.mark.campaign if "200,000" in name else pytest.mark.system]  # half a minute

    return [pytest.param(kind, id=name, marks=choose_tier(name)) for name, kind in KINDS.items()]


def test_there_are_enough_kinds() -> None:
    assert len(KINDS) >= 34
    assert set(KINDS) >= set(QUICK)


@pytest.mark.parametrize("kind", list_kinds())
def test_every_command_goes_on_and_tells_damage(tmp_path: Path, whole: Whole, kind: Kind) -> None:
    if kind.reader and not os.geteuid():
        pytest.skip("root may read everything")
    runs = tmp_path / "runs"
    good, bad = make_store(runs, kind, whole[kind.sealed])
    found = {command: call(command, runs, good, bad) for command in reversed(COMMANDS)}
    wanted = {command: tell_expected(kind, command) for command in COMMANDS}
    assert {c: f.verdict for c, f in found.items() if wanted[c]} == {c: v for c, v in wanted.items() if v}, found
    assert all(f.seconds < LIMIT_S for f in found.values())
