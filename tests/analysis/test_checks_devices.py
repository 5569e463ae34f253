"""Each doubt of the referee about devices and the machine: raised where it should be, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import END, SECONDS, START, T, checks, only, steady
from tests.analysis.folders import METER, Folder, counter, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.results_file import make_head
from joulelab.analysis.work_channels import WORK_QUANTITY
from joulelab.core.spec import Spec, Stream
from joulelab.report.messages import word_check


@pytest.fixture
def folder(tmp_path):
    """Return a folder with one GPU at a steady 300 W."""
    return Folder(tmp_path)


# Held back.


@pytest.mark.parametrize(
    ("bits", "found"),
    [
        (0x0, []),
        (0x1, []),  # idle
        (0x4, [("note", "power-cap")]),
        (0x8, [("warning", "hardware-slowdown")]),
        (0x60, [("warning", "software-thermal"), ("warning", "hardware-thermal")]),
        (0x80, [("warning", "power-brake")]),
    ],
)
def test_a_device_that_was_held_back(folder, bits, found):
    steady(folder).add("nvml", state(0, "throttle"), SECONDS, np.where(SECONDS > 10, bits, 0))
    assert [(c.code, c.status, c.scope, c.numbers) for c in checks(folder, "throttled")] == [
        (f"throttled.{reason}", status, "gpu:0", {"share": 0.5}) for status, reason in found
    ]


# Powers that cannot be.


@pytest.mark.parametrize(
    ("watts", "at", "case", "numbers"),
    [
        (-0.9, 10.0, "", {}),
        (-3.0, 10.0, "negative", {}),
        (-3.0, 1.0, "", {}),  # before the run
        (15e3, 10.0, "", {}),
        (90e3, 10.0, "outlier", {"median_w": 300.0}),
        (2e5, 10.0, "too-high", {"most_w": 1e5}),
    ],
)
def test_a_power_that_no_device_has(folder, watts, at, case, numbers):
    folder.add("pdu", power("node.ac"), T, np.where(np.isclose(T, at), watts, 300.0))
    found = [(c.code, c.status, c.scope, word_check(c).next, c.numbers) for c in checks(folder, "impossible-power")]
    wanted = (f"impossible-power.{case}", "failed", "node.ac", "joulelab doctor pdu", {"power_w": watts, **numbers})
    assert found == ([wanted] if case else [])


def test_a_power_that_no_device_has_in_the_idle_stretch(folder):
    folder.add("pdu", power("node.ac"), T, np.where(np.isclose(T, 3.0), -3.0, 300.0))
    folder.event(4.9, "idle", **{"from": ns(2.0), "to": ns(4.9)})
    assert only(folder, "impossible-power.negative").numbers == {"power_w": -3.0}


def test_a_node_that_takes_more_than_nodes_do_today_all_the_time(folder):
    folder.add("pdu", power("node.ac"), T, np.where(T > 10.0, 30e3, 4e3))
    assert not checks(folder, "impossible-power")


@pytest.mark.parametrize("step_at", [4.0, 5.3, 9.0])
def test_a_coarse_counter_has_no_impossible_power(folder, step_at):
    """A run of 0.84 s at 762 W beside a meter that counts Wh once a second."""
    t = np.append(np.arange(START - 2.0, START - 0.1, 0.02), np.arange(START + 0.005, START + 0.9, 0.008))
    specs = (
        Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=METER),
        Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=replace(METER, quantum=3600.0)),
    )
    shown = np.full(t.size, 762.0), 3600.0 * (1 + (t >= step_at))
    folder.add("modbus", Stream("modbus", "power", "node.ac", 1.0, specs), t, *shown)
    assert not checks(folder, "impossible-power", end=START + 0.84)


def test_a_counter_that_did_not_step_is_no_node_without_power(folder):
    coarse = Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=replace(METER, quantum=3600.0))
    folder.add("modbus", Stream("modbus", "power", "node.ac", 1.0, (coarse,)), T, np.full(T.size, 7200.0))
    assert not checks(folder, "impossible-power")


FALLING = 1e9 - 300.0 * T


@pytest.mark.parametrize(
    ("joules", "modulus", "case"),
    [
        (300.0 * T, None, ""),
        (FALLING, None, "negative"),
        (np.where(T < 10, 1e6 + 300.0 * T, 300.0 * (T - 10)), None, ""),  # a reset
        (1e6 + 300.0 * T - 500.0 * (T > 10), None, ""),  # once: to a stored count
        (1e6 + 300.0 * T - 500.0 * np.floor(T), None, "negative"),
        ((262e3 - 3e3 + 300.0 * T) % 262e3, 262e3, ""),
        (100e3 + 300.0 * T - 500.0 * (T > 10), 262e3, "negative"),  # no wrap: a package takes no 2.6 MW
        (1e6 * T, None, "too-high"),
    ],
)
def test_a_count_that_falls_is_impossible_where_no_wrap_or_reset_explains_it(folder, joules, modulus, case):
    folder.add("rapl", counter("cpu:0", modulus=modulus), T, joules)
    assert [c.code for c in checks(folder, "impossible-power")] == ([f"impossible-power.{case}"] if case else [])


def test_an_impossible_power_of_a_meter_that_is_not_believed_leaves_the_energy_in_lists(folder):
    folder.add("pdu", power("node.ac"), T, np.full(T.size, 300.0))
    folder.add("bmc", power("node.ac", given=replace(METER, gain=0.1)), T, np.where(np.isclose(T, 10.0), -3e3, 300.0))
    found = only(folder, "impossible-power.negative")
    assert (found.status, word_check(found).next) == ("warning", "joulelab doctor bmc")
    assert make_head(analyse_run(folder.open())).failed_check is None


@pytest.mark.parametrize(
    ("scope", "watts", "found"),
    [
        ("rack", 48.0, True),
        ("rack", 120.0, False),
        ("node.ac", 6.0, True),
        ("cpu:0", 0.25, True),
        ("cpu:0", 4.0, False),
        ("gpu:0", 0.4, True),
        ("outlet:1", 6.0, True),
        ("outlet:1", 12.0, False),
    ],
)
def test_an_imported_power_in_kw_that_was_mapped_as_w(folder, scope, watts, found):
    folder.add("log", power(scope), T, np.full(T.size, watts))
    folder.close(START, END, outcome="imported")
    wrong = [(c.code, c.status, c.scope) for c in checks(folder, "impossible-power")]
    assert wrong == ([("impossible-power.wrong-unit", "failed", scope)] if found else [])


def test_an_outlet_that_feeds_a_supply_on_standby_is_no_wrong_unit(folder):
    folder.add("log", power("outlet:1"), T, np.full(T.size, 6.0))
    folder.add("log2", power("outlet:2"), T, np.full(T.size, 400.0))
    folder.close(START, END, outcome="imported")
    assert not checks(folder, "impossible-power")


@pytest.mark.parametrize(("watts", "found"), [(0.374, True), (0.0, True), (2.7, False), (48.0, False)])
def test_a_live_node_takes_more_than_small_computers_do(folder, watts, found):
    folder.add("bmc", power("node.ac"), T, np.full(T.size, watts))
    wrong = [(c.code, c.status, word_check(c).next, c.numbers) for c in checks(folder, "impossible-power")]
    wanted = ("impossible-power.wrong-unit", "failed", "joulelab doctor bmc", {"power_w": pytest.approx(watts)})
    assert wrong == ([wanted] if found else [])


# Devices that were not used.


def loaded(folder, *loads):
    for k, load in enumerate(loads):
        steady(folder, 60.0 if load < 0.01 else 300.0, index=k)
        folder.add("nvml", state(k, "load"), [2.0, 6.0, 9.0, 12.0], [0.9, 0.0, load, 0.0])
    return folder


def test_gpus_that_did_nothing_beside_others_that_did(folder):
    loaded(folder, 0.0, 0.9, 0.005)
    steady(folder, index=3)  # nobody knows what it did
    found = only(folder, "idle-gpus")
    assert (found.status, found.scope) == ("note", "gpu:0, gpu:2")
    assert found.numbers == pytest.approx({"energy_j": 1200.0, "share": 120 / 720}, rel=1e-3)


@pytest.mark.parametrize("loads", [(0.0, 0.0), (0.5, 0.9)])
def test_all_or_none_idle_is_nothing_to_note(folder, loads):
    assert not checks(loaded(folder, *loads), "idle-gpus")


def test_gpus_that_the_workload_does_not_see(folder):
    rows = [{"scope": "gpu:0", "visible": True}, {"scope": "gpu:1", "visible": False}]
    steady(folder).event(0.1, "devices", meter="nvml", gpus=rows)
    assert only(folder, "hidden-gpus").scope == "gpu:1"
    seen = steady(Folder(folder.path.parent)).event(0.1, "devices", meter="nvml", gpus=rows[:1])
    assert not checks(seen, "hidden-gpus")


# Other processes.


def test_processes_that_were_there_before_are_not_the_workloads(folder):
    steady(folder)
    folder.event(1.0, "process", scope="gpu:0", pids=[11, 12]).event(2.0, "process", scope="gpu:0", pids=[12])
    folder.event(5.0, "workload", pid=77).event(7.0, "tree", pids=[78])
    folder.event(6.0, "process", scope="gpu:0", pids=[12, 77, 78])
    folder.event(17.0, "process", scope="gpu:0", pids=[99])  # after the end
    found = only(folder, "other-processes")
    assert (found.scope, found.numbers) == ("gpu:0", {"processes": 1})


def test_a_server_whose_counters_are_recorded_is_no_stranger(folder):
    steady(folder).event(1.0, "process", scope="gpu:0", pids=[11]).event(5.0, "workload", pid=77)
    tokens = Stream("server", "server", "server", 0.1, (Spec("output_tokens", WORK_QUANTITY, "1", "counter"),))
    folder.add("inference", tokens, T, 10.0 * T)
    found = only(folder, "other-processes.server")
    assert (found.status, found.numbers) == ("note", {"processes": 1})
    folder.event(7.0, "process", scope="gpu:0", pids=[11, 12])  # this one came during the run
    assert only(folder, "other-processes").numbers == {"processes": 2}


def test_all_counters_of_a_server_that_started_again_are_in_one_warning(folder):
    channels = tuple(Spec(name, WORK_QUANTITY, "1", "counter") for name in ("output_tokens", "requests"))
    restarted = np.where(T < 6.0, 10.0 * T, T)
    steady(folder).add("inference", Stream("server", "server", "server", 0.1, channels), T, restarted, restarted)
    once = Stream("late", "late", "late", 0.1, channels[:1])
    folder.add("other", once, T[:1], T[:1])  # one reading counts nothing
    found = only(folder, "counter-reset")
    assert (found.scope, found.texts) == ("server", {"channel": "output_tokens (and requests)"})


def test_processes_that_come_meanwhile(folder):
    steady(folder).event(5.0, "workload", pid=77).event(6.0, "process", scope="gpu:1", pids=[*range(80, 90), 77])
    found = only(folder, "other-processes")
    assert (found.scope, found.numbers) == ("gpu:1", {"processes": 10})


def test_the_workloads_own_processes_are_no_strangers(folder):
    steady(folder).event(5.0, "workload").event(5.5, "tree", pids=[77, 78])
    folder.event(6.0, "process", scope="gpu:0", pids=[77, 78]).event(1.0, "process", scope="gpu:0", pids=[])
    assert not checks(folder, "other-processes")


# Idle, late.


@pytest.mark.parametrize(("rise", "told"), [(0.0, False), (3.0, False), (30.0, True), (-20.0, True)])
def test_idle_power_that_drifts(folder, rise, told):
    watts = 100 + rise * (T > 2.5)
    folder.add("rapl", counter("cpu:0"), T, np.concatenate(([0.0], np.cumsum(watts[:-1] * 0.1))))
    folder.event(4.5, "idle", **{"from": ns(0.5), "to": ns(4.5)})
    found = checks(folder, "idle-drifted")
    assert [(c.status, c.scope) for c in found] == ([("warning", "cpu:0")] if told else [])
    assert [c.numbers["drift_w"] for c in found] == ([pytest.approx(rise, abs=2)] if told else [])


def test_a_drift_that_the_meter_cannot_tell_is_none(folder):
    """Two readings of a slow meter, one in each half: they may differ by what lies between readings."""
    slow = power("node.ac")
    slow = replace(slow, period_s=3.0, channels=(replace(slow.channels[0], update_s=3.0, window_s=0.0),))
    folder.add("bmc", slow, np.arange(0, 20, 3.0), [100.0, 140.0, 500, 500, 500, 500, 500])
    folder.event(4.5, "idle", **{"from": ns(0.5), "to": ns(4.5)})
    assert not checks(folder, "idle-drifted")


@pytest.mark.parametrize(("missed", "told"), [(3, False), (4, False), (40, True)])
def test_readings_that_were_skipped(folder, missed, told):
    steady(folder)
    for _ in range(2):
        folder.event(16.0, "late", meter="nvml", count=missed, missed=missed, worst_ns=1, ticks=1000)
    folder.event(16.0, "late", meter="rapl", count=0, missed=0, worst_ns=0, ticks=100)
    found = [(c.status, c.scope, c.numbers) for c in checks(folder, "late")]
    assert found == ([("note", "nvml", {"missed": 2 * missed, "ticks": 2000})] if told else [])


def test_a_run_whose_end_a_full_disk_took_still_says_how_the_workload_ended(folder):
    steady(folder).event(8.0, "workload-end", end_ns=END, exit_code=9, signal=None)
    result = analyse_run(folder.open())
    assert (result.outcome, result.exit_code) == ("exit", 9)
    assert "ending.not-recorded" in [c.code for c in result.checks]


def test_a_meter_that_never_opened_is_missed(folder):
    steady(folder).event(0.5, "meter", meter="nvml", status="opening", why="it has not answered yet")
    found = only(folder, "silent-meter")
    assert (found.status, found.scope, word_check(found).next) == ("failed", "nvml", "joulelab doctor nvml")
    assert [m["meter"] for m in analyse_run(folder.open()).missing] == ["nvml"]


def test_a_meter_that_opened_late_is_not(folder):
    steady(folder).event(0.5, "meter", meter="nvml", status="opening").event(0.9, "meter", meter="nvml", status="open")
    assert not checks(folder, "silent-meter")
