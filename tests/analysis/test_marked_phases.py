"""Phases and work out of marks: nested, in threads, switched by scripts, summed over ranks."""

from __future__ import annotations

import pytest

from joulelab.analysis import marked_phases as phases_module
from joulelab.analysis.marked_phases import list_phases

START, END = 1_000, 9_000


def begin(t, identity, name, parent=None, n=None, host="node1", source="100-7", **more):
    line = {"t": t, "mark": "begin", "id": identity, "name": name, "n": n, "parent": parent, "thread": 1, "rank": 0}
    return line | {"labels": {}, "host": host, "source": source} | more


def end(t, identity, host="node1", source="100-7"):
    return {"t": t, "mark": "end", "id": identity, "host": host, "source": source}


def work(t, amounts, phase=None, at=(), rank=0, host="node1", source="100-7"):
    line = {"t": t, "mark": "work", "from": t, "phase": phase, "amounts": amounts, "count": 1, "at": list(at)}
    return line | {"rank": rank, "host": host, "source": source}


def switch(t, name, source="sh-5-1", n=None):
    return {"t": t, "mark": "switch", "name": name, "n": n, "host": "node1", "source": source}


def shape(phases):
    return [(p.title, p.start_ns, p.end_ns, p.open_end) for p in phases]


def test_phases_nest_and_come_in_order():
    marks = [
        begin(2_000, "100-1", "train"),
        begin(2_000, "100-2", "epoch", "100-1", 0, labels={"lr": 0.1}),
        end(4_000, "100-2"),
        begin(4_000, "100-3", "epoch", "100-1", 1),
        end(6_000, "100-3"),
        end(7_000, "100-1"),
    ]
    phases, _ = list_phases(reversed(marks), START, END)  # the files of processes come in any order
    assert shape(phases) == [
        ("train", 2_000, 7_000, False),
        ("epoch 0", 2_000, 4_000, False),
        ("epoch 1", 4_000, 6_000, False),
    ]
    assert phases[1].parent == phases[0].id
    assert phases[1].labels == {"lr": 0.1}
    assert phases[1].duration_s == pytest.approx(2e-6)


def test_threads_overlap():
    marks = [
        begin(2_000, "100-1", "load", thread=1),
        begin(3_000, "100-2", "compute", thread=2),
        end(5_000, "100-1"),
        end(6_000, "100-2"),
    ]
    phases, _ = list_phases(marks, START, END)
    assert shape(phases) == [("load", 2_000, 5_000, False), ("compute", 3_000, 6_000, False)]


def test_what_nobody_ended_lasts_to_the_end_and_says_so():
    phases, _ = list_phases([begin(2_000, "100-1", "train"), end(3_000, "100-9")], START, END)
    assert shape(phases) == [("train", 2_000, END, True)]


def test_only_what_overlaps_the_interval_is_returned():
    marks = [begin(100, "1-1", "before"), end(900, "1-1"), begin(500, "1-2", "into"), end(1_500, "1-2")]
    marks += [begin(9_500, "1-3", "after")]
    assert shape(list_phases(marks, START, END)[0]) == [("into", 500, 1_500, False)]


def test_a_script_switches_its_own_phase_only():
    marks = [
        switch(2_000, "prepare", "sh-5-1"),
        switch(2_500, "serve", "sh-6-1", n=2),
        switch(4_000, "train", "sh-5-1"),
        switch(6_000, None, "sh-5-1"),
        switch(6_500, None, "sh-9-1"),
    ]
    assert shape(list_phases(marks, START, END)[0]) == [
        ("prepare", 2_000, 4_000, False),
        ("serve 2", 2_500, END, False),
        ("train", 4_000, 6_000, False),
    ]


def test_work_is_credited_to_its_phase_and_all_around_it():
    marks = [
        begin(2_000, "100-1", "train"),
        begin(2_500, "100-2", "epoch", "100-1", 0),
        work(3_000, {"samples": 64.0}, "100-2", at=[2_800, 3_000]),
        end(4_000, "100-2"),
        work(5_000, {"samples": 10.0, "tokens": 7.0}, "100-1"),
        work(6_000, {"samples": 1.0}, None),
        end(7_000, "100-1"),
    ]
    phases, done = list_phases(marks, START, END)
    assert [p.work for p in phases] == [{"samples": 75.0, "tokens": 7.0}, {"samples": 64.0}]
    assert done.amounts == {"samples": 75.0, "tokens": 7.0}
    assert done.times_ns == {"node1/100-7": [2_800, 3_000]}


def test_work_is_summed_over_ranks_and_its_times_are_kept_by_process():
    marks = [begin(2_000, "100-1", "train")]
    marks += [work(3_000 + r, {"samples": 8.0}, None, at=[3_000 + r], rank=r, source=f"{100 + r}-7") for r in range(4)]
    _, done = list_phases(marks, START, END)
    assert done.amounts == {"samples": 32.0}
    assert done.times_ns == {f"node1/{100 + r}-7": [3_000 + r] for r in range(4)}


def test_work_of_the_next_phase_is_not_this_ones():
    marks = [work(4_000, {"samples": 1.0}), work(5_000, {"samples": 2.0}), work(6_000, {"samples": 4.0})]
    assert list_phases(marks, 4_500, 5_500)[1].amounts == {"samples": 2.0}


def test_a_process_that_gets_the_number_of_an_ended_one_has_phases_of_its_own():
    marks = [
        begin(2_000, "100-1", "first", source="100-7"),
        work(2_500, {"samples": 1.0}, "100-1", source="100-7"),
        end(3_000, "100-1", source="100-7"),
        begin(4_000, "100-1", "second", source="100-99"),
        end(5_000, "100-1", source="100-99"),
    ]
    phases, _ = list_phases(marks, START, END)
    assert shape(phases) == [("first", 2_000, 3_000, False), ("second", 4_000, 5_000, False)]


def test_equal_numbers_on_two_hosts_are_two_processes():
    marks = [begin(2_000, "100-1", "a", host="node1"), begin(2_500, "100-1", "b", host="node2")]
    marks += [work(3_000, {"x": 1.0}, "100-1", host="node2"), end(4_000, "100-1", host="node1")]
    phases, _ = list_phases(marks, START, END)
    assert shape(phases) == [("a", 2_000, 4_000, False), ("b", 2_500, END, True)]
    assert [p.work for p in phases] == [{}, {"x": 1.0}]


def test_a_phase_of_several_hosts_is_one_phase_with_the_work_of_all():
    marks = []
    for host, late in (("node2", 0), ("node1", 100)):
        marks += [begin(2_000 + late, "7-1", "run", host=host), begin(2_000 + late, "7-2", "epoch", "7-1", 1, host)]
        marks += [work(3_000 + late, {"x": 5.0}, "7-2", host=host), end(4_000 + late, "7-2", host)]
        marks += [begin(4_000 + late, "7-3", "epoch", "7-1", 2, host), end(6_000 + late, "7-3", host)]
        marks += [begin(5_000 + late, "7-4", "save", host=host), end(5_500 + late, "7-4", host)]
    marks += [begin(5_600, "7-5", "save", host="node2"), end(7_000, "7-1", "node1")]  # node2 was killed
    marks += [work(6_050, {"x": 2.0}, rank=9, host="node3") | {"from": 5_900}]
    marks += [switch(7_500, "shell"), switch(8_000, "shell") | {"host": "node2"}]
    marks += [work(8_500, {"y": 1.0}, host="node2", source="sh-5-1")]
    phases, done = list_phases(marks, START, END, "node1")
    assert [(p.title, p.host, p.start_ns, p.end_ns, p.open_end) for p in phases] == [
        ("run", "node1", 2_000, END, True),
        ("epoch 1", "node1", 2_000, 4_100, False),
        ("epoch 2", "node1", 4_000, 6_100, False),
        ("save", "node1", 5_000, 5_600, False),
        ("save", "node2", 5_600, END, True),
        ("shell", "node1", 7_500, END, False),
    ]
    assert [p.work.get("x", 0.0) for p in phases] == [12.0, 10.0, 2.0, 0.0, 2.0, 0.0]
    assert [p.title for p in phases if "y" in p.work] == ["shell"]
    assert done.amounts == {"x": 12.0, "y": 1.0}
    assert len(list_phases(marks, START, END)[0]) == 11  # each host by itself


def test_phases_that_claim_each_other_as_parents_are_credited_once():
    marks = [begin(2_000, "1-1", "a", "1-2"), begin(2_000, "1-2", "b", "1-1"), work(3_000, {"x": 1.0}, "1-1")]
    phases, _ = list_phases(marks, START, END)
    assert [p.work for p in phases] == [{"x": 1.0}, {"x": 1.0}]


def test_work_in_thousands_of_nested_phases_counts_in_all_around():
    depth = 3_000
    names = [f"1-{k}" for k in range(depth)]
    marks = [begin(1_000 + k, name, "deep", names[k - 1] if k else None) for k, name in enumerate(names)]
    marks += [work(5_000, {"x": 1.0}, name) for name in names]
    phases, done = list_phases(marks, START, END)
    assert [p.work["x"] for p in phases] == [depth - k for k in range(depth)]
    assert done.amounts == {"x": depth}


def test_kinds_of_work_come_in_the_order_of_the_run():
    marks = [begin(2_000, "1-1", "epoch"), begin(2_000, "1-2", "batch", "1-1"), work(3_000, {"samples": 2.0}, "1-2")]
    marks += [work(4_000, {"batches": 1.0}, "1-1")]
    phases, _ = list_phases(marks, START, END)
    assert list(phases[0].work.items()) == [("samples", 2.0), ("batches", 1.0)]


def test_work_of_other_ranks_goes_to_threads_that_overlap():
    marks = [begin(2_000, "1-1", "a"), begin(2_500, "1-2", "b"), end(3_000, "1-2"), end(8_000, "1-1")]
    marks += [work(2_600, {"x": 1.0}, source="200-7"), work(5_000, {"x": 1.0}, source="200-7")]
    phases, _ = list_phases(marks, START, END)
    assert [(p.name, p.work) for p in phases] == [("a", {"x": 2.0}), ("b", {"x": 1.0})]


def test_work_of_a_script_belongs_to_the_phase_the_script_is_in():
    marks = [
        switch(2_000, "load"),
        work(3_000, {"files": 5}, source="sh-5-1"),
        switch(4_000, "train"),
        work(5_000, {"samples": 64}, source="sh-5-1"),
        work(5_500, {"samples": 7}, source="sh-6-1"),
        switch(6_000, None),
        work(7_000, {"samples": 1}, source="sh-5-1"),
    ]
    phases, done = list_phases(marks, START, END)
    assert [(p.title, p.work) for p in phases] == [("load", {"files": 5}), ("train", {"samples": 71})]
    assert done.amounts == {"files": 5, "samples": 72}


def test_work_of_other_ranks_is_shared_by_time():
    """Other ranks name no phase: what they report since their last report lies in phases by its share of time."""
    marks = [begin(2_000, "100-1", "a"), end(4_000, "100-1"), begin(4_000, "100-2", "b"), end(6_000, "100-2")]
    marks += [work(5_000, {"x": 8.0}, None, rank=1, source="101-7") | {"from": 3_000}]
    marks += [work(8_000, {"x": 4.0}, None, rank=1, source="101-7") | {"from": 7_000}]
    marks += [work(5_000, {"y": 1.0}, None, rank=1, host="node2")]
    phases, done = list_phases(marks, START, END)
    assert [p.work for p in phases] == [{"x": 4.0}, {"x": 4.0}]
    assert done.amounts == {"x": 12.0, "y": 1.0}


def test_work_of_other_ranks_and_threads_counts_in_the_phases_of_its_time():
    marks = [
        begin(2_000, "100-1", "epoch", n=0),
        end(4_000, "100-1"),
        begin(4_000, "100-2", "epoch", n=1),
        end(6_000, "100-2"),
        work(3_500, {"samples": 30}, phase="100-1"),
        work(3_900, {"samples": 10}, source="101-7", rank=1) | {"from": 2_100},
        work(4_500, {"samples": 8}, source="101-7", rank=1) | {"from": 3_500},
    ]
    (first, second), done = list_phases(marks, START, END)
    assert first.work == {"samples": pytest.approx(30 + 10 + 4)}
    assert second.work == {"samples": pytest.approx(4)}
    assert done.amounts == {"samples": 48}


def test_ranks_that_reach_an_edge_a_little_apart_count_nothing_beside_it():
    marks = [begin(2_000, "100-1", "a"), end(4_000, "100-1"), begin(4_000, "100-2", "b"), end(6_000, "100-2")]
    marks += [work(5_000, {"x": 8.0}, None, rank=1, source="101-7") | {"from": 3_985}]
    phases, _ = list_phases(marks, START, END)
    assert [p.work for p in phases] == [{}, {"x": pytest.approx(8.0)}]


def test_of_too_many_phases_the_outermost_are_kept_and_all_work(monkeypatch):
    monkeypatch.setattr(phases_module, "MOST_PHASES", 3)
    marks = [begin(2_000, "100-1", "train"), end(8_000, "100-1")]
    for k in range(5):
        marks += [begin(2_000 + k, f"100-{k + 2}", "step", "100-1", k), end(3_000 + k, f"100-{k + 2}")]
    marks += [work(3_500, {"samples": 8}, f"100-{k + 2}") for k in range(5)]
    phases, done = list_phases(marks, START, END)
    assert [p.title for p in phases] == ["train", "step 0", "step 1"]
    assert (done.phases, done.amounts) == (6, {"samples": 40})
