"""Steps and facts out of marks: nested in their phase, work counted once, shallow phases first."""

from __future__ import annotations

import pytest
from tests.analysis.folders import Folder
from tests.analysis.nodes import END as TO
from tests.analysis.nodes import START as FROM
from tests.analysis.nodes import node
from tests.analysis.test_marked_phases import END, START, begin, end, switch, work
from tests.analysis.virtual import ns
from tests.rows import every_row

from joulelab.analysis import analyse as module
from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.marked_phases import find_stretches, list_facts, list_phases


def steps(t, until, identity, n, to, parent, amounts, **more):
    labels = {"to": to} if to > n else {}
    first = begin(t, identity, "step", parent, n, labels=labels, work=amounts, **more)
    return [first, end(until, identity, **more)]


def test_steps_have_their_own_work_and_their_phase_has_it_once():
    marks = [
        begin(2_000, "100-1", "epoch", n=3),
        *steps(2_000, 3_000, "100-2", 17, 17, "100-1", {"samples": 64.0, "steps": 1.0}),
        *steps(3_000, 6_000, "100-3", 18, 50, "100-1", {"samples": 600.0, "steps": 33.0}),
        work(6_000, {"samples": 664.0, "steps": 34.0}, "100-1"),
        end(7_000, "100-1"),
    ]
    phases, done = list_phases(marks, START, END)
    assert [p.title for p in phases] == ["epoch 3", "step 17", "step 18-50"]
    assert [p.parent for p in phases] == [None, phases[0].id, phases[0].id]
    assert [p.work["samples"] for p in phases] == [664.0, 64.0, 600.0]
    assert [p.last for p in phases] == [None, 17, 50]
    assert done.amounts == {"samples": 664.0, "steps": 34.0}


def test_work_of_other_ranks_is_shared_among_steps_by_time_their_own_process_is_not():
    marks = [
        *steps(2_000, 3_000, "100-2", 1, 1, None, {"samples": 10.0}),
        *steps(3_000, 5_000, "100-3", 2, 3, None, {"samples": 20.0}),
        work(5_000, {"samples": 30.0}) | {"from": 2_000},
        work(4_500, {"samples": 25.0}, rank=1, source="101-7") | {"from": 2_000},
        work(9_000, {"samples": 1.0}, rank=1, source="101-7") | {"from": 8_000},
        work(4_500, {"samples": 7.0}, rank=1, source="101-7", host="node2"),
    ]
    phases, done = list_phases(marks, START, END)
    assert [p.work["samples"] for p in phases] == [pytest.approx(20.0), pytest.approx(35.0)]
    assert done.amounts == {"samples": 63.0}


def test_steps_of_several_hosts_are_those_of_the_first_with_the_work_of_all():
    marks = []
    for host in ("node0", "node1"):
        lines = [begin(2_000, "100-1", "epoch"), *steps(2_000, 3_000, "100-2", 1, 1, "100-1", {"samples": 10.0})]
        lines += [*steps(3_000, 5_000, "100-3", 2, 3, "100-1", {"samples": 20.0}), end(5_000, "100-1")]
        lines += [work(5_000, {"samples": 30.0}, "100-1") | {"from": 2_000}]
        marks += [line | {"host": host} for line in lines]
    phases, done = list_phases(marks, START, END, "node1")
    assert [(p.title, p.host) for p in phases] == [("epoch", "node1"), ("step 1", "node1"), ("step 2-3", "node1")]
    assert [p.work["samples"] for p in phases] == pytest.approx([60.0, 20.0, 40.0])
    assert done.amounts == {"samples": 60.0}


def test_steps_lie_in_what_their_process_switched_to_and_in_no_other():
    own, other = "100-7", "sh-5-1"
    marks = [
        switch(2_000, "train", own),
        *steps(2_000, 3_000, "100-2", 1, 9, None, {"steps": 9.0}),
        switch(4_000, "test", own),
        *steps(4_000, 5_000, "100-3", 10, 10, None, {"steps": 1.0}),
        switch(6_000, None, own),
        *steps(6_000, 7_000, "100-4", 11, 11, None, {"steps": 1.0}),
        switch(1_500, "script", other),
    ]
    phases, _ = list_phases(marks, START, END)
    titles = {p.id: p.title for p in phases}
    assert {p.title: titles.get(p.parent) for p in phases if p.steps} == {
        "step 1-9": "train",
        "step 10": "test",
        "step 11": None,
    }


def test_steps_of_a_kernel_lie_in_their_cell():
    marks = [
        begin(2_000, "5-1", "cell 1", labels={"notebook": "x"}, source="5-7"),
        end(5_000, "5-1", source="5-7"),
        *steps(3_000, 4_000, "100-2", 1, 1, None, {"steps": 1.0}),
    ]
    phases, _ = list_phases(marks, START, END)
    assert [(p.title, p.parent) for p in phases] == [("cell 1", None), ("step 1", phases[0].id)]


def test_a_label_of_somebody_elses_phase_is_no_number():
    phases, _ = list_phases([begin(2_000, "1-1", "copy", n=1, labels={"to": 5})], START, END)
    assert (phases[0].title, phases[0].last) == ("copy 1", None)


def fact(t, host="node1", **facts):
    return {"t": t, "mark": "fact", "facts": facts, "rank": 0, "host": host, "source": "100-7"}


def test_the_last_fact_of_a_name_wins_on_the_first_host():
    marks = [
        fact(5_000, "node2", data="theirs", nodes=2),
        fact(4_000, accuracy=0.9, data="ours", epochs=3),
        fact(2_000, accuracy=0.1, loss=None),
        fact(4_500, epochs=None),
        fact(9_500, accuracy=1.0),
        {"t": 3_000, "mark": "fact", "facts": "torn", "host": "node1"},
        fact(3_000, odd=[1, 2]),
        begin(1_500, "1-1", "train"),
    ]
    found = list_facts(marks, END, "node1")
    assert found == {"accuracy": 0.9, "data": "ours", "nodes": 2, "odd": "[1, 2]"}
    assert list_facts(marks, 10_000, "node1")["accuracy"] == 1.0
    assert list_facts([], END, "node1") == {}


def test_shallow_phases_have_energies_before_deep_ones_and_steps_come_last(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_PHASE_ENERGIES", 4)
    marks = []
    for k in range(3):
        at = 5 + 3 * k
        marks += [begin(ns(at), f"9-{k}", "epoch", n=k), end(ns(at + 3), f"9-{k}")]
        marks += steps(ns(at), ns(at + 1), f"9-1{k}", k + 1, k + 1, f"9-{k}", {"steps": 1.0})
        marks += [begin(ns(at + 1), f"9-2{k}", "inner", f"9-{k}"), end(ns(at + 2), f"9-2{k}")]
    lines = [{k: v for k, v in m.items() if k not in ("host", "source")} for m in marks]
    folder = node(Folder(tmp_path), gpus=1).marks("9-1", *lines, {"t": ns(6), "mark": "fact", "facts": {"data": "x"}})
    result = analyse_run(folder.close(FROM, TO).open())
    assert [p.title for p in result.phases if p.energy] == ["epoch 0", "inner", "epoch 1", "epoch 2"]
    assert [p.last for p in result.phases if p.name == "step"] == [1, 2, 3]
    assert {p.depth for p in result.phases if p.name == "step"} == {1}
    assert result.facts == result.to_json()["facts"] == {"data": "x"}


def test_steps_without_a_gap_are_one_stretch():
    marks = [
        begin(2_000_000, "100-1", "epoch"),
        *steps(2_000_000, 3_000_000, "100-2", 1, 1, "100-1", {"samples": 1.0}),
        *steps(3_000_000, 4_000_000, "100-3", 2, 9, "100-1", {"samples": 8.0}),
        *steps(5_000_000, 6_000_000, "100-4", 10, 10, "100-1", {}),
        *steps(6_000_000, 7_000_000, "100-5", 11, 11, None, {}),
        end(7_000_000, "100-1"),
    ]
    phases, _ = list_phases(marks, 0, 9_000_000)
    assert [[phases[k].title for k in places] for places in find_stretches(phases)] == [
        ["step 1", "step 2-9"],
        ["step 10"],
        ["step 11"],
    ]


def test_steps_beyond_the_limit_are_known_together(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_PHASE_ENERGIES", 1)
    marks = [begin(ns(5), "9-1", "epoch"), end(ns(9), "9-1")]
    for k in range(4):
        marks += steps(ns(5 + k), ns(6 + k), f"9-1{k}", k + 1, k + 1, "9-1", {"steps": 1.0})
    lines = [{k: v for k, v in m.items() if k not in ("host", "source")} for m in marks]
    folder = node(Folder(tmp_path), gpus=1).marks("9-1", *lines).close(FROM, TO)
    result = analyse_run(folder.open())
    epoch, (whole,) = result.phases[0], result.stretches
    assert (whole.title, whole.work, whole.depth) == ("step 1-4", {"steps": 4.0}, 1)
    assert not any(p.energy for p in result.phases[1:])
    assert whole.energy == epoch.energy, "one interval, so the same value and the same uncertainty"
    assert module._SpanEnergies([], [], module.RunSpan(0, 9, None), None).find_energies(5, 5) == {}
    monkeypatch.setattr(module, "MOST_STRETCH_ENERGIES", 0)
    assert analyse_run(folder.open()).stretches[0].energy == {}


@every_row(
    ("n", "kept"), [(3, 3), (3.0, 3), (0.5, None), (True, None), ("tensor(4)", None), (2**63, None), (None, None)]
)
def test_numbers_of_phases_are_whole(n, kept):
    phases, _ = list_phases([begin(2_000, "1-1", "p", n=n), switch(3_000, "s", "sh-1-1", n)], START, END)
    assert [p.n for p in phases] == [kept, kept]


def test_what_cannot_be_stored_is_written_out():
    marks = [fact(2_000, text="\udc80x", big=10**400, yes=True), fact(3_000, **{"\udc80": 1})]
    assert list_facts(marks, END, "node1") == {"text": r"\udc80x", "big": str(10**400), "yes": True, r"\udc80": 1}
    torn = [begin(2_000, "1-1", "p", labels="torn"), work(3_000, {"a": "x", "b": None, "c": 10**400, "d": 2}, "1-1")]
    phases, done = list_phases([*torn, work(4_000, "torn", "1-1")], START, END)
    assert phases[0].work == done.amounts == {"d": 2.0}
