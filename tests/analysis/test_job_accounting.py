"""What a cluster accounted, beside our own meters: in no sum, compared over its own stretch of time."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import named
from tests.analysis.folders import Folder, counter, gpu, power
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import accuracy, ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.channels import load_channels
from joulelab.analysis.job_accounting import compare_accounts, list_account_events, make_account_result
from joulelab.analysis.joining import join_meters
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.report.run_tables import list_agreement_rows

SLURM = accuracy(0.05, shared="slurm:xcc", quantum=400.0)
COMMON = {"job": "7", "row": ".batch", "plugin": "xcc"}


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def steady(folder, watts=500.0, scope="node.dc", host="node1", **more):
    """Add a node's power that is the same all the time, from second 0 to 20."""
    return folder.add("bmc", power(scope, **more), T, np.full(T.size, watts), host=host)


def account(
    folder, joules, start=4.0, end=16.0, *, nodes=("node1",), covers=("node.dc",), given=SLURM, told=(), **more
):
    """Add what was accounted, as a host of its own."""
    spec = Spec("energy_j", "energy", "J", "counter", 1e-9, accuracy=given)
    stream = Stream("job", "job", "job", end - start, (spec,), device="7", model="slurm xcc")
    folder.add("slurm", stream, [start, end], [0.0, joules], host="slurm-7")
    event = {"t": ns(start), "event": "attached", **COMMON, "nodes": list(nodes), "covers": list(covers), **more}
    lines = [event, *({"t": ns(start), "event": "problem", "meter": "slurm", "what": what} for what in told)]
    (folder.path / "slurm-7" / "events.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def result_of(folder, start=START, end=END):
    return analyse_run(folder.close(start, end).open())


def only(result):
    (found,) = [c for c in result.comparisons if c.scope == "job"]
    return found


def codes(result, name="accounting"):
    """Return code, status and scope of the checks of one name."""
    return [(c.code, c.status, c.scope) for c in named(result, name)]


def test_what_was_accounted_is_compared_over_its_own_time_and_is_in_no_sum(folder):
    result = result_of(account(steady(folder), 6000.0))
    found = only(result)
    assert (found.verdict, found.host, found.best.meter, found.other.meter) == ("agree", "slurm-7", "bmc", "slurm")
    assert found.best.energy.value == pytest.approx(500 * 12, rel=1e-3)
    assert found.other.energy.value == pytest.approx(6000, abs=1)
    assert found.over == pytest.approx((-1.0, 11.0), abs=0.01)
    assert found.best.coverage == 1.0
    assert result.group("measured").scopes == ("node.dc",)
    assert result.energy.value == pytest.approx(5000, rel=0.01)
    assert not codes(result)
    assert "missing" not in found.best.energy.budget()
    json.dumps(result.to_json(), allow_nan=False)


def test_the_energy_accounted_for_the_workload_is_bounded_by_what_the_row_holds_beyond_it(folder):
    job = next(s for s in result_of(account(steady(folder), 6000.0)).scopes if s.scope == "job")
    # 12 s of the row, 10 s of the workload: between 5000 and 6000 J.
    assert job.energy.value == pytest.approx(5500, abs=1)
    assert job.energy.terms["edge:slurm:beyond"] == pytest.approx(500 / math.sqrt(3), rel=1e-3)
    assert (job.net, job.idle_w, job.statistics) == (None, None, None)


def test_a_row_that_ends_before_the_workload_lacks_some(folder):
    job = next(s for s in result_of(account(steady(folder), 4500.0, 5.0, 14.0)).scopes if s.scope == "job")
    assert job.energy.value == pytest.approx(5000, abs=1)
    assert job.energy.terms["edge:slurm:lacking"] == pytest.approx(500 / math.sqrt(3), rel=1e-3)


def test_a_meter_that_is_off_by_more_than_both_may_be_differs(folder):
    result = result_of(account(steady(folder), 6000.0 * 1.3))
    assert only(result).verdict == "differ"
    (check,) = named(result, "meters-disagree")
    assert (check.status, check.scope) == ("warning", "job")
    assert check.numbers["difference_share"] == pytest.approx(0.3, abs=5e-4)
    rows = list_agreement_rows(result)
    assert [(r.scope, r.meter, r.verdict) for r in rows] == [
        ("job, -1 to +11 s", "bmc power_w", "ours"),
        ("", "slurm energy_j", "differ"),
    ]
    assert rows[1].off.value == pytest.approx(0.3, abs=0.01)


def test_what_lies_beyond_our_record_is_bounded_by_the_powers_that_we_saw(folder):
    result = result_of(account(steady(folder), 500.0 * 24, -3.0, 21.0))
    found = only(result)
    assert found.best.energy.value == pytest.approx(12_000, rel=0.01)
    # 3 s before and 1 s after the record, each from nothing to as much again.
    missing = found.best.energy.budget()["missing"]
    assert missing == pytest.approx(math.hypot(1500, 550) / math.sqrt(3), rel=0.05)
    assert found.best.coverage == pytest.approx(20 / 24, abs=0.01)
    assert found.verdict == "agree"


def test_a_measured_idle_bounds_it_from_below(folder):
    folder.event(3.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    result = result_of(account(steady(folder), 500.0 * 24, -3.0, 21.0))
    missing = only(result).best.energy.budget()["missing"]
    assert missing == pytest.approx(math.hypot(150, 55) / math.sqrt(3), rel=0.05)


def test_the_load_that_was_seen_bounds_it_from_above(folder):
    folder.add("bmc", power("node.dc"), T, busy(200.0, 1000.0)[1])
    found = only(result_of(account(folder, 200.0 * 11 + 1000.0 * 10, -1.0, 20.0)))
    assert found.best.energy.value == pytest.approx(12_200, rel=0.02)
    assert found.best.energy.budget()["missing"] == pytest.approx(800 / math.sqrt(3), rel=0.15)


def test_nothing_accounted_is_a_note_and_no_failed_meter(folder):
    account(steady(folder), math.nan, reason="0 J in 12 s: the plugin xcc does not read its meter on node1")
    result = result_of(folder)
    assert codes(result) == [("accounting.no-energy", "note", "job 7")]
    assert not codes(result, "not-read")
    assert not [c for c in result.comparisons if c.scope == "job"]
    assert {s.scope for s in result.scopes} == {"node.dc"}


@pytest.mark.parametrize(
    ("more", "case"),
    [
        ({"covers": ("cpu", "dram")}, "not-covered"),
        ({"nodes": ("node1", "node2")}, "no-meter"),
        ({"nodes": ()}, "unknown-nodes"),
        ({"start": 40.0, "end": 60.0}, "other-time"),
    ],
)
def test_what_cannot_be_compared_says_what_our_side_lacks(folder, more, case):
    result = result_of(account(steady(folder), 6000.0, **more))
    assert codes(result) == [(f"accounting.{case}", "note", "job 7")]
    assert not [c for c in result.comparisons if c.scope == "job"]


def test_the_other_side_of_the_supply_decides_nothing(folder):
    result = result_of(account(steady(folder, 550.0, "node.ac"), 6000.0))
    assert only(result).verdict == "cannot tell"
    assert codes(result) == [("accounting.other-side", "note", "job 7")]
    assert list_agreement_rows(result)[-1].verdict == "cannot tell"


def test_all_nodes_of_the_job_are_summed_whatever_their_domain(folder):
    steady(folder, 500.0)
    steady(folder, 300.0, host="node2.cluster")
    steady(folder, 100.0, host="node3.cluster")
    result = result_of(account(folder, 800.0 * 12, nodes=("node1.cluster", "node2")))
    assert only(result).best.energy.value == pytest.approx(800 * 12, rel=1e-3)
    assert only(result).verdict == "agree"
    assert result.energy.value == pytest.approx(900 * 10, rel=0.01)


def test_packages_and_memory_where_that_is_what_is_accounted(folder):
    unknown = Accuracy(shared="slurm:rapl")
    # Two packages at 100 W and two DRAMs at 20 W for 10 s, 30 and 5 W for the 2 s around; cores are inside.
    result = result_of(account(node(folder), 2540.0, covers=("cpu", "dram"), given=unknown))
    found = only(result)
    assert found.best.energy.value == pytest.approx(2540, rel=0.01)
    assert (found.best.meter, found.best.channel, found.verdict) == ("rapl", "energy_j", "cannot tell")


def test_one_of_ours_without_a_stated_accuracy_decides_nothing(folder):
    folder.add("rapl", counter("cpu:0"), T, busy(30.0, 100.0)[0])
    folder.add("rapl", counter("dram:0", given=Accuracy()), T, busy(5.0, 20.0)[0])
    found = only(result_of(account(folder, 1270.0, covers=("cpu", "dram"))))
    assert (found.best.accuracy, found.verdict) == ("unknown", "cannot tell")


def test_gpus_where_they_are_what_is_accounted(folder):
    for k in range(2):
        folder.add("nvml", gpu(k), T, *busy(50.0, 400.0))
    found = only(result_of(account(folder, 8200.0, covers=("gpu",))))
    assert found.best.energy.value == pytest.approx(8200, rel=0.01)
    assert found.verdict == "agree"


def test_alone_it_is_what_was_measured_and_its_doubts_are_ours(folder):
    result = result_of(account(folder, 6000.0, told=["steps ran side by side"]))
    assert result.group("measured").scopes == ("job",)
    assert result.energy.value == pytest.approx(5500, abs=1)
    assert codes(result, "source") == [("source", "warning", "slurm")]
    assert codes(result, "too-short") == [("too-short", "warning", "job")]
    assert codes(result) == [("accounting.no-meter", "note", "job 7")]


def test_beside_our_meters_its_doubts_are_notes(folder):
    result = result_of(account(steady(folder), 6000.0, told=["steps ran side by side"]))
    assert codes(result, "source") == [("source", "note", "slurm")]
    assert "job" not in [scope for _, _, scope in codes(result, "too-short")]


def test_an_estimate_is_neither_compared_nor_counted_beside_it(folder):
    steady(folder, 450.0, estimate=True)
    result = result_of(account(folder, 6000.0))
    assert result.group("measured").scopes == ("job",)
    assert not [c for c in result.comparisons if c.scope == "job"]


BEGIN = {"mark": "begin", "id": "a", "name": "train", "n": None, "labels": {}, "parent": None, "thread": 0, "rank": 0}


def test_phases_have_everything_measured_and_nothing_accounted(folder):
    folder.marks("1", {"t": ns(6.0), **BEGIN}, {"t": ns(9.0), "mark": "end", "id": "a"})
    for k in range(2):
        folder.add("nvml", gpu(k), T, *busy(50.0, 400.0), host="node2")
    folder.add("nvml", gpu(0), T, *busy(50.0, 400.0))
    steady(folder)
    (phase,) = result_of(account(folder, 6000.0, nodes=("node1",))).phases
    assert set(phase.energy) == {"gpu", "node.dc", "measured"}
    assert phase.energy["measured"].value == pytest.approx(3 * (500 + 2 * 400), rel=0.02)
    assert phase.energy["gpu"].value == pytest.approx(3 * 3 * 400, rel=0.02)


def test_phases_of_what_was_only_accounted_have_no_energy(folder):
    folder.marks("1", {"t": ns(6.0), **BEGIN}, {"t": ns(9.0), "mark": "end", "id": "a"})
    (phase,) = result_of(account(folder, 6000.0)).phases
    assert phase.energy == {}


def clocked(folder, clock_s):
    """Compare as if the cluster's clock might be so far off ours, None: nobody knows how far."""
    run = folder.close(START, END).open()
    scopes = [
        replace(s, channels=tuple(replace(c, clock_s=clock_s) for c in s.channels)) if s.scope == "job" else s
        for s in join_meters(load_channels(run, None), ns(START), ns(END)).scopes
    ]
    job = next(make_account_result(s, ns(START), ns(END)) for s in scopes if s.scope == "job")
    return compare_accounts(scopes, list_account_events(run.events()), ns(START), None), job


def test_clocks_that_differ_move_both_edges_of_the_row_together(folder):
    folder.add("bmc", power("node.dc"), T, busy(200.0, 1000.0)[1])
    found, _ = clocked(account(folder, 9200.0, 4.0, 14.0), 2.0)
    (compared,) = found.comparisons
    # 2 s earlier it has two seconds of idle more and of the load less.
    assert compared.best.energy.budget()["clock"] == pytest.approx(1600 / math.sqrt(3), rel=0.1)
    assert compared.verdict == "agree"


def test_a_steady_load_is_the_same_a_little_earlier_or_later(folder):
    found, _ = clocked(account(steady(folder), 6000.0), 3.0)
    assert found.comparisons[0].best.energy.budget().get("clock", 0.0) < 20


def test_a_row_that_holds_our_record_cannot_be_far_from_it(folder):
    found, _ = clocked(account(steady(folder), 500.0 * 23, -1.5, 21.5, holds=["node1.cluster"]), 16.0)
    # At most 1.5 s later, 2.6 s earlier: so much more of it is not in our record, and was at most as high.
    clock = found.comparisons[0].best.energy.budget()["clock"]
    assert 0 < clock < 500 * 2.7
    assert found.comparisons[0].verdict == "agree"


def test_a_row_that_may_be_of_another_time_altogether_decides_nothing(folder):
    found, _ = clocked(account(steady(folder), 6000.0, holds=["node2"]), 30.0)
    assert (found.comparisons[0].verdict, found.comparisons[0].best.energy.known) == ("cannot tell", False)


def test_clocks_that_nothing_joins_give_no_comparison_and_no_interval(folder):
    found, job = clocked(account(steady(folder), 6000.0), None)
    assert not found.comparisons
    assert [c.code for c in found.notes] == ["accounting.other-time"]
    assert (job.energy.value, job.energy.expanded) == (pytest.approx(6000, abs=1), None)
