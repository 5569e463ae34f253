"""Each doubt of the referee about meters and their readings: raised where it should be, and only there."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import END, SECONDS, START, STATE, T, checks, only, steady
from tests.analysis.folders import Folder, counter, gpu, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse
from joulelab.core.spec import Accuracy


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
    assert analyse(folder.close(START, END).open()).checks == ()


# Meters.


def test_no_meter(folder):
    assert only(folder, "power meter") == (
        "failed",
        "no power meter was read, so there is no energy",
        "joulelab meters",
    )


def test_a_device_that_was_never_read_is_not_silently_left_out(folder):
    steady(folder)
    steady(folder, index=1, keep=T < 0.05)
    status, message, _ = only(folder, "not read")
    assert status == "failed"
    assert message == "gpu:1: fewer than two readings, so no sum holds it"
    assert not checks(steady(Folder(folder.path.parent)), "not read")


def test_a_journal_that_was_cut_is_damaged_and_no_meter_is_to_blame(folder):
    steady(folder)
    steady(folder, index=1)
    run = folder.close(START, END)
    journal = run.path / "node1" / "nvml.t0.0.journal"
    os.truncate(journal, journal.stat().st_size // 2 + 1)
    found = {c.name: c for c in analyse(run.open()).checks}
    assert found["damaged"].status == "failed"
    assert "nvml.t0.0.journal: it was cut off after" in found["damaged"].message
    assert not any("doctor" in c.next for c in found.values())


def test_an_estimate_is_called_one(folder):
    steady(folder).add("estimate", power("cpu", estimate=True), T, np.full(T.size, 80.0))
    status, message, _ = only(folder, "estimate")
    assert status == "warning"
    assert message.startswith("cpu: load x rated power")


def test_an_unknown_accuracy_is_said(folder):
    steady(folder, given=Accuracy())
    status, message, _ = only(folder, "accuracy")
    assert (status, message.split(":")[0:2]) == ("note", ["gpu", "0"])


# Ending.


def test_a_killed_run(folder):
    steady(folder)
    (found,) = [c for c in analyse(folder.open()).checks if c.name == "ending"]
    assert found.status == "warning"
    assert "killed" in found.message


@pytest.mark.parametrize(
    ("event", "more", "name", "said"),
    [
        ("recorder-died", {"status": "signal 9", "segment": 0}, "recorder", "signal 9"),
        ("recorder-stuck", {"segment": 0}, "recorder", "did not answer at the end"),
        ("supervisor-paused", {"from": 1_000_000_000, "to": 3_500_000_000}, "paused", "held up for 2.5 s"),
        ("disk", {"error": "ENOSPC", "dropped_rows": 12}, "disk", "ENOSPC; rows lost: 12"),
        ("stuck", {"meter": "nvml"}, "stuck meter", "nvml did not answer"),
        ("clock-step", {"by_ns": -7_200_000_000_000}, "clock stepped", "-7200.000 s"),
    ],
)
def test_what_happened_to_the_recorder_is_told(folder, event, more, name, said):
    steady(folder)
    assert not checks(Folder(folder.path.parent), name)
    folder.event(8.0, event, **more)
    status, message, _ = only(folder, name)
    assert status == "warning"
    assert said in message


# Length, gaps, what was not seen.


def test_a_run_that_is_short_for_its_meter(folder):
    slow = power("node.ac")
    slow = replace(slow, period_s=2.0, channels=(replace(slow.channels[0], update_s=2.0, window_s=2.0),))
    folder.add("bmc", slow, np.arange(0, 20, 2.0), 500 + 400 * (np.arange(10) % 2))
    status, message, advice = only(folder, "too short", end=START + 4)
    assert status == "warning"
    assert message.startswith("node.ac: the run is short for bmc (")
    assert "--tail" in advice
    assert not checks(steady(Folder(folder.path.parent)), "too short", end=START + 4)


def test_a_device_without_energy_is_not_short(folder):
    assert not checks(steady(folder, 0.0), "too short")


@pytest.mark.parametrize(("gap_s", "status"), [(0.1, None), (0.7, "warning"), (3.0, "failed")])
def test_time_without_readings(folder, gap_s, status):
    steady(folder, keep=(T < 8.05) | (8.05 + gap_s < T))
    steady(folder, index=1)
    for stream, reason in (("gpu:0.power", "GPU is lost"), ("gpu:0.power.other", "no"), ("gpu:10.power", "no")):
        folder.event(8.1, "gap", meter="nvml", stream=stream, reason=reason, **{"from": ns(8.0)})
    found = checks(folder, "gaps")
    assert [s for s, _, _ in found] == ([status] if status else [])
    for _, message, advice in found:
        assert message.endswith("% of the time without readings (GPU is lost)")
        assert advice == "joulelab doctor nvml"


def test_a_gap_that_nobody_explained(folder):
    steady(folder, keep=(T < 8.05) | (T > 10.05))
    assert only(folder, "gaps")[1].endswith("(no readings)")


def test_a_sensor_that_sees_a_part(folder):
    steady(folder, seen=0.25)
    status, message, advice = only(folder, "unseen")
    assert status == "note"
    assert message.startswith("gpu:0: the sensors measure 25 % of the time; if the load repeats exactly in step with")
    assert "the error can reach " in message
    assert advice == "call joulelab.step() in the training loop, or add a wall meter: joulelab meters"
    assert not checks(folder, "in step")
    three = Folder(folder.path.parent)
    for k in range(3):
        steady(three, index=k, seen=0.25)
    assert only(three, "unseen")[1].startswith("gpu:0..gpu:2: ")
    nothing = steady(Folder(folder.path.parent), 0.0, seen=0.25)
    assert only(nothing, "unseen")[1].endswith("they do not show it")


@pytest.mark.parametrize(
    ("count", "step_s", "words"),
    [(5, 0.1, "12 would do, 5 are known"), (12, 0.307, "the 12 known ones")],
)
def test_the_advice_says_what_steps_lack(folder, count, step_s, words):
    steps_at(steady(folder, seen=0.25), count, step_s)
    assert words in only(folder, "unseen")[2]
    assert not checks(folder, "in step")


def steps_at(folder, count, step_s):
    at = [ns(6 + step_s * k) for k in range(count)]
    line = {"t": at[-1], "mark": "work", "from": at[0], "phase": None, "amounts": {"steps": count}, "at": at}
    folder.marks("9-1", line)


def test_steps_in_time_with_the_sensor_are_evidence_for_what_it_cannot_see(folder):
    steps_at(steady(folder, seen=0.25), 50, 0.1)
    status, message, _ = only(folder, "in step")
    assert status == "warning"
    assert message.startswith("gpu:0: the sensors measure 25 % of the time, and the steps of the load keep time with")
    assert not checks(folder, "unseen")
    energy = analyse(folder.open()).energy
    assert energy.expanded == energy.bound
    assert energy.expanded > 0.3 * energy.value


def test_another_meter_that_disagrees_is_evidence_for_what_a_sensor_cannot_see(folder):
    steady(folder, seen=0.25)
    alone = analyse(folder.close(START, END).open()).energy
    assert alone.expanded < 0.2 * alone.bound
    other = Folder(folder.path.parent)
    steady(other, seen=0.25)
    other.add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 400.0))
    found = analyse(other.close(START, END).open())
    assert found.energy.expanded == found.energy.bound
    assert "and another meter disagrees" in only(other, "in step")[1]
    assert [c.verdict for c in found.comparisons] == ["agree", "differ"]  # its own power, the other meter
    like = Folder(folder.path.parent)
    steady(like, seen=0.25)
    like.add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 301.0))
    assert analyse(like.close(START, END).open()).energy.expanded < 0.2 * alone.bound


def test_a_quality_that_is_nan_is_doubted(folder):
    told = {"quality": "accuracy, loss", "accuracy": 0.9, "loss": float("nan")}
    steady(folder).marks("9-1", {"t": ns(6), "mark": "fact", "facts": told})
    assert only(folder, "quality")[:2] == (
        "warning",
        "loss: nan, so it is not known what the energy was spent for",
    )


# Counters.


def test_a_frozen_counter(folder):
    folder.add("nvml", gpu(0), T, np.full(T.size, 1e6), np.full(T.size, 300.0))
    assert only(folder, "counter frozen")[1] == "gpu:0: energy_j does not move; power is integrated instead"


@pytest.mark.parametrize(("at", "told"), [(10.0, True), (3.0, False), (17.0, False)])
def test_a_reset_counts_only_during_the_run(folder, at, told):
    joules = np.where(at > T, 1e6 + 300 * T, 300 * (T - at))
    folder.add("nvml", gpu(0), T, joules, np.full(T.size, 300.0))
    found = checks(folder, "counter reset")
    assert bool(found) is told
    assert all(m == "gpu:0: energy_j was reset during the run" for _, m, _ in found)


@pytest.mark.parametrize(("since", "told"), [(8.0, True), (1.0, False)])
def test_a_wrap_that_nobody_can_count(folder, since, told):
    keep = (since > T) | (since + 3 < T)
    folder.add("rapl", counter("cpu:0", modulus=500.0), T[keep], (100 * T[keep]) % 500.0)
    found = checks(folder, "counter wrap")
    assert bool(found) is told
    assert all(m == "cpu:0: a gap is long enough for energy_j to wrap unseen" for _, m, _ in found)


# Agreement.


@pytest.mark.parametrize(("off", "told"), [(1.0, False), (1.004, False), (1.06, True), (0.9, True)])
def test_meters_of_one_scope_that_disagree(folder, off, told):
    """Both read the same sensor, so its gain excuses nothing."""
    folder.add("nvml", gpu(0), T, 300 * T, np.full(T.size, 300.0 * off))
    found = checks(folder, "meters disagree")
    assert bool(found) is told
    for _, message, advice in found:
        assert message.startswith(f"gpu:0: power_instant_w of nvml is {off - 1:+.1%} off energy_j of nvml, more than ")
        assert advice == "joulelab doctor nvml"


def test_meters_of_their_own_may_differ_by_their_gains(folder):
    steady(folder).add("pdu", power("gpu:0"), T, np.full(T.size, 300.0 * 1.05))
    assert not checks(folder, "meters disagree")


@pytest.mark.parametrize("given", [{"given": Accuracy()}, {"estimate": True}])
def test_what_is_unknown_or_estimated_cannot_disagree(folder, given):
    steady(folder).add("odd", power("gpu:0", **given), T, np.full(T.size, 600.0))
    assert not checks(folder, "meters disagree")


def test_without_energy_there_is_nothing_to_compare(folder):
    folder.add("nvml", gpu(0), T, np.zeros(T.size), np.full(T.size, 0.5))
    assert not checks(folder, "meters disagree")


def test_a_meter_that_opened_late_says_why(folder):
    late = T[T > 12]
    steady(folder).add("pdu", power("node.ac"), late, np.full(late.size, 900.0))
    folder.event(1.0, "meter", meter="pdu", status="failed", what="the port is closed")
    folder.event(12.0, "meter", meter="pdu", status="open", what="")
    found = [m for _, m, _ in checks(folder, "gaps")]
    assert len(found) == 1
    assert found[0].endswith("of the time without readings (pdu opened late: the port is closed)")


def test_problems_of_a_source_are_told(folder):
    steady(folder).event(1.0, "problem", meter="log", what="7 lines are no numbers")
    folder.event(2.0, "problem", what="of the recording itself")
    assert [m for _, m, _ in checks(folder, "source")] == ["log: 7 lines are no numbers"]
