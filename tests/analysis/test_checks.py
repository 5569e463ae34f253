"""Each doubt of the referee about meters and their readings: raised where it should be, and only there."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import END, SECONDS, START, STATE, T, checks, named, only, steady
from tests.analysis.folders import Folder, counter, gpu, power, state
from tests.analysis.virtual import ns
from tests.outside import make_home
from tests.rows import every_row

from joulelab.analysis.analyse import analyse_run
from joulelab.core.spec import Accuracy
from joulelab.report.messages import word_check
from joulelab.store.seal import seal_run


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one GPU at a steady 300 W."""
    return Folder(tmp_path)


def test_a_good_run_raises_no_doubt(folder):
    steady(folder)
    steady(folder, index=1)
    folder.add("nvml", state(0, *STATE), SECONDS, *(np.full(SECONDS.size, v) for v in (700.0, 700.0, 0.0)))
    folder.event(1.0, "process", scope="gpu:0", pids=[]).event(6.0, "process", scope="gpu:0", pids=[77])
    folder.event(5.0, "workload", pid=77).event(5.5, "tree", pids=[77, 78])
    folder.event(16.0, "late", meter="nvml", count=3, missed=2, worst_ns=5, ticks=200)
    folder.event(4.5, "idle", **{"from": ns(0.5), "to": ns(4.5)})
    assert analyse_run(folder.close(START, END).open()).checks == ()


# Marks.


@pytest.mark.parametrize(
    ("ended", "found"), [({}, [1.0]), ({"exit_code": 1}, []), ({"outcome": "signal", "exit_code": None}, [])]
)
def test_a_phase_that_is_open_at_the_end_of_a_run_that_ended_by_itself_is_named(folder, ended, found):
    first = {"t": ns(6.0), "mark": "begin", "id": "9-1", "name": "train"}, {"t": ns(9.0), "mark": "end", "id": "9-1"}
    steady(folder).marks("9", *first, {"t": ns(9.0), "mark": "begin", "id": "9-2", "name": "test"})
    folder.close(START, END, **ended)
    assert [c.numbers["phases"] for c in checks(folder, "open-phases")] == found
    assert {(c.status, c.scope) for c in checks(folder, "open-phases")} <= {("warning", "test")}


@pytest.mark.parametrize(
    ("version", "work", "found"), [("0.1.0", True, True), ("0.1.0", False, False), ("", True, False)]
)
def test_work_of_a_run_that_does_not_tell_which_files_it_had_is_not_verifiable(folder, version, work, found):
    if work:
        steady(folder).marks("9-1", {"t": ns(9.0), "mark": "work", "from": ns(8.0), "amounts": {"samples": 64}})
    folder.close(START, END)
    if version:
        text = json.loads((folder.path / "end.json").read_text())
        (folder.path / "end.json").write_text(json.dumps({k: v for k, v in text.items() if k != "files"}))
    assert [c.status for c in checks(folder, "not-verifiable")] == ["note"] * found
    seal_run(folder.path)  # from now on it has a manifest
    assert not checks(folder, "not-verifiable")


# Meters.


def test_no_meter(folder):
    found = only(folder, "power-meter")
    assert (found.status, word_check(found).next) == ("failed", "joulelab meters")


def test_a_device_that_was_never_read_is_not_silently_left_out(folder):
    steady(folder)
    steady(folder, index=1, keep=T < 0.05)
    found = only(folder, "not-read")
    assert (found.status, found.scope) == ("failed", "gpu:1")
    assert not checks(steady(Folder(folder.path.parent)), "not-read")


def open_lost(folder, **more):
    """Tell that a meter of node.ac was opened and that its first reading failed, as the recorder does."""
    folder.event(1.0, "meter", meter="lost", status="open", streams=1, **more)
    where = {"meter": "lost", "stream": "f", "from": ns(1.0)}
    return folder.event(1.0, "gap", **where, reason="lost: no answer", error="ReadFailed")


def test_a_meter_that_was_never_read_is_named_with_the_reason(folder):
    found = only(open_lost(steady(folder), scopes={"f": "node.ac"}), "not-read")
    assert (found.status, found.scope) == ("failed", "node.ac")
    assert found.texts == {"meter": "lost", "reason": "lost: no answer", "doctor": "lost"}
    assert "by lost (lost: no answer)" in word_check(found).text
    assert word_check(found).next == "joulelab doctor lost"


def test_a_run_of_an_older_version_names_the_meter_that_was_never_read(folder):
    found = only(open_lost(steady(folder)), "not-read")
    assert (found.scope, found.texts["reason"]) == ("lost", "lost: no answer")


def test_without_another_meter_the_reason_is_known_too(folder):
    open_lost(folder, scopes={"f": "node.ac"}).close(START, END)
    assert [c.code for c in analyse_run(folder.open()).checks] == ["power-meter", "not-read"]


def test_a_meter_that_was_never_read_is_named_beside_another_of_its_scope(folder):
    found = only(open_lost(steady(folder), scopes={"f": "gpu:0"}), "not-read.covered")
    assert (found.status, found.scope, found.texts["meter"]) == ("warning", "gpu:0", "lost")
    assert only(folder, "not-read.covered") == found
    assert not named(analyse_run(folder.open()), "power meter")


def test_a_meter_that_was_read_is_not_called_unread(folder):
    steady(folder).event(1.0, "meter", meter="nvml", status="open", streams=1, scopes={"gpu:0.power": "gpu:0"})
    folder.event(1.0, "gap", meter="nvml", stream="gpu:0.power", reason="once", **{"from": ns(1.0)})
    folder.event(1.1, "gap-end", meter="nvml", stream="gpu:0.power", **{"from": ns(1.0), "to": ns(1.1)})
    assert not [c for c in analyse_run(folder.close(START, END).open()).checks if c.name == "not read"]


def test_a_journal_that_was_cut_is_damaged_and_no_meter_is_to_blame(folder):
    steady(folder)
    steady(folder, index=1)
    run = folder.close(START, END)
    journal = run.path / "node1" / "nvml.t0.0.journal"
    os.truncate(journal, journal.stat().st_size // 2 + 1)
    found = only(folder, "damaged")
    assert (found.status, found.scope) == ("failed", "node1/nvml.t0.0.journal")
    assert 0 < found.numbers["bytes"] < found.numbers["recorded"]
    assert not any("doctor" in word_check(c).next for c in analyse_run(run.open()).checks)


def test_an_estimate_is_called_one(folder):
    steady(folder).add("estimate", power("cpu", estimate=True), T, np.full(T.size, 80.0))
    found = only(folder, "estimate")
    assert (found.status, found.scope) == ("warning", "cpu")


def test_an_unknown_accuracy_is_said(folder):
    steady(folder, given=Accuracy())
    found = only(folder, "accuracy")
    assert (found.status, found.scope) == ("note", "gpu:0")


# Ending.


def test_a_killed_run(folder):
    steady(folder)
    (found,) = named(analyse_run(folder.open()), "ending")
    assert (found.code, found.status) == ("ending.killed", "warning")


@pytest.mark.parametrize(
    ("event", "more", "code", "scope", "numbers"),
    [
        ("recorder-died", {"status": "signal 9", "segment": 0}, "recorder.died", "", {}),
        ("recorder-stuck", {"segment": 0}, "recorder.stuck", "", {}),
        ("supervisor-paused", {"from": 1_000_000_000, "to": 3_500_000_000}, "paused", "", {"paused_s": 2.5}),
        ("disk", {"error": "ENOSPC", "dropped_rows": 12}, "disk", "", {"lost_rows": 12}),
        ("stuck", {"meter": "nvml"}, "stuck-meter", "nvml", {}),
        ("clock-step", {"by_ns": -7_200_000_000_000}, "clock-stepped", "", {"step_s": -7200.0}),
    ],
)
def test_what_happened_to_the_recorder_is_told(folder, event, more, code, scope, numbers):
    steady(folder)
    assert not checks(Folder(folder.path.parent), code)
    folder.event(8.0, event, **more)
    found = only(folder, code)
    assert (found.status, found.scope, found.numbers) == ("warning", scope, numbers)


# Length, gaps, what was not seen.


def test_a_run_that_is_short_for_its_meter(folder):
    slow = power("node.ac")
    slow = replace(slow, period_s=2.0, channels=(replace(slow.channels[0], update_s=2.0, window_s=2.0),))
    folder.add("bmc", slow, np.arange(0, 20, 2.0), 500 + 400 * (np.arange(10) % 2))
    found = only(folder, "too-short", end=START + 4)
    assert (found.status, found.scope) == ("warning", "node.ac")
    assert 0.05 < found.numbers["edge_share"] < 1
    assert "--tail" in word_check(found).next
    assert not checks(steady(Folder(folder.path.parent)), "too-short", end=START + 4)


def test_a_device_without_energy_is_not_short(folder):
    assert not checks(steady(folder, 0.0), "too-short")


@pytest.mark.parametrize(("gap_s", "status", "lost"), [(0.1, None, 0), (0.7, "warning", 0.08), (3.0, "failed", 0.31)])
def test_time_without_readings(folder, gap_s, status, lost):
    steady(folder, keep=(T < 8.05) | (8.05 + gap_s < T))
    steady(folder, index=1)
    for stream, reason in (("gpu:0.power", "GPU is lost"), ("gpu:0.power.other", "no"), ("gpu:10.power", "no")):
        folder.event(8.1, "gap", meter="nvml", stream=stream, reason=reason, **{"from": ns(8.0)})
    gaps = checks(folder, "gaps")
    found = [(c.status, c.scope, word_check(c).next, pytest.approx(c.numbers["lost_share"], abs=0.02)) for c in gaps]
    assert found == ([(status, "gpu:0", "joulelab doctor nvml", lost)] if status else [])


def test_a_sensor_that_sees_a_part(folder):
    steady(folder, seen=0.25)
    found = only(folder, "unseen")
    assert (found.status, found.scope, found.numbers["seen_share"], found.numbers["steps"]) == (
        "note",
        "gpu:0",
        0.25,
        0,
    )
    assert found.numbers["over_share"] == 1.0
    assert not checks(folder, "in-step")
    most = steady(Folder(folder.path.parent), seen=0.8)
    energy = analyse_run(most.open()).energy
    assert only(most, "unseen").numbers["reach_share"] == pytest.approx(energy.bound / energy.value, rel=1e-4)
    three = Folder(folder.path.parent)
    for k in range(3):
        steady(three, index=k, seen=0.25)
    assert only(three, "unseen").scope == "gpu:0, gpu:1, gpu:2"
    nothing = steady(Folder(folder.path.parent), 0.0, seen=0.25)
    assert not checks(nothing, "unseen"), "there is no figure that could be wrong"


def test_a_meter_with_new_values_less_often_than_stated_is_noted_once(folder):
    values = np.repeat([300.0, 340.0, 290.0, 310.0, 350.0, 305.0, 330.0, 320.0, 295.0, 315.0], 20)
    folder.add("pdu", power("node.ac"), T, values).add("pdu", power("psu:1", "node.ac"), T, values / 2)
    found = only(folder, "slow-refresh")
    assert (found.status, found.scope) == ("note", "psu:1, node.ac")
    assert found.numbers == {"stated_s": 0.1, "found_s": pytest.approx(2.0)}
    assert not checks(steady(Folder(folder.path.parent)), "slow-refresh")


@pytest.mark.parametrize(
    ("into", "out", "status"),
    [(300.0, 280.0, None), (300.0, 301.0, "warning"), (300.0, 400.0, "failed"), (12.0, 13.0, None)],
)
def test_a_power_supply_of_full_efficiency(folder, into, out, status):
    folder.add("bmc", power("psu:1", "node.ac"), T, np.full(T.size, into))
    other = Accuracy("assumed", 0.05, shared="bmc.dc")
    folder.add("bmc", power("psu.dc:1", "node.dc", given=other), T, np.full(T.size, out))
    found = [(c.status, c.scope, c.numbers) for c in checks(folder, "supply-efficiency")]
    assert found == ([(status, "psu:1", {"efficiency_share": pytest.approx(out / into)})] if status else [])
    folder.add("pdu", power("node.ac"), T, np.full(T.size, 10 * into))
    folder.add("bmc", power("node.dc", "node.ac", given=other), T, np.full(T.size, 10 * out))
    expected = ["psu:1", "node.ac"] if status else ["node.ac"] if into < out else []
    assert [c.scope for c in checks(folder, "supply-efficiency")] == expected


def test_an_efficiency_that_is_not_resolved_is_no_doubt(folder):
    rough = Accuracy("assumed", 0.3, shared="bmc.dc")
    folder.add("bmc", power("psu:1", "node.ac"), T, np.full(T.size, 300.0))
    folder.add("bmc", power("psu.dc:1", "node.dc", given=rough), T, np.full(T.size, 301.0))
    assert not checks(folder, "supply-efficiency")


def test_a_slow_refresh_leaves_less_of_the_time_measured(folder):
    stream = power("node.ac")
    stream = replace(stream, channels=(replace(stream.channels[0], limits=(250.0, 450.0)),))
    folder.add("pdu", stream, T, np.repeat(np.arange(10.0) ** 2 + 300, 20))
    assert only(folder, "unseen").numbers["seen_share"] == pytest.approx(0.05)


@pytest.mark.parametrize(("count", "step_s"), [(5, 0.1), (12, 0.307)])
def test_steps_that_are_too_few_or_uneven_are_counted(folder, count, step_s):
    steps_at(steady(folder, seen=0.25), count, step_s)
    assert only(folder, "unseen").numbers["steps"] == count
    assert not checks(folder, "in-step")


def steps_at(folder, count, step_s):
    at = [ns(6 + step_s * k) for k in range(count)]
    line = {"t": at[-1], "mark": "work", "from": at[0], "phase": None, "amounts": {"steps": count}, "at": at}
    folder.marks("9-1", line)


def test_steps_in_time_with_the_sensor_are_evidence_for_what_it_cannot_see(folder):
    steps_at(steady(folder, seen=0.25), 50, 0.1)
    found = only(folder, "in-step.steps")
    assert (found.status, found.scope, found.numbers) == ("warning", "gpu:0", {"seen_share": 0.25})
    assert not checks(folder, "unseen")
    energy = analyse_run(folder.open()).energy
    assert energy.expanded == energy.bound
    assert energy.expanded > 0.3 * energy.value


def test_another_meter_that_disagrees_is_evidence_for_what_a_sensor_cannot_see(folder):
    steady(folder, seen=0.25)
    alone = analyse_run(folder.close(START, END).open()).energy
    assert alone.expanded < 0.2 * alone.bound
    other = Folder(folder.path.parent)
    steady(other, seen=0.25)
    other.add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 400.0))
    found = analyse_run(other.close(START, END).open())
    assert found.energy.expanded == found.energy.bound
    assert only(other, "in-step").code == "in-step.meter"
    assert [c.verdict for c in found.comparisons] == ["agree", "differ"]  # its own power, the other meter
    like = Folder(folder.path.parent)
    steady(like, seen=0.25)
    like.add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 301.0))
    assert analyse_run(like.close(START, END).open()).energy.expanded < 0.2 * alone.bound


@pytest.mark.parametrize(
    ("period_s", "phase_s", "verdict"),
    [(0.25, 0.0, "agree"), (0.9, 0.0, "agree"), (2.1, 0.0, "agree"), (0.25, 0.228, "differ")],  # the last misses it
)
def test_another_channel_of_a_sensor_is_no_evidence_for_what_it_cannot_see(folder, period_s, phase_s, verdict):
    """A load of 650 W that falls to 70 W for 8 % of its period: the counter is right, the powers are up to 8 % off."""
    fine = np.arange(0, 20.1, 0.001)
    load = np.where((fine + phase_s) % period_s < 0.92 * period_s, 650.0, 70.0)
    used = np.concatenate(([0.0], np.cumsum(load) * 0.001))
    shown = [load[max(k - 25, 0) : k + 1].mean() for k in np.rint(T * 1000).astype(int)]
    folder.add("nvml", gpu(0, seen=0.25), T, np.interp(T, np.arange(used.size) * 0.001, used), shown)
    found = analyse_run(folder.close(START, END).open())
    true = float(np.diff(np.interp((START, END), np.arange(used.size) * 0.001, used))[0])
    assert [c.verdict for c in found.comparisons] == [verdict]
    assert not checks(folder, "in-step")
    assert abs(found.energy.value - true) < found.energy.expanded < 0.3 * found.energy.bound


@pytest.mark.parametrize(("instant_w", "evident"), [(300.0, True), (250.0, False)])
def test_an_average_that_disagrees_is_evidence_if_the_counter_may_have_seen_the_windows_only(
    folder, instant_w, evident
):
    stream = gpu(0, seen=0.25)
    average = replace(stream.channels[1], name="power_average_w", window_s=1.0)
    shown = (300 * T, np.full(T.size, instant_w), np.full(T.size, 450.0))
    folder.add("nvml", replace(stream, channels=(*stream.channels, average)), T, *shown)
    found = analyse_run(folder.close(START, END).open())
    assert found.comparisons[-1].verdict == "differ"
    assert [c.code for c in checks(folder, "in-step")] == ["in-step.meter"] * evident
    assert (found.energy.expanded == found.energy.bound) is evident


def test_a_slow_copy_of_a_sensor_is_not_preferred_because_it_states_no_bound(folder):
    steady(folder, seen=0.25)
    wide = Accuracy("assumed", 0.2, shared="redfish")
    folder.add("redfish", counter("gpu:0", given=wide), T, 300 * T)
    (scope,) = analyse_run(folder.close(START, END).open()).scopes
    assert [scope.reading.meter, scope.others[-1].meter] == ["nvml", "redfish"]


def test_a_quality_that_is_nan_is_doubted(folder):
    told = {"quality": "accuracy, loss", "accuracy": 0.9, "loss": float("nan")}
    steady(folder).marks("9-1", {"t": ns(6), "mark": "fact", "facts": told})
    found = only(folder, "quality")
    assert (found.status, found.scope) == ("warning", "loss")


# Counters.


def test_a_frozen_counter(folder):
    folder.add("nvml", gpu(0), T, np.full(T.size, 1e6), np.full(T.size, 300.0))
    assert only(folder, "counter-frozen").scope == "gpu:0"


@pytest.mark.parametrize(("quantum", "update_s"), [(3600.0, 0.1), (0.0, 3.0)])
def test_a_coarse_or_slow_counter_that_did_not_step_yet_is_not_frozen(folder, quantum, update_s):
    stream = gpu(0)
    specs = [
        replace(c, accuracy=replace(c.accuracy, quantum=quantum), update_s=update_s) if c.kind == "counter" else c
        for c in stream.channels
    ]
    folder.add("nvml", replace(stream, channels=tuple(specs)), T, np.full(T.size, 1e6), np.full(T.size, 300.0))
    assert not checks(folder, "counter-frozen")
    assert analyse_run(folder.open()).scopes[0].reading.channel == "power_instant_w"


@pytest.mark.parametrize(("at", "told"), [(10.0, True), (3.0, False), (17.0, False)])
def test_a_reset_counts_only_during_the_run(folder, at, told):
    joules = np.where(at > T, 1e6 + 300 * T, 300 * (T - at))
    folder.add("nvml", gpu(0), T, joules, np.full(T.size, 300.0))
    assert [c.scope for c in checks(folder, "counter-reset")] == (["gpu:0"] if told else [])


@pytest.mark.parametrize(("since", "told"), [(8.0, True), (1.0, False)])
def test_a_wrap_that_nobody_can_count(folder, since, told):
    keep = (since > T) | (since + 3 < T)
    folder.add("rapl", counter("cpu:0", modulus=500.0), T[keep], (100 * T[keep]) % 500.0)
    assert [c.scope for c in checks(folder, "counter-wrap")] == (["cpu:0"] if told else [])


# Agreement.


@pytest.mark.parametrize(("off", "told"), [(1.0, False), (1.004, False), (1.06, True), (0.9, True)])
def test_meters_of_one_scope_that_disagree(folder, off, told):
    """Both read the same sensor, so its gain excuses nothing."""
    folder.add("nvml", gpu(0), T, 300 * T, np.full(T.size, 300.0 * off))
    found = checks(folder, "meters-disagree")
    assert [(c.scope, word_check(c).next) for c in found] == ([("gpu:0", "joulelab doctor nvml")] if told else [])
    for check in found:
        assert check.numbers["difference_share"] == pytest.approx(off - 1, abs=5e-4)
        assert 0 < check.numbers["uncertainty_share"] < abs(off - 1)


def test_meters_of_their_own_may_differ_by_their_gains(folder):
    steady(folder).add("pdu", power("gpu:0"), T, np.full(T.size, 300.0 * 1.05))
    assert not checks(folder, "meters-disagree")


@pytest.mark.parametrize("given", [{"given": Accuracy()}, {"estimate": True}])
def test_what_is_unknown_or_estimated_cannot_disagree(folder, given):
    steady(folder).add("odd", power("gpu:0", **given), T, np.full(T.size, 600.0))
    assert not checks(folder, "meters-disagree")


def test_without_energy_there_is_nothing_to_compare(folder):
    folder.add("nvml", gpu(0), T, np.zeros(T.size), np.full(T.size, 0.5))
    assert not checks(folder, "meters-disagree")


def test_problems_of_a_source_are_told(folder):
    steady(folder).event(1.0, "problem", meter="log", what="7 lines are no numbers")
    folder.event(2.0, "problem", what="of the recording itself")
    assert [c.scope for c in checks(folder, "source")] == ["log"]


def test_a_limit_that_was_reached_or_not_watched(folder):
    steady(folder)
    assert not checks(Folder(folder.path.parent), "limit.reached")
    folder.event(8.0, "limit-reached", limit="2 kWh", limit_j=7.2e6, elapsed_s=6.5, phase="train", then="SIGTERM")
    folder.event(8.0, "limit-lost", limit="2 kWh")
    found = only(folder, "limit.reached")
    assert (found.status, found.numbers) == ("note", {"limit_j": 7.2e6, "reached_s": 6.5})
    assert found.texts == {"limit": "2 kWh", "phase": "train", "then": "SIGTERM"}
    assert only(folder, "limit.lost").texts == {"limit": "2 kWh"}


def test_a_limit_that_was_passed_before_it_was_looked_at(folder):
    steady(folder).event(1.0, "limit", limit="1 J", limit_j=1.0, phase=None)
    folder.event(1.0, "limit", limit="2 J", limit_j=2.0, phase="train")
    folder.event(1.0, "limit", limit="2 kWh", limit_j=7.2e6, phase=None)
    assert only(folder, "limit.unseen").texts == {"limit": "1 J"}
    folder.event(8.0, "limit-reached", limit="1 J", limit_j=1.0, elapsed_s=6.5, then="SIGTERM")
    assert not checks(folder, "limit.unseen")


def test_a_limit_that_was_passed_while_a_meter_was_lost(folder):
    steady(folder).event(1.0, "limit", limit="1 J", limit_j=1.0, phase=None)
    folder.event(3.0, "limit-lost", limit="1 J")
    assert only(folder, "limit.unwatched").texts == {"limit": "1 J"}
    assert not checks(folder, "limit.unseen")
    folder.event(4.0, "limit-found", limit="1 J")
    assert only(folder, "limit.unseen").texts == {"limit": "1 J"}
    assert not checks(folder, "limit.unwatched")


@every_row(
    ("phases", "texts"),
    [
        ((), {"limit": "1 J", "phase": "trian"}),
        (("train", "test\n", "train"), {"limit": "1 J", "phase": "trian", "names": "train, test\\n"}),
        (("train", "trian"), None),
    ],
)
def test_a_limit_of_a_phase_that_never_began(phases, texts):
    folder = steady(Folder(make_home())).event(1.0, "limit", limit="1 J", limit_j=1.0, phase="trian")
    for k, name in enumerate(phases):
        begin, end = {"t": ns(6.0 + k), "mark": "begin", "name": name}, {"t": ns(7.0 + k), "mark": "end"}
        folder.marks("9", begin | {"id": f"9-{k}"}, end | {"id": f"9-{k}"})
    assert [check.texts for check in checks(folder, "limit")] == ([] if texts is None else [texts])


def test_a_limit_with_other_values_is_read_with_care(folder):
    steady(folder).event(8.0, "limit-reached", limit_j="much", elapsed_s=None)
    assert only(folder, "limit.reached").numbers == {"limit_j": 0.0, "reached_s": 0.0}
