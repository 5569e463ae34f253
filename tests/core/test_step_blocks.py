"""Steps: which become phases of their own, what lies between them, how many there are, and facts beside them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.clock import NS
from joulelab.core.marks import MarkWriter, read_global_rank, write_shell_fact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MS = NS // 1000


class Clock:
    def __init__(self) -> None:
        self.t = NS

    def __call__(self) -> int:
        return self.t


class Loop:
    """Train in virtual time, and read what was written."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.clock = folder, Clock()
        self.writer = MarkWriter(folder, now=self.clock, **options)
        self._open: list[str | None] = []

    def begin(self, name: str, n: int | None = None) -> None:
        self._open.append(self.writer.begin(name, n))

    def end(self) -> None:
        ended = self._open.pop()
        self.writer.end(ended, self._open[-1] if self._open else None)

    def step(self, took_ms: float = 10, **amounts: float) -> None:
        self.clock.t += round(took_ms * MS)
        self.writer.step(amounts)

    def lines(self) -> list[dict[str, Any]]:
        self.writer.flush()
        return [json.loads(line) for path in sorted(self.folder.iterdir()) for line in path.read_text().splitlines()]

    def blocks(self) -> list[tuple[int, int, float, float]]:
        """Return first and last step of each block, and when it began and how long it took, in ms."""
        return [
            (begin["n"], begin["labels"].get("to", begin["n"]), (begin["t"] - NS) / MS, (end["t"] - begin["t"]) / MS)
            for begin, end in self._pairs()
        ]

    def parts(self) -> list[dict[str, float]]:
        return [begin["work"] for begin, _ in self._pairs()]

    def _pairs(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        lines = self.lines()
        ends = {line["id"]: line for line in lines if line["mark"] == "end"}
        return ((line, ends[line["id"]]) for line in lines if line.get("name") == "step" and line["mark"] == "begin")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    loop = Loop(tmp_path)
    yield loop
    while loop._open:
        loop.end()  # no phase of this test goes on in the next


def test_steps_are_work_and_phases_that_follow_each_other(loop: Loop) -> None:
    loop.begin("epoch", 1)
    for _ in range(3):
        loop.step(10, samples=64)
    loop.clock.t += 5 * MS
    loop.end()
    assert loop.blocks() == [(1, 1, 0, 10), (2, 2, 10, 10), (3, 3, 20, 10)]
    assert loop.parts() == [{"steps": 1.0, "samples": 64.0}] * 3
    work = [line for line in loop.lines() if line["mark"] == "work"]
    assert {line["phase"] for line in work} == {next(x["id"] for x in loop.lines() if x.get("name") == "epoch")}
    assert sum(line["amounts"]["steps"] for line in work) == 3
    assert sum(line["amounts"]["samples"] for line in work) == 192
    parents = {line["parent"] for line in loop.lines() if line.get("name") == "step"}
    assert parents == {line["phase"] for line in work}


def test_begin_and_end_are_one_write(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.begin("epoch")
    written: list[bytes] = []
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or len(data))
    loop.writer.flush()
    loop.step(10)
    loop.writer.flush()
    assert [data.count(b"\n") for data in written if b'"step"' in data] == [2]


def test_a_block_ends_where_another_phase_begins(loop: Loop) -> None:
    loop.begin("epoch")
    for _ in range(151):
        loop.step(1)
    loop.begin("validation")
    loop.end()
    assert loop.blocks()[-1][1] == 151


def test_numbers_count_on_and_a_block_ends_with_its_phase(loop: Loop) -> None:
    for n in (1, 2):
        loop.begin("epoch", n)
        for _ in range(150):
            loop.step(1)
        loop.end()
    blocks = loop.blocks()
    assert blocks[:2] == [(1, 1, 0, 1), (2, 2, 1, 1)]
    assert [b[0] for b in blocks[1:]] == [b[1] + 1 for b in blocks[:-1]]
    assert blocks[-1][1] == 300
    assert any(b[1] == 150 for b in blocks)
    assert any(b[0] == 151 for b in blocks)
    assert max(b[1] - b[0] + 1 for b in blocks) > 1


@pytest.mark.system  # pure, and slow
@settings(max_examples=10)
@given(steps=st.integers(1, 10_000), took_us=st.integers(1, 10_000_000), epochs=st.integers(1, 20))
def test_a_training_of_any_length_has_a_few_hundred_blocks(
    tmp_path_factory: pytest.TempPathFactory, steps: int, took_us: int, epochs: int
) -> None:
    loop = Loop(tmp_path_factory.mktemp("marks"))
    loop.writer.fact({})  # the file is there
    for n in range(epochs):
        loop.begin("epoch", n)
        for _ in range(steps // epochs):
            loop.step(took_us / 1000)
        loop.end()
    blocks = loop.blocks()
    assert len(blocks) <= min(steps, 420 + epochs)
    assert sum(b[1] - b[0] + 1 for b in blocks) == steps // epochs * epochs
    assert sum(part["steps"] for part in loop.parts()) == steps // epochs * epochs


def test_a_phase_between_steps_is_no_part_of_them_one_inside_is(loop: Loop) -> None:
    loop.begin("epoch")
    for k in range(4):
        loop.begin("forward")
        loop.clock.t += 6 * MS
        loop.end()
        loop.step(4)
        if k == 1:
            loop.begin("validation")
            loop.clock.t += 500 * MS
            loop.end()
    loop.end()
    assert loop.blocks() == [(1, 1, 0, 10), (2, 2, 10, 10), (3, 3, 520, 10), (4, 4, 530, 10)]


def test_a_long_step_spoils_no_block(loop: Loop) -> None:
    loop.begin("epoch")
    for k in range(1, 151):
        loop.step(1000 if k == 126 else 1)
    loop.end()
    (long,) = [b for b in loop.blocks() if b[0] <= 126 <= b[1]]
    assert long[:2] == (126, 126)
    assert long[3] == 1000


def test_without_a_phase_the_first_step_is_counted_only(loop: Loop) -> None:
    for _ in range(3):
        loop.step(10)
    assert [b[:2] for b in loop.blocks()] == [(2, 2), (3, 3)]
    assert sum(line["amounts"]["steps"] for line in loop.lines() if line["mark"] == "work") == 3


def test_a_mark_ends_the_block_before_it(loop: Loop) -> None:
    loop.writer.switch("train")
    for _ in range(60):
        loop.step(1)
    loop.clock.t += 100 * MS
    loop.writer.switch("test")
    loop.step(1)
    assert loop.blocks()[0] == (1, 1, 0, 1)
    assert loop.blocks()[-1] == (61, 61, 160, 1)


def test_what_is_not_whole_is_written_at_the_end(loop: Loop) -> None:
    loop.begin("epoch")
    for _ in range(120):
        loop.step(1)
    loop.writer.close()
    assert loop.blocks()[-1][1] == 120


@pytest.mark.parametrize(
    ("options", "amounts", "blocks"),
    [
        ({}, {"steps": 2.0, "samples": 8.0}, 2),
        ({"first": False}, {"samples": 8.0}, 2),
        ({"rank": 1}, {"samples": 8.0}, 0),
    ],
)
def test_a_step_of_all_ranks_counts_once(
    tmp_path: Path, options: dict[str, Any], amounts: dict[str, float], blocks: int
) -> None:
    loop = Loop(tmp_path, **options)
    loop.begin("epoch")
    loop.step(10, samples=4)
    loop.step(10, samples=4)
    loop.end()
    work = [line["amounts"] for line in loop.lines() if line["mark"] == "work"]
    assert {k: sum(w.get(k, 0) for w in work) for w in work for k in w} == amounts
    assert len(loop.blocks()) == blocks


def test_a_step_without_anything_to_count_is_not_written(tmp_path: Path) -> None:
    loop = Loop(tmp_path, rank=2)
    loop.step(10)
    loop.writer.flush()
    assert list(tmp_path.iterdir()) == []


FORKED = """
import os, sys
from pathlib import Path
from joulelab.core.marks import MarkWriter
ticks = iter(range(10**9, 10**12, 10**6))
writer = MarkWriter(Path(sys.argv[1]), now=lambda: next(ticks))
phase = writer.begin("epoch", None)
for _ in range(120):
    writer.step({})
pid = os.fork()
if pid == 0:
    writer.step({})
    writer.step({})
    writer.flush()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
writer.end(phase, None)
print(pid)
"""


@pytest.mark.system
def test_a_forked_child_numbers_its_own_steps(tmp_path: Path) -> None:
    # In a process of its own: a worker that has loaded frameworks with threads cannot be forked safely.
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    pid = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    (own,) = tmp_path.glob(f"{pid}-*.jsonl")
    begun = [line for line in map(json.loads, own.read_text().splitlines()) if line["mark"] == "begin"]
    assert [(line["n"], line["labels"]) for line in begun] == [(2, {})]


@every_row(
    ("environ", "rank"),
    [
        ({}, 0),
        ({"RANK": "5", "SLURM_PROCID": "1"}, 5),
        ({"SLURM_PROCID": "3"}, 3),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"RANK": "x", "PMI_RANK": "4"}, 4),
    ],
)
def test_global_rank(environ: dict[str, str], rank: int) -> None:
    assert read_global_rank(environ) == rank


class Tensor:
    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> object:
        return self.value


class Several:
    def item(self) -> object:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    def __str__(self) -> str:
        return "several"


def test_facts_are_text_numbers_and_truth(tmp_path: Path) -> None:
    writer = MarkWriter(tmp_path)
    told = {"data": "cifar-10", "accuracy": 0.91, "classes": 10, "real": True, "loss": Tensor(0.5), "gone": None}
    writer.fact(told | {"path": tmp_path, "many": Several()})
    (line,) = [json.loads(x) for p in tmp_path.iterdir() for x in p.read_text().splitlines()]
    assert (line["mark"], line["rank"]) == ("fact", 0)
    assert line["facts"] == told | {"loss": 0.5, "path": str(tmp_path), "many": "several"}
    MarkWriter(tmp_path / "gone").fact({"x": 1})  # costs the fact only


def test_other_ranks_tell_no_facts(tmp_path: Path) -> None:
    MarkWriter(tmp_path, rank=1).fact({"data": "x"})
    assert list(tmp_path.iterdir()) == []


def test_a_shell_tells_facts_in_its_own_file(tmp_path: Path) -> None:
    write_shell_fact(tmp_path, {"data": "x", "n": 2}, shell=os.getpid())
    (path,) = tmp_path.iterdir()
    assert path.name.startswith(f"sh-{os.getpid()}-")
    assert json.loads(path.read_text())["facts"] == {"data": "x", "n": 2}


def test_steps_of_two_phases_are_gathered_apart(loop: Loop) -> None:
    loop.begin("outer")
    for _ in range(60):
        loop.step(1)
    loop.begin("inner")
    loop.step(1)
    loop.end()
    loop.step(1)
    loop.end()
    parents = [line["parent"] for line in loop.lines() if line.get("name") == "step"]
    assert len({parent for parent, _ in itertools.groupby(parents)}) == 2
    assert [b[:2] for b in loop.blocks()][-2:] == [(61, 61), (62, 62)]
