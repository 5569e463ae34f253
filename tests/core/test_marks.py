"""Marks: what lands in the file, in threads, forked children and on other ranks, and what they cost."""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core import marks
from joulelab.core.clock import NS
from joulelab.core.marks import (
    STAMPS,
    MarkWriter,
    count_local_ranks,
    current_phase,
    read_local_rank,
    write_shell_mark,
    write_shell_work,
)
from joulelab.core.process_identity import read_start_ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Clock:
    def __init__(self) -> None:
        self.t = NS

    def __call__(self) -> int:
        return self.t


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_phases_nest_and_name_their_parent(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    outer = writer.begin("train", labels={"lr": 0.1})
    inner = writer.begin("epoch", 3)
    assert current_phase() == inner
    writer.end(inner, outer)
    writer.end(outer, None)
    assert current_phase() is None
    begin, nested, *ends = lines(tmp_path)
    assert begin["mark"] == "begin"
    assert begin["labels"] == {"lr": 0.1}
    assert begin["parent"] is None
    assert (nested["name"], nested["n"], nested["parent"]) == ("epoch", 3, outer)
    assert nested["thread"] == threading.get_native_id()
    assert [e["id"] for e in ends] == [inner, outer]
    assert [p.name for p in tmp_path.iterdir()] == [f"{os.getpid()}-{read_start_ticks()}.jsonl"]


def test_what_cannot_be_written_is_lost_and_fails_nobody(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    endless: dict[str, object] = {}
    endless["self"] = endless
    writer.end(writer.begin("first", labels=endless))
    writer.end(writer.begin(17))  # type: ignore[arg-type]
    writer.end(writer.begin("part", "b"))  # type: ignore[arg-type]
    writer.end(writer.begin("part", 2.0))  # type: ignore[arg-type]
    assert writer.lost == 1
    begun = [(line["name"], line["n"]) for line in lines(tmp_path) if line["mark"] == "begin"]
    assert begun == [("17", None), ("part b", None), ("part", 2)]


@every_row(
    ("rank", "verb", "kinds"),
    [
        (0, lambda w: w.begin("child"), ["begin"]),
        (0, lambda w: w.end("1-1"), []),
        (0, lambda w: w.switch("child"), ["switch"]),
        (0, lambda w: w.fact({"a": 1}), ["fact"]),
        (0, lambda w: w.past("child", 2, 1, {"x": 3}), ["begin", "work", "end"]),
        (1, lambda w: w.past("child", 2, 1, {"x": 3}), ["work"]),
        (1, lambda w: w.begin("child"), []),
        (1, lambda w: w.switch("child") or w.fact({"a": 1}), []),
    ],
)
def test_a_process_of_its_own_begins_a_file_of_its_own(
    tmp_path: Path, rank: int, verb: Callable[[MarkWriter], object], kinds: list[str]
) -> None:
    writer = MarkWriter(tmp_path, rank=rank)
    before = current_phase()
    writer._pid = -1  # as after a fork
    verb(writer)
    writer.close()
    marks._phase.set(before)
    assert [line["mark"] for line in lines(tmp_path)] == kinds


def test_what_has_passed_is_work_of_that_time_on_every_rank(tmp_path: Path) -> None:
    clock = Clock()
    for rank in (0, 1):
        writer = MarkWriter(tmp_path / str(rank), rank=rank, now=clock)
        writer.folder.mkdir()
        clock.t = 5 * NS
        writer.work({"x": 1})
        clock.t = 9 * NS
        writer.past("validation", 3, 6 * NS, {"y": 2})
        writer.past("nothing", None, 6 * NS, {})
        writer.close()
    first, other = lines(tmp_path / "0"), lines(tmp_path / "1")
    assert [line["name"] for line in first if line["mark"] == "begin"] == ["validation", "nothing"]
    (late,) = [line for line in other if "y" in line.get("amounts", {})]
    assert (late["from"], late["t"], late["amounts"]) == (6 * NS, 9 * NS, {"y": 2})


def test_a_call_in_the_midst_of_another_waits_for_nobody(tmp_path: Path) -> None:
    """As in a signal handler or a finalizer, which may come at any line."""
    writer = MarkWriter(tmp_path)
    write = writer._write

    def interrupted(text: str) -> None:
        if "outer" in text:
            writer.end(writer.begin("inner", at_ns=7), at_ns=8)
            writer.step({"x": 1})
            writer.flush()
        write(text)

    writer._write = interrupted  # type: ignore[method-assign]
    writer.end(writer.begin("outer"))
    writer.close()
    names = [line["name"] for line in lines(tmp_path) if line["mark"] == "begin"]
    assert sorted(name for name in names if name != "step") == ["inner", "outer"]
    assert sum(line["amounts"]["x"] for line in lines(tmp_path) if line["mark"] == "work") == 1


def test_who_closes_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "CLOSE_S", 0.01)
    writer = MarkWriter(tmp_path)
    writer.fact({"a": 1})
    with writer._lock:
        writer.close()
    writer.close()
    writer.close()
    assert len(lines(tmp_path)) == 1


def test_work_that_is_no_number_is_left_out_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = MarkWriter(tmp_path)
    for wrong in ("many", float("nan"), None):
        writer.step({"samples": 2, "tokens": wrong})  # type: ignore[dict-item]
    writer.flush()
    assert writer.lost == 3
    assert caplog.text.count("tokens='many'") == 1
    written = [line["amounts"] for line in lines(tmp_path) if line["mark"] == "work"]
    assert {name: sum(a[name] for a in written) for name in written[0]} == {"steps": 3, "samples": 6}


def test_facts_can_be_shown_whatever_they_are(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    writer.fact({"path": "\udc80x", "huge": 10**400, "large": -5, "flag": True, "nothing": None, "list": [1]})
    writer.fact({"odd": 10**5000})
    line, odd = lines(tmp_path)
    told = {"path": "\\udc80x", "huge": str(10**400), "large": -5, "flag": True, "nothing": None, "list": "[1]"}
    assert line["facts"] == told
    assert odd["facts"] == {"odd": "int (ValueError)"}


def test_a_thread_has_its_own_innermost_phase(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    outer = writer.begin("main")
    thread = threading.Thread(target=lambda: writer.end(writer.begin("worker"), None))
    thread.start()
    thread.join()
    assert current_phase() == outer
    writer.end(outer, None)
    assert [line["parent"] for line in lines(tmp_path) if line["mark"] == "begin"] == [None, None]


@given(gaps=st.lists(st.integers(0, NS), min_size=1, max_size=80))
def test_work_is_summed_and_nothing_is_lost(tmp_path_factory: pytest.TempPathFactory, gaps: list[int]) -> None:
    folder = tmp_path_factory.mktemp("marks")
    clock = Clock()
    writer = MarkWriter(folder, now=clock)
    times = []
    for gap in gaps:
        clock.t += gap
        times.append(clock.t)
        writer.work({"samples": 64})
    writer.flush()
    written = lines(folder)
    assert sum(w["amounts"]["samples"] for w in written) == 64 * len(gaps)
    assert sum(w["count"] for w in written) == len(gaps)
    assert len(written) <= 2 + (times[-1] - times[0]) // (NS // 2)
    assert written[0]["from"] == times[0]
    for before, after in itertools.pairwise(written):
        assert after["from"] == before["t"]
    for w in written:
        assert len(w["at"]) <= STAMPS
        assert set(w["at"]) <= set(times)
        assert w["from"] <= w["at"][0] <= w["t"]


def test_work_belongs_to_the_phase_it_was_reported_in(tmp_path: Path) -> None:
    clock = Clock()
    writer = MarkWriter(tmp_path, now=clock)
    first = writer.begin("a")
    clock.t += 10
    writer.work({"steps": 1})
    writer.end(first, None)
    second = writer.begin("b")
    clock.t += 10
    writer.work({"steps": 2, "tokens": 5})
    clock.t += 7
    writer.end(second, None)
    work = [line for line in lines(tmp_path) if line["mark"] == "work"]
    assert [(w["phase"], w["amounts"]) for w in work] == [
        (first, {"steps": 1.0}),
        (second, {"steps": 2.0, "tokens": 5.0}),
    ]
    assert [w["t"] - w["from"] for w in work] == [10, 10]


def test_other_ranks_write_work_but_no_phases(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path, rank=3)
    assert writer.begin("epoch") is None
    writer.switch("x")
    writer.work({"samples": 1})
    writer.end(None, None)
    (work,) = lines(tmp_path)
    assert (work["mark"], work["phase"], work["rank"]) == ("work", None, 3)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [({}, 0), ({"LOCAL_RANK": "2", "SLURM_LOCALID": "0"}, 2), ({"SLURM_LOCALID": "1"}, 1), ({"LOCAL_RANK": "x"}, 0)],
)
def test_local_rank(environ: dict[str, str], rank: int) -> None:
    assert read_local_rank(environ) == rank


def test_local_ranks() -> None:
    counts = [count_local_ranks({name: "4"}) for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OTHER")]
    assert counts == [4, 4, 1]


FORKED = """
import os, sys
from pathlib import Path
from joulelab.core.marks import MarkWriter
writer = MarkWriter(Path(sys.argv[1]))
phase = writer.begin("parent")
writer.work({"samples": 1})
writer._lock.acquire()  # a lock that another thread holds at the fork must not hang the child
pid = os.fork()
if pid == 0:
    try:
        writer.flush()
        writer.work({"samples": 10})
        writer.end(phase, None)
        writer.flush()
    finally:
        os._exit(0)
writer._lock.release()
assert os.waitpid(pid, 0)[1] == 0
writer.end(phase, None)
print(os.getpid(), pid)
"""


@pytest.mark.system
def test_a_forked_child_writes_its_own_file_and_not_its_parents_work(tmp_path: Path) -> None:
    # In a process of its own: a worker that has loaded frameworks with threads cannot be forked safely.
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    parent, child = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    by_process = {p.name.split("-")[0]: p.read_text() for p in tmp_path.iterdir()}
    assert set(by_process) == {parent, child}
    assert '"samples":10' in by_process[child]
    assert '"end"' not in by_process[child]
    assert by_process[parent].count('"work"') == 1


def test_a_folder_that_is_gone_costs_the_marks_only(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path / "gone")
    writer.end(writer.begin("x"), None)
    assert writer.lost == 2


def test_a_process_without_multiprocessing_asks_it_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "multiprocessing.util", raising=False)
    writer = MarkWriter(tmp_path)
    writer.end(writer.begin("train"), None)
    assert [line["mark"] for line in lines(tmp_path)] == ["begin", "end"]


def test_a_worker_of_multiprocessing_writes_what_is_left_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending: list[Callable[[], None]] = []
    util = SimpleNamespace(Finalize=lambda _, flush, **__: ending.append(flush))
    monkeypatch.setitem(sys.modules, "multiprocessing.util", util)
    writer = MarkWriter(tmp_path, now=Clock())
    for _ in range(3):
        writer.work({"samples": 1})
    assert sum(line["amounts"]["samples"] for line in lines(tmp_path)) < 3
    for flush in ending:
        flush()
    assert sum(line["amounts"]["samples"] for line in lines(tmp_path)) == 3


def test_a_shell_marks_by_its_own_file(tmp_path: Path) -> None:
    write_shell_mark(tmp_path, "load", 1, shell=os.getpid())
    write_shell_mark(tmp_path, None, shell=os.getpid())
    (path,) = tmp_path.iterdir()
    assert path.name == f"sh-{os.getpid()}-{read_start_ticks()}.jsonl"
    assert [(m["mark"], m["name"], m["n"]) for m in lines(tmp_path)] == [("switch", "load", 1), ("switch", None, None)]


def test_a_shell_reports_work_in_the_same_file(tmp_path: Path) -> None:
    write_shell_mark(tmp_path, "load", shell=os.getpid())
    write_shell_work(tmp_path, {"samples": 64.0}, shell=os.getpid())
    _, reported = lines(tmp_path)
    assert (reported["mark"], reported["amounts"], reported["phase"]) == ("work", {"samples": 64.0}, None)
    assert reported["at"] == [reported["from"]]


def test_closing_is_not_final(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    writer.switch("a")
    writer.close()
    writer.close()
    writer.switch("b")
    writer.close()
    assert [m["name"] for m in lines(tmp_path)] == ["a", "b"]


def test_stamps_of_many_reports_stay_spread_over_their_line(tmp_path: Path) -> None:
    clock = iter(range(1_000, 10_000_000, 1_000))
    writer = MarkWriter(tmp_path, now=lambda: next(clock))
    writer.work({"samples": 1})  # the first report of a file is written at once
    for _ in range(5 * STAMPS):
        writer.work({"samples": 1})
    writer.close()
    at = lines(tmp_path)[-1]["at"]
    steps = {b - a for a, b in itertools.pairwise(at)}
    assert STAMPS // 2 <= len(at) <= STAMPS
    assert len(steps) == 1
    assert steps.pop() > 1_000


def test_a_line_that_a_full_disk_cuts_costs_itself_only(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    first = writer.begin("first")
    (path,) = tmp_path.iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        writer.begin("cut")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert writer.lost == 1
    writer.begin("last")
    writer.end(first, None)  # no phase of this test goes on in the next
    text = path.read_text()
    assert '"first"' in text.splitlines()[0]
    assert '"last"' in text
