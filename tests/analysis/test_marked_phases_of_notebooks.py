"""Phases of a notebook's kernel lie in the cells that another process marked."""

from __future__ import annotations

from typing import Any

from joulelab.analysis.marked_phases import list_phases


def begin(t: int, identity: str, name: str, *, n: int | None = None, host: str = "h", **labels: str) -> dict[str, Any]:
    line = {"t": t, "mark": "begin", "id": identity, "name": name, "n": n, "labels": labels, "parent": None}
    return {**line, "host": host, "source": identity.partition("-")[0]}


def end(t: int, identity: str, host: str = "h") -> dict[str, Any]:
    return {"t": t, "mark": "end", "id": identity, "host": host, "source": identity.partition("-")[0]}


CELLS = [
    begin(10, "1-1", "cell", n=1, notebook="a.ipynb"),
    end(20, "1-1"),
    begin(20, "1-2", "between cells", notebook="a.ipynb"),
    end(30, "1-2"),
    begin(30, "1-3", "cell", n=2, notebook="a.ipynb"),
    end(40, "1-3"),
]


def parents(*marks: dict[str, Any]) -> dict[str, str | None]:
    phases, _ = list_phases([*CELLS, *marks], 0, 100)
    return {p.title: p.parent for p in phases if "notebook" not in p.labels}


def test_a_phase_inside_a_cell_is_a_part_of_it() -> None:
    marks = begin(32, "2-1", "train"), end(38, "2-1"), begin(10, "2-2", "load"), end(20, "2-2")
    assert parents(*marks) == {"train": "h/1-3", "load": "h/1-1"}


def test_what_reaches_over_a_cell_or_lies_elsewhere_stays_for_itself() -> None:
    over = begin(15, "2-1", "over"), end(25, "2-1")
    before = begin(2, "2-2", "before"), end(5, "2-2")
    elsewhere = begin(32, "2-3", "elsewhere", host="other"), end(38, "2-3", host="other")
    assert parents(*over, *before, *elsewhere) == {"over": None, "before": None, "elsewhere": None}


def test_a_phase_that_has_a_parent_keeps_it_and_its_work_reaches_the_cell() -> None:
    inner = {**begin(33, "2-2", "step"), "parent": "2-1"}
    work = {"t": 36, "mark": "work", "from": 33, "phase": "2-2", "amounts": {"samples": 4}, "host": "h", "source": "2"}
    marks = [*CELLS, begin(32, "2-1", "train"), inner, work, end(37, "2-2"), end(38, "2-1")]
    phases, _ = list_phases(marks, 0, 100)
    done = {p.title: (p.parent, p.work) for p in phases if p.work}
    samples = {"samples": 4.0}
    assert done == {"cell 2": (None, samples), "train": ("h/1-3", samples), "step": ("h/2-1", samples)}
