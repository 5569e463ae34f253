"""The verbs of a program: what they write while a run records it, and nothing while none does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import joulelab
from joulelab.run import marking

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    marking.detach_writer()


def test_steps_and_facts_are_written_where_a_run_is_attached(tmp_path: Path) -> None:
    marking.attach_writer(tmp_path, 0)
    joulelab.fact(data="cifar-10", classes=10)
    with joulelab.phase("epoch", n=1):
        joulelab.step(samples=64)
        joulelab.step(samples=64)
    marking.detach_writer()
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert lines[0]["facts"] == {"data": "cifar-10", "classes": 10}
    begun = [(line["name"], line["n"], line.get("work")) for line in lines if line["mark"] == "begin"]
    step = {"steps": 1.0, "samples": 64.0}
    assert begun == [("epoch", 1, None), ("step", 1, step), ("step", 2, step)]
    joulelab.step(samples=64)
    joulelab.fact(data="gone")
    assert sum(len(path.read_text().splitlines()) for path in tmp_path.iterdir()) == len(lines)


def test_a_rank_of_another_node_counts_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "8")
    marking.attach_writer(tmp_path, 0)
    joulelab.step(samples=64)
    marking.detach_writer()
    (line,) = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert line["amounts"] == {"samples": 64.0}


def test_wrong_values_raise_neither_outside_of_a_run_nor_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def mark_wrongly() -> None:
        with joulelab.phase(5):  # type: ignore[arg-type]
            joulelab.work(samples="x")  # type: ignore[arg-type]
            joulelab.work(samples="y")  # type: ignore[arg-type]
            joulelab.work(tokens=-5)
            joulelab.step(images=-1.5)
        joulelab.mark(5)  # type: ignore[arg-type]

    mark_wrongly()
    assert caplog.records == []
    writer = marking.attach_writer(tmp_path, 0)
    mark_wrongly()
    marking.detach_writer()
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    names = {line.get("name") for line in lines if line["mark"] in ("begin", "switch")}
    assert names == {"5", "step", 5}
    assert [line["amounts"] for line in lines if line["mark"] == "work"] == [{"steps": 1.0}]  # the step itself counts
    assert writer.lost == 4
    assert [r.getMessage() for r in caplog.records] == [
        "work that is no number is not counted: samples='x'",
        "work below zero is not counted: tokens=-5",
        "work below zero is not counted: images=-1.5",
    ]


def test_every_public_name_is_found() -> None:
    assert {"fact", "step", "track"} <= set(dir(joulelab))
    assert [name for name in joulelab.__all__ if not hasattr(joulelab, name)] == []
