"""Test studies of several workloads, phases and node types: what is compared with what, and what never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.analysis.studies import cell, noted, trial

from joulelab.analysis.cell_comparison import RepeatSample
from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.study_cells import Cell, Note
from joulelab.core.errors import ConfigError
from joulelab.report.messages import word_note


def _cells(n: int = 2, **extra: Any) -> list[Cell]:
    """Return two workloads on two node types."""
    return [
        cell(f"{w}-{node}", [trial(e * (1 + k / 100), e / 5) for k in range(n)], workload=w, node=node, **extra)
        for w, e0 in (("lstm", 100.0), ("vgg", 900.0))
        for node, e in (("gpu", e0), ("cpu", 3 * e0))
    ]


def _references(summary: StudySummary) -> dict[str, str | None]:
    return {line.key: line.reference for line in summary.lines}


def test_workloads_are_never_in_one_line_nor_compared() -> None:
    found = summarise_cells(_cells(), goals=[Goal("energy")], reference={"node": "cpu"})
    assert _references(found) == {"workload=lstm": "lstm-cpu", "workload=vgg": "vgg-cpu"}
    assert [line.axis for line in found.lines] == ["node", "node"]
    assert found.lines[0].cells == ("lstm-gpu", "lstm-cpu")
    assert {b.line for b in found.best} == {"workload=lstm", "workload=vgg"}
    assert {f.line for f in found.fronts} == {"workload=lstm", "workload=vgg"}
    assert found.reference is None
    assert all(p.cell[:3] == p.against[:3] for p in found.pairs)


def test_without_a_reference_it_is_the_first_cell() -> None:
    assert set(_references(summarise_cells(_cells())).values()) == {"lstm-gpu", "vgg-gpu"}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"workload": "lstm", "node": "cpu"}, ["lstm-cpu", "vgg-cpu"]),
        ({"workload": "vgg"}, ["lstm-gpu", "vgg-gpu"]),
        ({"node": "cpu", "phase": "train"}, ["lstm-cpu", "vgg-cpu"]),
    ],
)
def test_what_a_reference_says_of_the_workload_holds_where_it_can(
    reference: dict[str, str], expected: list[str]
) -> None:
    assert list(_references(summarise_cells(_cells(), reference=reference)).values()) == expected


def test_a_reference_that_is_nowhere_is_refused_and_one_of_a_single_node_is_not() -> None:
    with pytest.raises(ConfigError) as caught:
        summarise_cells(_cells(), reference={"node": "fpga"})
    assert caught.value.code == "config.unknown-cell"
    alone = [cell(f"b{b}", [trial(9.0, 1.0)], batch=b) for b in (1, 2)]
    assert _references(summarise_cells(alone, reference={"node": "local", "workload": "train"})) == {"": "b1"}
    assert _references(summarise_cells(alone, reference={"node": "local", "batch": 2})) == {"": "b2"}


def test_a_reference_that_one_workload_does_not_have_leaves_its_line_without() -> None:
    cells = [c for c in _cells() if c.key != "vgg-gpu"]
    found = summarise_cells(cells, reference={"node": "gpu"})
    assert _references(found) == {"workload=lstm": "lstm-gpu", "workload=vgg": None}
    assert noted(found)["reference-missing"] == {"lines": 1}


def test_a_cap_is_still_the_axis_and_only_of_the_workload_that_has_it() -> None:
    cells = [
        cell(f"{node}-{cap}", [trial(cap + k, 9.0) for k in range(2)], workload="lstm", node=node, cap=float(cap))
        for node in ("a", "b")
        for cap in (200, 300)
    ]
    cells += [cell(node, [trial(9.0, 2.0)] * 2, workload="vgg", node=node) for node in ("a", "b")]
    found = summarise_cells(cells, goals=[Goal("energy")])
    assert _references(found) == {
        "workload=lstm node=a": "a-300",
        "workload=lstm node=b": "b-300",
        "workload=vgg": "a",
    }
    assert [line.axis for line in found.lines] == ["cap", "cap", "node"]
    assert "cap" not in found.cell("a").knobs
    assert all(b.line is not None for b in found.best)
    one = summarise_cells(cells, reference={"workload": "lstm", "node": "a"})
    assert _references(one)["workload=lstm node=b"] == "a-300"


def test_phases_are_apart_as_well_and_spreads_are_pooled_within() -> None:
    wild = [
        cell(f"p-{node}", [trial(100.0 + 30 * k, 9.0 + k) for k in range(5)], phase="predict", node=node)
        for node in ("gpu", "cpu")
    ]
    calm = [
        cell(f"t-{node}", [trial(100.0 + 0.01 * k, 9.0 + 0.001 * k) for k in range(5)], phase="train", node=node)
        for node in ("gpu", "cpu")
    ]
    both, alone = summarise_cells([*wild, *calm]), summarise_cells(calm)
    assert [line.key for line in both.lines] == ["phase=predict", "phase=train"]
    one, other = both.cell("t-gpu").energy, alone.cell("t-gpu").energy
    assert one is not None
    assert other is not None
    assert one.expanded == pytest.approx(other.expanded)
    assert not {"odd-runs", "wide-cells"} & {*noted(both)}


def test_work_is_told_by_workload_where_it_differs() -> None:
    cells = [
        replace(c, trials=tuple(replace(t, work={"images": 10.0 if "gpu" in c.key else 20.0}) for t in c.trials))
        if "vgg" in c.key
        else c
        for c in _cells()
    ]
    found = summarise_cells(cells)
    assert [line.per for line in found.lines] == [None, "images"]
    notes = [(note.code, note.texts["groups"]) for note in found.notes if note.code.startswith("work.")]
    assert notes == [("work.none", ("workload=lstm",)), ("work.differs", ("workload=vgg",))]


def test_scaling_is_found_within_a_workload() -> None:
    cells = [
        cell(f"{w}{g}", [trial(9.0 / g, 9.0 / g)] * 2, workload=w, gpus=g) for w in ("lstm", "vgg") for g in (1, 2)
    ]
    found = summarise_cells(cells)
    assert [s.knobs for s in found.scaling] == [{"workload": "lstm"}, {"workload": "vgg"}]


def test_moments_warm_ups_and_odd_repeats_are_noted() -> None:
    told = Cell(
        "m", {"node": "paper"}, moments={"energy": RepeatSample(5, 100.0, 2.0), "time": RepeatSample(5, 10.0, 0.1)}
    )
    odd = [trial(None, 10.0), *(trial(v, 10.0) for v in (100.0, 100.5, 99.5, 100.2, 99.9, 180.0))]
    odd = [replace(t, run=f"run-{k}" if k < 5 else "") for k, t in enumerate(odd)]
    found = summarise_cells([told, replace(cell("r", odd, node="here"), warmup=2)])
    assert noted(found)["no-runs-here"] == {"published": 1, "cells": 2}
    assert noted(found)["warm-up"] == {"runs": 2}
    assert noted(found)["odd-runs"] == {"cells": 1, "runs": 1, "chance": 50}
    assert found.cell("m").n == 5


def test_odd_runs_are_named_and_not_too_many_of_them() -> None:
    def made(k: int) -> Cell:
        runs = [replace(trial(v, 10.0), run=f"r{k}-{v:g}") for v in (100.0, 101.0, 99.0, 100.2, 99.9, 400.0)]
        return cell(f"c{k}", runs, batch=k)

    found = summarise_cells([made(k) for k in range(6)])
    (note,) = [n for n in found.notes if n.code == "odd-runs"]
    assert note.numbers == {"cells": 6, "runs": 6, "chance": pytest.approx(50)}
    text = word_note(note)
    assert ["r0-400" in text, "r3-400" in text, "r4-400" in text] == [True, True, False]
    calm = summarise_cells([cell("c", [trial(v, 10.0) for v in (100.0, 101.0, 99.0, 100.2, 99.9)], batch=1)])
    assert "odd-runs" not in noted(calm)


def test_that_repeats_are_too_few_to_see_an_odd_one_is_said_where_they_differ_much_and_once() -> None:
    def made(k: int, last: float) -> Cell:
        return cell(f"c{k}", [trial(v, 10.0 + v / 1e3) for v in (100.0, 100.1, last)], batch=k)

    found = summarise_cells([*(made(k, 100.2) for k in range(12)), made(12, 180.0), made(13, 190.0)])
    assert noted(found)["wide-cells"] == {"cells": 2, "few": True, "chance": 100}
    assert "odd-runs" not in noted(found)
    assert not any(s.outliers for of in found.statistics.values() for s in of.values())


def _nodes(caps: bool, *, skip: str = "") -> list[Cell]:
    """Return two node types and two batches; with caps on one node type only, or with none."""
    cells = []
    for node in ("gpu", "cpu"):
        for batch in (1, 2):
            for cap in (200.0, 300.0) if caps and node == "gpu" else (None,):
                knobs = {"node": node, "batch": batch} | ({} if cap is None else {"cap": cap})
                key = f"{node}{batch}" + (f"-{cap:g}" if cap else "")
                if key != skip:
                    cells.append(cell(key, [trial(100.0 * batch + k, 9.0 * batch) for k in range(2)], **knobs))
    return cells


def test_a_reference_elsewhere_is_the_cell_that_shares_most_knobs_and_has_the_highest_cap() -> None:
    found = summarise_cells(_nodes(caps=True), reference={"node": "gpu"})
    assert _references(found) == {
        "node=gpu batch=1": "gpu1-300",
        "node=gpu batch=2": "gpu2-300",
        "node=cpu batch=1": "gpu1-300",
        "node=cpu batch=2": "gpu2-300",
    }
    less = summarise_cells(_nodes(caps=True, skip="gpu2-300"), reference={"node": "gpu"})
    assert _references(less)["node=cpu batch=2"] == "gpu2-200"


def test_a_knob_that_the_reference_alone_names_is_what_lines_go_along() -> None:
    found = summarise_cells(_nodes(caps=False), goals=[Goal("energy")], reference={"node": "gpu"})
    assert [(x.key, x.axis, x.cells, x.reference) for x in found.lines] == [
        ("batch=1", "node", ("gpu1", "cpu1"), "gpu1"),
        ("batch=2", "node", ("gpu2", "cpu2"), "gpu2"),
    ]
    assert {(p.cell, p.against) for p in found.pairs} == {("cpu1", "gpu1"), ("cpu2", "gpu2")}
    assert found.reference == "gpu1"
    without = summarise_cells(_nodes(caps=False, skip="gpu2"), reference={"node": "gpu"})
    assert _references(without) == {"batch=1": "gpu1", "batch=2": "gpu1"}
    two = summarise_cells(_nodes(caps=False), reference={"node": "gpu", "batch": 2})
    assert _references(two) == {"": "gpu2"}


def test_a_knob_of_one_node_type_only_does_not_make_lines() -> None:
    cells = [cell(f"c{b}", [trial(9.0, 1.0)] * 2, node="cpu", batch=b) for b in (1, 2)]
    cells += [cell(f"g{b}-{g}", [trial(9.0, 1.0)] * 2, node="gpu", batch=b, gpus=g) for b in (1, 2) for g in (1, 4)]
    found = summarise_cells(cells, reference={"node": "gpu"})
    assert [(x.key, x.axis, x.cells, x.reference) for x in found.lines] == [
        ("batch=1", None, ("c1", "g1-1", "g1-4"), "g1-1"),
        ("batch=2", None, ("c2", "g2-1", "g2-4"), "g2-1"),
    ]


def test_a_study_of_nothing() -> None:
    assert summarise_cells([]).pairs == ()


def test_a_reference_that_names_a_workload_says_that_it_changes_nothing() -> None:
    said = Note("reference-unused", texts={"knobs": "Workloads", "value": "workload=lstm"})
    named = summarise_cells(_cells(), reference={"workload": "lstm"})
    assert said in named.notes
    assert _references(named) == _references(summarise_cells(_cells()))
    both = summarise_cells(_cells(), reference={"workload": "lstm", "node": "cpu"})
    assert said in both.notes
    assert _references(both) == _references(summarise_cells(_cells(), reference={"node": "cpu"}))
    assert "reference-unused" not in noted(summarise_cells(_cells(), reference={"node": "cpu"}))
    alone = [c for c in _cells() if c.knobs["workload"] == "lstm"]
    assert "reference-unused" not in noted(summarise_cells(alone, reference={"workload": "lstm"}))
    phases = [replace(c, key=f"{c.key}{p}", knobs={**c.knobs, "phase": p}) for c in alone for p in ("fit", "eval")]
    assert "reference-unused" in noted(summarise_cells(phases, reference={"phase": "fit"}))
