"""Doubts about runs of several nodes: records that are not there, that have holes, or whose times are unknown."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import END, SECONDS, START, T, checks, only, steady
from tests.analysis.folders import Folder, counter, gpu, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run

HOLE = (T <= 7.0) | (T >= 13.0)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one GPU at a steady 300 W on the first of two nodes."""
    return steady(Folder(tmp_path)).event(1.0, "nodes", step="0", nodes=["node1", "node2"], count=2)


def second(folder, stream, keep, *, watts=300.0):
    values = watts * T[keep] if stream.channels[0].kind == "counter" else np.full(keep.sum(), watts)
    return folder.add("bmc", stream, T[keep], values, host="node2")


def test_a_node_without_a_record_fails(folder):
    found = only(folder, "not-recorded")
    assert (found.code, found.status, found.scope) == ("not-recorded.no-readings", "failed", "node2")


def test_nodes_that_never_answered_are_counted(folder):
    folder.event(2.0, "nodes", step="", nodes=["node1"], count=5)
    found = only(folder, "not-recorded")
    assert (found.code, found.status) == ("not-recorded.no-record", "failed")
    assert found.numbers == {"missing": 4, "nodes": 5}


def test_without_any_meter_no_node_is_blamed(tmp_path):
    bare = Folder(tmp_path).event(1.0, "nodes", step="0", nodes=["node1", "node2"], count=2)
    assert not checks(bare, "not-recorded")


def test_a_whole_record_raises_no_doubt(folder):
    second(folder, power("node.ac"), np.ones(T.size, dtype=bool))
    assert not checks(folder, "recorder-lost")
    assert not checks(folder, "not-recorded")


@pytest.mark.parametrize(
    ("stream", "keep", "case", "since", "until"),
    [
        (power("node.ac"), HOLE, "energy-missing", 2.0, 8.0),
        (counter("cpu:0"), HOLE, "counted", 2.0, 8.0),  # a counter is subtracted over it
        (counter("cpu:0"), T < 9.05, "energy-missing", 4.0, 10.0),  # it was not read again
        (counter("cpu:0"), T > 8.95, "energy-missing", 0.0, 4.0),
    ],
)
def test_a_hole_in_the_record_of_a_node(folder, stream, keep, case, since, until):
    second(folder, stream, keep)
    found = only(folder, "recorder-lost")
    status, scope = ("note", "node2") if case == "counted" else ("failed", f"node2/{stream.scope}")
    assert (found.code, found.status, found.scope) == (f"recorder-lost.{case}", status, scope)
    assert found.numbers == pytest.approx({"lost_s": until - since, "from_s": since, "to_s": until}, abs=0.1)


def test_another_meter_that_went_on_was_not_lost(folder):
    """One meter of a node that is silent is a gap of that meter; the recorder was there."""
    second(folder, power("node.ac"), HOLE)
    second(folder, counter("cpu:0"), np.ones(T.size, dtype=bool))
    assert not checks(folder, "recorder-lost")
    assert checks(folder, "gaps")


def test_a_pause_of_a_moment_is_no_hole(folder):
    second(folder, power("node.ac"), (T <= 7.0) | (T >= 7.9))
    assert not checks(folder, "recorder-lost")


@pytest.mark.parametrize("outcome", ["exit", "imported"])
def test_runs_of_one_node_and_imported_ones_have_gaps_only(tmp_path, outcome):
    one = steady(Folder(tmp_path), keep=HOLE)
    if outcome == "imported":
        second(one, power("node.ac"), HOLE)
    one.close(START, END, outcome=outcome)
    assert not checks(one, "recorder-lost")
    assert checks(one, "gaps")


def test_times_that_cannot_be_joined_fail(folder):
    second(folder, power("node.ac"), HOLE)
    for path in (folder.path / "node2").glob("*.journal"):
        path.write_bytes(path.read_bytes().replace(b'"boot_id":"b"', b'"boot_id":"c"'))
    assert folder.open().unjoined() == ["node2"]
    assert (only(folder, "clocks").status, only(folder, "clocks").scope) == ("failed", "node2")
    assert not checks(folder, "recorder-lost"), "nobody knows when it was"


def limited(stream):
    """Return a stream of a device that uses at most 700 W."""
    return replace(stream, channels=(replace(stream.channels[0], limits=(0.0, 700.0)),))


@pytest.mark.parametrize("hidden_w", [0.0, 100.0, 300.0, 640.0])
def test_the_interval_holds_what_a_long_hole_hides(tmp_path, hidden_w):
    """70 % of the time without readings: what is seen of the load does not tell what it did there."""
    folder = second(Folder(tmp_path), limited(power("gpu:0")), ((T > 4.5) & (T <= 6.5)) | ((T >= 13.5) & (T < 15.5)))
    (found,) = (s.energy for s in analyse_run(folder.close(START, END).open()).scopes)
    assert abs(found.value - (3 * 300.0 + 7 * hidden_w)) <= found.expanded, (found, found.budget())
    assert found.expanded < 10 * 700.0, "but no more than the device may use"


def test_a_short_hole_costs_little(tmp_path):
    folder = second(Folder(tmp_path), limited(power("gpu:0")), (T <= 9.5) | (T >= 10.0))
    (found,) = (s.energy for s in analyse_run(folder.close(START, END).open()).scopes)
    assert found.budget()["gap"] < 0.01 * found.value


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
    found = analyse_run(folder.open()).checks
    scopes = {code: [c.scope for c in found if c.code == code] for code in {c.code for c in found}}
    assert scopes["gaps"] == ["node2/node.ac"]
    assert scopes["throttled.hardware-slowdown"] == ["node2/gpu:0"]
    assert scopes["other-processes"] == ["node1/gpu:0", "node2/gpu:0"]
    assert scopes["source"] == ["node1/nvml", "nvml", "node2/nvml", "nvml"]


def test_a_node_that_was_lost_is_a_gap_and_no_short_run(folder):
    slow = power("node.ac")
    slow = replace(slow, period_s=2.0, channels=(replace(slow.channels[0], update_s=2.0, window_s=2.0),))
    at = np.arange(0, 9, 2.0)
    folder.add("bmc", slow, at, 500 + 400 * (np.arange(at.size) % 2), host="node2")
    folder.close(START, END, outcome="imported")
    assert [c.scope for c in checks(folder, "gaps")] == ["node2/node.ac"]
    assert not checks(folder, "too-short")
