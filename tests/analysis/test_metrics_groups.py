"""Test studies of several workloads, phases and node types: what is compared with what, and what never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.analysis.studies import cell, trial

from joulelab.analysis.cells import Cell
from joulelab.analysis.goal import Goal
from joulelab.analysis.metrics import Summary, summarise
from joulelab.analysis.repeats import Sample
from joulelab.core.errors import ConfigError


def _cells(n: int = 2, **extra: Any) -> list[Cell]:
    """Return two workloads on two node types."""
    return [
        cell(f"{w}-{node}", [trial(e * (1 + k / 100), e / 5) for k in range(n)], workload=w, node=node, **extra)
        for w, e0 in (("lstm", 100.0), ("vgg", 900.0))
        for node, e in (("gpu", e0), ("cpu", 3 * e0))
    ]


def _references(summary: Summary) -> dict[str, str | None]:
    return {line.key: line.reference for line in summary.lines}


def test_workloads_are_never_in_one_line_nor_compared() -> None:
    found = summarise(_cells(), goals=[Goal("energy")], reference={"node": "cpu"})
    assert _references(found) == {"workload=lstm": "lstm-cpu", "workload=vgg": "vgg-cpu"}
    assert [line.axis for line in found.lines] == ["node", "node"]
    assert found.lines[0].cells == ("lstm-gpu", "lstm-cpu")
    assert {b.line for b in found.best} == {"workload=lstm", "workload=vgg"}
    assert {f.line for f in found.fronts} == {"workload=lstm", "workload=vgg"}
    assert found.reference is None
    assert all(p.cell[:3] == p.against[:3] for p in found.pairs)


def test_without_a_reference_it_is_the_first_cell() -> None:
    assert set(_references(summarise(_cells())).values()) == {"lstm-gpu", "vgg-gpu"}


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
    assert list(_references(summarise(_cells(), reference=reference)).values()) == expected


def test_a_reference_that_is_nowhere_is_refused_and_one_of_a_single_node_is_not() -> None:
    with pytest.raises(ConfigError, match="no cell has node=fpga"):
        summarise(_cells(), reference={"node": "fpga"})
    alone = [cell(f"b{b}", [trial(9.0, 1.0)], batch=b) for b in (1, 2)]
    assert _references(summarise(alone, reference={"node": "local", "workload": "train"})) == {"": "b1"}
    assert _references(summarise(alone, reference={"node": "local", "batch": 2})) == {"": "b2"}


def test_a_reference_that_one_workload_does_not_have_leaves_its_line_without() -> None:
    cells = [c for c in _cells() if c.key != "vgg-gpu"]
    found = summarise(cells, reference={"node": "gpu"})
    assert _references(found) == {"workload=lstm": "lstm-gpu", "workload=vgg": None}
    assert any("reference has no run for workload=vgg" in note for note in found.notes)


def test_a_cap_is_still_the_axis_and_only_of_the_workload_that_has_it() -> None:
    cells = [
        cell(f"{node}-{cap}", [trial(cap + k, 9.0) for k in range(2)], workload="lstm", node=node, cap=float(cap))
        for node in ("a", "b")
        for cap in (200, 300)
    ]
    cells += [cell(node, [trial(9.0, 2.0)] * 2, workload="vgg", node=node) for node in ("a", "b")]
    found = summarise(cells, goals=[Goal("energy")])
    assert _references(found) == {
        "workload=lstm node=a": "a-300",
        "workload=lstm node=b": "b-300",
        "workload=vgg": "a",
    }
    assert [line.axis for line in found.lines] == ["cap", "cap", "node"]
    assert "cap" not in found.cell("a").knobs
    assert all(b.line is not None for b in found.best)
    one = summarise(cells, reference={"workload": "lstm", "node": "a"})
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
    both, alone = summarise([*wild, *calm]), summarise(calm)
    assert [line.key for line in both.lines] == ["phase=predict", "phase=train"]
    one, other = both.cell("t-gpu").energy, alone.cell("t-gpu").energy
    assert one is not None
    assert other is not None
    assert one.expanded == pytest.approx(other.expanded)
    assert not any("Look at" in note for note in both.notes)


def test_work_is_told_by_workload_where_it_differs() -> None:
    cells = [
        replace(c, trials=tuple(replace(t, work={"images": 10.0 if "gpu" in c.key else 20.0}) for t in c.trials))
        if "vgg" in c.key
        else c
        for c in _cells()
    ]
    found = summarise(cells)
    assert [line.per for line in found.lines] == [None, "images"]
    notes = [note for note in found.notes if "work" in note.lower()]
    assert notes[0].startswith("workload=lstm: no work was reported")
    assert notes[1].startswith("workload=vgg: amounts of work differ")


def test_scaling_is_found_within_a_workload() -> None:
    cells = [
        cell(f"{w}{g}", [trial(9.0 / g, 9.0 / g)] * 2, workload=w, gpus=g) for w in ("lstm", "vgg") for g in (1, 2)
    ]
    found = summarise(cells)
    assert [s.knobs for s in found.scaling] == [{"workload": "lstm"}, {"workload": "vgg"}]


def test_moments_warm_ups_and_odd_repeats_are_noted() -> None:
    told = Cell("m", {"node": "paper"}, moments={"energy": Sample(5, 100.0, 2.0), "time": Sample(5, 10.0, 0.1)})
    odd = [trial(v, 10.0) for v in (100.0, 100.5, 99.5, 100.2, 99.9, 180.0)]
    found = summarise([told, replace(cell("r", odd, node="here"), warmup=2)])
    text = "\n".join(found.notes)
    assert "1 of 2 cells has no runs here" in text
    assert "2 warm-up runs are kept and not counted." in text
    assert "Look at node=here: a repeat does not look like the others" in text
    assert found.cell("m").n == 5
    single = summarise([replace(cell("r", [trial(1.0, 1.0)], node="here"), warmup=1)])
    assert any(note == "1 warm-up run is kept and not counted." for note in single.notes)


def test_a_study_of_nothing() -> None:
    assert summarise([]).pairs == ()
