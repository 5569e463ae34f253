"""Doubts about runs of several nodes: records that are not there, that have holes, or whose times are unknown."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import END, SECONDS, START, T, checks, only, steady
from tests.analysis.folders import Folder, counter, gpu, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse
from joulelab.core.spec import Accuracy

HOLE = (T <= 7.0) | (T >= 13.0)
ABSENT = "of the job, but without readings of power, so its energy is in no sum"


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one GPU at a steady 300 W on the first of two nodes."""
    return steady(Folder(tmp_path)).event(1.0, "nodes", step="0", nodes=["node1", "node2"], count=2)


def second(folder, stream, keep, *, watts=300.0):
    values = watts * T[keep] if stream.channels[0].kind == "counter" else np.full(keep.sum(), watts)
    return folder.add("bmc", stream, T[keep], values, host="node2")


def test_a_node_without_a_record_fails(folder):
    assert only(folder, "not recorded") == ("failed", f"node2: {ABSENT}", "joulelab doctor")


def test_nodes_that_never_answered_are_counted(folder):
    folder.event(2.0, "nodes", step="", nodes=["node1"], count=5)
    status, message, _ = only(folder, "not recorded")
    assert (status, message) == ("failed", "4 of 5 nodes of the job were not recorded, so their energy is in no sum")


def test_many_nodes_are_not_all_listed(folder):
    folder.event(2.0, "nodes", step="0", nodes=["node1", *(f"node{k}" for k in range(2, 8))], count=7)
    assert only(folder, "not recorded")[1] == f"node2, node3, node4 and 3 more: {ABSENT}"


def test_without_any_meter_no_node_is_blamed(tmp_path):
    bare = Folder(tmp_path).event(1.0, "nodes", step="0", nodes=["node1", "node2"], count=2)
    assert not checks(bare, "not recorded")


def test_a_whole_record_raises_no_doubt(folder):
    second(folder, power("node.ac"), np.ones(T.size, dtype=bool))
    assert not checks(folder, "recorder lost")
    assert not checks(folder, "not recorded")


def test_a_hole_in_powers_fails(folder):
    second(folder, power("node.ac"), HOLE)
    status, message, _ = only(folder, "recorder lost")
    assert status == "failed"
    assert message == ("node2: nothing was read from 2.0 s to 8.0 s: the energy of node.ac there is not measured")


def test_counters_subtract_over_a_hole(folder):
    second(folder, counter("cpu:0"), HOLE)
    status, message, _ = only(folder, "recorder lost")
    assert status == "note"
    assert message.endswith("from 2.0 s to 8.0 s; its counters went on, so no energy is missing")


@pytest.mark.parametrize(("keep", "hole"), [(T < 9.05, "from 4.0 s to 10.0 s"), (T > 8.95, "from 0.0 s to 4.0 s")])
def test_a_counter_that_was_not_read_again_is_not_measured(folder, keep, hole):
    second(folder, counter("cpu:0"), keep)
    status, message, _ = only(folder, "recorder lost")
    assert status == "failed"
    assert message == f"node2: nothing was read {hole}: the energy of cpu:0 there is not measured"


def test_another_meter_that_went_on_was_not_lost(folder):
    """One meter of a node that is silent is a gap of that meter; the recorder was there."""
    second(folder, power("node.ac"), HOLE)
    second(folder, counter("cpu:0"), np.ones(T.size, dtype=bool))
    assert not checks(folder, "recorder lost")
    assert checks(folder, "gaps")


def test_a_pause_of_a_moment_is_no_hole(folder):
    second(folder, power("node.ac"), (T <= 7.0) | (T >= 7.9))
    assert not checks(folder, "recorder lost")


@pytest.mark.parametrize("outcome", ["exit", "imported"])
def test_runs_of_one_node_and_imported_ones_have_gaps_only(tmp_path, outcome):
    one = steady(Folder(tmp_path), keep=HOLE)
    if outcome == "imported":
        second(one, power("node.ac"), HOLE)
    one.close(START, END, outcome=outcome)
    assert not checks(one, "recorder lost")
    assert checks(one, "gaps")


def test_times_that_cannot_be_joined_fail(folder):
    second(folder, power("node.ac"), HOLE)
    for path in (folder.path / "node2").glob("*.journal"):
        path.write_bytes(path.read_bytes().replace(b'"boot_id":"b"', b'"boot_id":"c"'))
    assert folder.open().unjoined() == ["node2"]
    status, message, _ = only(folder, "clocks")
    assert status == "failed"
    assert message.startswith("times of node2 cannot be joined")
    assert not checks(folder, "recorder lost"), "nobody knows when it was"


@pytest.mark.parametrize("hidden_w", [0.0, 100.0, 300.0, 700.0])
def test_the_interval_holds_what_a_long_hole_hides(tmp_path, hidden_w):
    """70 % of the time without readings: what is seen of the load does not tell what it did there."""
    given = power("gpu:0")
    given = replace(given, channels=(replace(given.channels[0], limits=(0.0, 700.0)),))
    folder = second(Folder(tmp_path), given, ((T > 4.5) & (T <= 6.5)) | ((T >= 13.5) & (T < 15.5)))
    (found,) = (s.energy for s in analyse(folder.close(START, END).open()).scopes)
    assert abs(found.value - (3 * 300.0 + 7 * hidden_w)) <= found.expanded, (found, found.budget())
    assert found.expanded < 10 * 700.0, "but no more than the device may use"


def test_a_short_hole_costs_little(tmp_path):
    folder = second(Folder(tmp_path), power("gpu:0"), (T <= 9.5) | (T >= 10.0))
    (found,) = (s.energy for s in analyse(folder.close(START, END).open()).scopes)
    assert found.budget()["gap"] < 0.05 * found.value


def test_doubts_about_scopes_name_the_host_where_there_are_several(folder):
    second(folder, power("node.ac"), HOLE)
    folder.add("nvml", gpu(0), T, 300 * T, np.full(T.size, 300.0), host="node2")
    folder.add("nvml", state(0, "throttle"), SECONDS, np.full(SECONDS.size, 0x8), host="node2")
    for host, pid in (("node1", 11), ("node2", 12)):
        event = {"t": ns(6.0), "event": "process", "scope": "gpu:0", "pids": [pid]}
        problem = {"t": ns(6.0), "event": "problem", "meter": "nvml", "stream": "gpu:0", "what": "odd"}
        text = "".join(json.dumps(line) + "\n" for line in (event, problem, {**problem, "stream": "", "what": "all"}))
        (folder.path / host / "events.0.jsonl").write_text(text)
    folder.close(START, END)
    found = analyse(folder.open()).checks
    said = {name: [c.message for c in found if c.name == name] for name in {c.name for c in found}}
    assert [m.partition(": ")[0] for m in said["gaps"]] == ["node2/node.ac"]
    assert said["throttled"] == ["node2/gpu:0: held back by hardware slowdown in 100% of the readings"]
    strangers = "processes that are not the workload's were there"
    assert said["other processes"] == [f"node1/gpu:0: {strangers} (11)", f"node2/gpu:0: {strangers} (12)"]
    assert said["source"] == ["node1/nvml: odd", "nvml: all", "node2/nvml: odd", "nvml: all"]


def test_many_scopes_of_several_hosts_are_not_all_named(folder):
    unknown = Accuracy("unknown")
    for host in ("node1", "node2", "node3"):
        for scope in ("cpu:0", "cpu:1"):
            folder.add("rapl", counter(scope, given=unknown), T, 100 * T, host=host)
    (message,) = (m for _, m, _ in checks(folder, "accuracy"))
    assert message.startswith("node1/cpu:0, node1/cpu:1, node2/cpu:0 and 3 more: the accuracy is unknown")


def test_a_node_that_was_lost_is_a_gap_and_no_short_run(folder):
    slow = power("node.ac")
    slow = replace(slow, period_s=2.0, channels=(replace(slow.channels[0], update_s=2.0, window_s=2.0),))
    at = np.arange(0, 9, 2.0)
    folder.add("bmc", slow, at, 500 + 400 * (np.arange(at.size) % 2), host="node2")
    folder.close(START, END, outcome="imported")
    assert [m.partition(": ")[0] for _, m, _ in checks(folder, "gaps")] == ["node2/node.ac"]
    assert not checks(folder, "too short")
