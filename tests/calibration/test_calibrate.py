"""Calibrate simulated GPUs in virtual time: from the staircase to a run that uses the result."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import benchmarks.calibrate
import numpy as np
import pytest
from benchmarks.calibrate import GRID_S, draw_node, draw_other_load, make_powers, record_run, record_staircase
from click.testing import CliRunner
from tests.analysis.folders import gpu
from tests.rows import every_row
from tests.run.test_node_runs import T, make_node

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.calibrations import YEAR_S
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.calibration import recorded_steps
from joulelab.calibration.calibration_record import fit_run, guess_supply, parse_supply
from joulelab.calibration.commands import parse_devices
from joulelab.calibration.staircase import StaircasePlan, choose_step_s, make_load_words, plan_check, plan_steps
from joulelab.cli.group import commands
from joulelab.core.errors import ConfigError
from joulelab.instruments.visible import NodeGpus
from joulelab.run.node_runs import join_runs
from joulelab.run.run_options import get_host_name
from joulelab.store.calibration_files import compute_digest
from joulelab.store.run_reader import open_run


def call(*words, code=0):
    done = CliRunner().invoke(commands, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def node():
    return replace(draw_node(np.random.default_rng(7), "analyzer", 2), fans="fixed")


@pytest.fixture(scope="module")
def staircase(node, tmp_path_factory):
    """Return a store with the run of a staircase, and a run of the node without GPUs."""
    folder = tmp_path_factory.mktemp("runs")
    run, zero, _ = record_staircase(folder, np.random.default_rng(8), node, "analyzer", repeats=2, step_s=15.0)
    return run, zero


@pytest.fixture
def runs(staircase, tmp_path):
    for run in staircase:
        shutil.copytree(run, tmp_path / "runs" / run.name)
    return tmp_path / "runs"


def calibrate(runs, staircase, node, *more, code=0):
    run, zero = staircase
    supply = f"{node.supply_class}:{node.rated_w:.0f}"
    words = ("--reference", "analyzer", "--from", run.name, "--supply", supply, "--zero", zero.name, "--runs", runs)
    fans = ("--fixed-fans",) if node.fans == "fixed" else ()
    return call("calibrate", *words, *fans, *more, code=code)


def test_a_run_after_a_calibration_is_right_and_narrow(runs, staircase, node, tmp_path, monkeypatch):
    record = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    for row, gain in zip(record["devices"], node.gains, strict=True):
        assert abs(row["gain"] - 1 / (1 + gain)) <= 2 * row["gain_u"]
    rng = np.random.default_rng(9)
    powers = make_powers(rng, node, draw_other_load(rng, 2, 20.0), 25.0)
    run = record_run(runs, rng, node, powers, "analyzer", record=record, phases=[(8.0, 18.0), (18.0, 28.0)])
    true = sum(powers.find_energy(k, 8.0, 28.0) for k in range(2))
    with open_run(run) as opened:
        found, without = analyse_run(opened), analyse_run(opened, calibration={})
    gpus, plain = found.group("gpu").energy, without.group("gpu").energy
    assert abs(gpus.value - true) <= gpus.expanded
    assert gpus.relative < 0.04 < plain.relative
    assert sum(phase.energy["gpu"].value for phase in found.phases) == pytest.approx(gpus.value)
    shown = call("show", run.name, "--runs", runs, "--all").output
    assert re.search(r"calibrated gpu:0,1 on \d{4}-\d\d-\d\d against analyzer", shown)
    assert re.search(r"by nvml energy_j, calibrated \d{4}-\d\d-\d\d", shown)
    assert "calibrated" not in call("show", run.name, "--runs", runs, "--calibration", "none").output
    # A copy on another machine, which has no calibrations, gives the same.
    copy = shutil.copytree(run, tmp_path / "elsewhere" / run.name, ignore=shutil.ignore_patterns("results.json"))
    monkeypatch.setenv("JOULELAB_STATE", str(tmp_path / "other-state"))
    with open_run(copy) as opened:
        assert analyse_run(opened).group("gpu").energy == gpus
    (tmp_path / "c.json").write_text(json.dumps(record))
    same = call("show", run.name, "--runs", runs, "--calibration", tmp_path / "c.json", "--json").stdout
    assert json.loads(same)["scopes"][0]["reading"]["energy"]["value"] == pytest.approx(found.scopes[0].energy.value)


def test_how_a_calibration_is_used_is_stated(runs, staircase, node):
    record = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    first, second = record["devices"]
    cpu = {**first, "meter": "rapl", "scope": "cpu:0", "device": "", "model": ""}
    rows = [first, {**second, "model": "A100"}, cpu, {**first, "gain": None}]
    record |= {"utc_s": record["utc_s"] - 2 * YEAR_S, "devices": rows}
    with open_run(runs / staircase[0].name) as opened:
        found = analyse_run(opened, calibration=record)
    codes = {check.scope: check.code for check in found.checks if check.name == "calibration"}
    assert codes.pop("") == "calibration.unusable"
    assert codes == {"gpu:0": "calibration.old", "gpu:1": "calibration.not-used", "cpu:0": "calibration.old"}
    accuracies = {s.scope: s.reading.accuracy for s in found.scopes}
    assert accuracies["gpu:1"] == "assumed"
    assert accuracies["cpu:0"] == "calibrated"


def test_a_calibration_is_listed_shared_and_removed(runs, staircase, node, tmp_path):
    text = calibrate(runs, staircase, node).output
    assert re.search(r"calibrated gpu:0,1: ± [\d.]+ % at full load, where ± 1\d % was assumed", text)
    (record,) = json.loads(call("calibrations", "--json").stdout)
    assert record["file"].endswith(f"{get_host_name({})}@{record['id']}@gpu0-gpu1.json")
    assert re.search(r"gpu:1 +\d{4}-\d\d-\d\d +analyzer", call("calibrations").output)
    shutil.copy(record["file"], tmp_path / "shared.json")
    call("calibrations", "--remove", record["id"])
    assert "No calibration" in call("calibrations").output
    call("calibrations", "--remove", record["id"], code=2)
    call("calibrations", "--add", tmp_path / "shared.json")
    assert len(json.loads(call("calibrations", "--json").stdout)) == 1
    (tmp_path / "other.json").write_text("{}")
    call("calibrations", "--add", tmp_path / "other.json", code=2)
    shown = call("show", staircase[1].name, "--runs", runs, "--calibration", tmp_path / "shared.json").output
    assert "is not used: no meter of this run is in it" in shown
    call("calibrations", "--add", tmp_path / "shared.json", "--remove", "x", code=2)


def test_a_dry_run_of_a_fit_stores_nothing(runs, staircase, node):
    assert "nothing was stored" in calibrate(runs, staircase, node, "--dry-run").output
    assert json.loads(calibrate(runs, staircase, node, "--dry-run", "--json").stdout)["file"] is None
    assert json.loads(call("calibrations", "--json").stdout) == []


def test_a_second_fit_of_one_staircase_replaces_only_its_own_devices(runs, staircase, node, tmp_path):
    record = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    part = {**record, "devices": record["devices"][:1]}
    (tmp_path / "part.json").write_text(json.dumps({**part, "digest": compute_digest(part)}))
    call("calibrations", "--add", tmp_path / "part.json")
    records = json.loads(call("calibrations", "--json").stdout)
    assert [[row["scope"] for row in record["devices"]] for record in records] == [["gpu:0"], ["gpu:1"]]
    call("calibrations", "--remove", f"{records[0]['id']}@gpu0")
    assert len(json.loads(call("calibrations", "--json").stdout)) == 1
    calibrate(runs, staircase, node)
    (record,) = json.loads(call("calibrations", "--json").stdout)
    assert [row["scope"] for row in record["devices"]] == ["gpu:0", "gpu:1"]


def test_errors_of_reference_and_node_are_named_after_them(runs, staircase, node):
    record = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    sources = [source for source in record["devices"][0]["sources"] if source]
    assert {"calibration-reference/S1/gain", "calibration-node/twin/efficiency/low"} <= set(sources)
    assert not any(record["id"] in source for source in sources)


@pytest.mark.system
def test_a_check_compares_with_the_calibration_in_use(runs, staircase, node):
    calibrate(runs, staircase, node, "--check", code=2)  # there is none
    stored = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    assert "holds" in calibrate(runs, staircase, node, "--check").output
    stored["devices"][0]["gain"] *= 1.02  # less than the interval of each, but both have its errors in common
    with open(stored.pop("file"), "w") as file:
        json.dump({**stored, "digest": compute_digest(stored)}, file)
    found = json.loads(calibrate(runs, staircase, node, "--check", "--json", code=1).stdout)
    assert [row["verdict"] for row in found["devices"]] == ["differs", "agrees"]
    assert "gpu:0: the calibration does not hold" in calibrate(runs, staircase, node, "--check", code=1).output


@pytest.mark.system
def test_a_supply_of_which_nothing_is_known_costs_a_wider_interval(runs, staircase, node):
    named = json.loads(calibrate(runs, staircase, node, "--json").stdout)
    words = ("--reference", "analyzer", "--from", staircase[0].name, "--runs", runs)
    unnamed = json.loads(call("calibrate", *words, "--json").stdout)
    for one, other in zip(named["devices"], unnamed["devices"], strict=True):
        assert other["gain_u"] > 2 * one["gain_u"]
    assert re.search(r"name the supplies[^$]*--supply", call("calibrate", *words).output)


@every_row(
    "words, code",
    [
        (("--reference", "pdu9"), "config.no-reference"),
        (("--reference", "analyzer", "--device", "gpu:7"), "config.unknown-device"),
        (("--reference", "analyzer", "--supply", "good"), "config.supply"),
        (("--reference", "analyzer", "--device", "gpu 0"), "config.devices"),
        (("--reference", "rapl", "--device", "gpu:0"), "refused.does-not-follow"),
    ],
)
def test_wrong_words_are_refused(runs, staircase, words, code):
    done = call("calibrate", *words, "--from", staircase[0].name, "--runs", runs, "--json", code=2)
    assert json.loads(done.stdout)["error"]["code"] == code


def test_a_run_without_steps_is_refused(runs, staircase):
    words = ("--reference", "analyzer", "--device", "gpu:0", "--from", staircase[1].name, "--runs", runs, "--json")
    assert json.loads(call("calibrate", *words, code=2).stdout)["error"]["code"] == "config.unknown-device"
    for marks in (runs / staircase[0].name).glob("*/marks/*.jsonl"):
        marks.write_text("")
    words = ("--reference", "analyzer", "--from", staircase[0].name, "--runs", runs, "--json")
    assert json.loads(call("calibrate", *words, code=2).stdout)["error"]["code"] == "config.no-steps"


def test_a_step_with_missing_readings_of_the_reference_does_not_count(staircase):
    with open_run(staircase[0]) as opened:
        joined = recorded_steps._Joined(opened)
        reference, device = joined.find_reference("analyzer"), joined.find_device("gpu:0", "analyzer")
        spans, left_out = joined.list_windows([device], reference)
        shown, (a, b) = reference.curve.readings, spans[2]
        kept = (shown.t1_ns < (a + b) // 2) | (shown.t1_ns > (a + b) // 2 + 3 * 10**9)
        rows = Readings.from_rows(shown.t0_ns[kept], shown.t1_ns[kept], shown.value[kept])
        known = {"step_s": reference.step_s, "moved_s": reference.curve.moved_s}
        torn = replace(reference, curve=PowerCurve(rows, reference.spec, name="x", **known))
        found = joined.list_windows([device], torn)
    assert found == ([*spans[:2], *spans[3:]], left_out + 1)


@pytest.mark.parametrize(("update_s", "window_s"), [(5.0, 5.0), (1.0, 12.0)])
def test_a_reference_that_is_slower_than_it_states_does_not_mix_steps(tmp_path, monkeypatch, update_s, window_s):
    make, rng = benchmarks.calibrate.PanelFlaws, np.random.default_rng(1)

    def make_slow(**flaws):
        return make(**{**flaws, "period_s": update_s, "window_s": window_s})

    monkeypatch.setattr(benchmarks.calibrate, "PanelFlaws", make_slow)
    node = replace(draw_node(rng, "pdu", 1), fans="fixed", gains=np.array([0.05]), offsets_w=np.zeros(1))
    supply = parse_supply(f"{node.supply_class}:{node.rated_w:.0f}")
    options = recorded_steps.FitOptions("pdu", ("gpu:0",), supply, has_fixed_fans=True)
    run, _, _ = record_staircase(tmp_path, np.random.default_rng(2), node, "pdu", repeats=2, step_s=70.0)
    with open_run(run) as opened:
        fitted = fit_run(opened, options)
    # What the same PDU shows if it has a new value every second; a mix of steps made it 2 % less, or left 75 W.
    assert fitted.fit.devices[0].gain == pytest.approx(0.944, abs=0.003)
    assert np.abs(fitted.fit.residual_w).max() < 2.5


def test_steps_that_are_too_short_for_a_slow_reference_are_refused_with_their_length(tmp_path, monkeypatch):
    make, rng = benchmarks.calibrate.PanelFlaws, np.random.default_rng(1)
    monkeypatch.setattr(benchmarks.calibrate, "PanelFlaws", lambda **flaws: make(**{**flaws, "period_s": 5.0}))
    node = replace(draw_node(rng, "pdu", 1), fans="fixed")
    run, _, _ = record_staircase(tmp_path, rng, node, "pdu", repeats=1, step_s=40.0)
    with open_run(run) as opened, pytest.raises(ConfigError, match=r"--step \d+s") as refused:
        recorded_steps.read_steps(opened, recorded_steps.FitOptions("pdu", ("gpu:0",)))
    assert refused.value.code == "config.no-steps"


def test_steps_are_long_enough_for_the_reference():
    assert choose_step_s(0.1, has_command=False) == choose_step_s(1.0, has_command=False) == 40.0
    assert choose_step_s(0.1, has_command=True) == 15.0
    # 10 updates count, beside those in which the steps before and after are shown.
    assert choose_step_s(5.0, has_command=False) == 90.0


def test_fans_that_change_are_not_fixed(tmp_path):
    rng = np.random.default_rng(3)
    node = replace(draw_node(rng, "analyzer", 1), fans="measured")
    run, _, _ = record_staircase(tmp_path, rng, node, "analyzer", repeats=1, step_s=15.0)
    words = ("--reference", "analyzer", "--from", run.name, "--runs", tmp_path, "--fixed-fans", "--json")
    assert json.loads(call("calibrate", *words, code=2).stdout)["error"]["code"] == "config.fans-change"


def record_zero(runs, node, *, seconds=60.0, more_w=0.0, faster=1.0):
    rng = np.random.default_rng(12)
    powers = make_powers(rng, node, np.zeros((2, round(seconds / GRID_S))), 25.0, has_gpus=False)
    wall = powers.wall + more_w * (powers.t > seconds / 2)
    return record_run(
        runs, rng, node, replace(powers, wall=wall, fans=faster * powers.fans), "analyzer", has_gpus=False
    )


def add_gpus(zero):
    event = {"t": 0, "event": "devices", "gpus": [{"uuid": "GPU-1", "driver": "1"}]}
    with next(zero.glob("*/events.run.jsonl")).open("a") as file:
        file.write(json.dumps(event) + "\n")


def leave_out_nvml(zero):
    meta = json.loads((zero / "run.json").read_text())
    (zero / "run.json").write_text(json.dumps({**meta, "options": {"meters": ["rapl", "analyzer"]}}))


def test_a_zero_run_that_is_not_of_the_idle_node_without_the_devices_is_refused(runs, staircase, node):
    has_gpus, is_blind = record_zero(runs, node), record_zero(runs, node)
    add_gpus(has_gpus)
    leave_out_nvml(is_blind)
    cases = {
        staircase[0]: "it still has gpu:0, gpu:1",
        has_gpus: "it still has gpu:1",
        is_blind: "it was recorded without nvml",
        record_zero(runs, node, more_w=40.0): "its power changed by 4",
        record_zero(runs, node, seconds=30.0): "it lasts 19 s",
        record_zero(runs, node, faster=1.1): "its fans ran 10% faster",
    }
    supply = f"{node.supply_class}:{node.rated_w:.0f}"
    words = ("--reference", "analyzer", "--from", staircase[0].name, "--runs", runs, "--supply", supply, "--json")
    for zero, why in cases.items():
        error = json.loads(call("calibrate", *words, "--zero", zero.name, code=2).stdout)["error"]
        assert (error["code"], error["why"][: len(why)]) == ("config.zero-run", why)


def test_fans_of_a_zero_run_count_by_their_speed():
    class Empty:
        span = SimpleNamespace(start_ns=0, end_ns=1)

        def __init__(self, cubes):
            self.run = SimpleNamespace(path=SimpleNamespace(name="z"))
            self.read_fan_cubes = lambda _: cubes

    changing = recorded_steps._Fans(np.array([1.0, 8.0]))
    assert changing.add_zero(Empty(np.array([4.0]))).share.tolist() == [0.125, 1.0, 0.5]
    with pytest.raises(ConfigError, match="was not read"):
        changing.add_zero(Empty(None))
    unread = recorded_steps._Fans(None)
    assert (unread.add_zero(Empty(None)), unread.kind) == (unread, "unknown")


def test_a_calibration_counts_for_its_own_node_in_a_run_of_two_machines_of_one_name(tmp_path):
    sources = []
    for boot, gain in (("b", 0.9), ("c", 1.1)):
        uuid = f"GPU-{boot}"
        source = make_node(tmp_path / boot, boot=boot, stream=gpu(0, device=uuid), columns=(np.full(T.size, 300.0),))
        row = {"meter": "rapl", "scope": "gpu:0", "device": uuid, "model": "H100", "driver": "", "gain": gain,
               "offset_w": 0.0, "low_w": 70.0, "high_w": 700.0, "cold_c": None, "hot_c": None, "bend_w": 0.0,
               "heat_per_k": 0.0, "factors": [[0.005, 0.0]]}  # fmt: skip
        event = {"t": 0, "event": "calibration", "id": boot, "utc_s": 1.7e9, "reference": {"text": "x"},
                 "calibrated_on": "node1", "devices": [row]}  # fmt: skip
        (source / "node1" / "events.run.jsonl").write_text(json.dumps(event) + "\n")
        sources.append(source)
    with open_run(join_runs(tmp_path / "runs", sources)) as opened:
        found = analyse_run(opened)
    energies = {s.host: (round(s.energy.value), s.reading.accuracy) for s in found.scopes}
    assert energies == {"node1": (3240, "calibrated"), "node1-2": (3960, "calibrated")}


@every_row("text, scopes", [("gpu:0-2", ["gpu:0", "gpu:1", "gpu:2"]), ("gpu:1,node.dc", ["gpu:1", "node.dc"])])
def test_devices_are_named_by_scope(text, scopes):
    assert parse_devices(text) == scopes


def test_supplies_are_named_by_class_or_by_a_test_report():
    titanium, report = parse_supply("Titanium:12000"), parse_supply("94.5,96.2,94.8:3000W")
    assert titanium.rated_w == 12000
    assert titanium.efficiency[0] - titanium.efficiency[1] == pytest.approx(0.96)
    assert report.low_drop[0] == pytest.approx(0.017)
    assert report.efficiency[1] < titanium.efficiency[1]
    assert guess_supply(600.0).rated_w == 1000.0
    for wrong in ("titanium", "titanium:0", "94,96:100", "10,20,30:100", "tin:100"):
        with pytest.raises(ConfigError):
            parse_supply(wrong)


def test_steps_load_every_device_at_every_level_and_idle_between():
    one, eight = plan_steps(1, 3, 1), plan_steps(8, 3, 1)
    assert one[::2] == ((0.0,),) * 13
    assert sorted(level for (level,) in one[1::2]) == sorted([0.25, 0.5, 0.75, 1.0] * 3)
    assert eight[0] == eight[-1] == (0.0,) * 8
    for column in zip(*eight, strict=True):
        assert [column.count(level) for level in (0.25, 0.5, 0.75, 1.0)] == [3] * 4
    assert plan_steps(8, 3, 1) == eight != plan_steps(8, 3, 2)


def test_a_check_has_enough_steps_for_its_fit_and_is_shorter_than_a_staircase():
    # By the message `too-few-steps` of fits of drawn nodes: 10, 17 and 23 are needed for 1, 4 and 8 GPUs.
    for count, needed in ((1, 10), (4, 17), (8, 23)):
        steps = plan_check(count, 1, 1)
        assert len(steps) >= needed
        assert len(steps) * choose_step_s(0.1, has_command=False, is_check=True) < 0.65 * 40 * len(
            plan_steps(count, 3, 1)
        )


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 8])
def test_a_check_of_a_good_node_is_fitted(tmp_path, monkeypatch, count):
    monkeypatch.setattr(benchmarks.calibrate, "plan_steps", plan_check)
    rng = np.random.default_rng(4)
    node = replace(draw_node(rng, "analyzer", count), fans="fixed")
    run, _, _ = record_staircase(tmp_path, rng, node, "analyzer", step_s=30.0)
    supply = parse_supply(f"{node.supply_class}:{node.rated_w:.0f}")
    scopes = tuple(f"gpu:{k}" for k in range(count))
    options = recorded_steps.FitOptions("analyzer", scopes, supply, has_fixed_fans=True, accept_far=True)
    with open_run(run) as opened:
        assert max(one.own_u_w / one.high_w for one in fit_run(opened, options).fit.devices) < 0.005


def show_two_gpus(monkeypatch):
    found = NodeGpus(nvidia=[SimpleNamespace(index=0), SimpleNamespace(index=1)])
    monkeypatch.setattr("joulelab.instruments.visible.read_node_gpus", lambda: found)


@every_row(
    "words, code",
    [
        (("--device", "gpu:7"), "config.unknown-device"),
        (("--device", "gpu:0-2", "--command", "load {gpu} {level}"), "config.unknown-device"),
        (("--command", "load {gpu}", "--no-caps"), "config.no-levels"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(monkeypatch, words, code):
    show_two_gpus(monkeypatch)
    done = call("calibrate", "--reference", "lab", *words, "--step", "10s", "--dry-run", "--json", code=2)
    assert json.loads(done.stdout)["error"]["code"] == code


def test_a_check_has_as_many_steps_as_are_given(monkeypatch):
    show_two_gpus(monkeypatch)
    words = ("--reference", "lab", "--command", "x {level}", "--step", "10s", "--dry-run", "--json", "--check")
    short, long = (json.loads(call("calibrate", *words, *more).stdout) for more in ((), ("--repeat", "5")))
    assert len(long["levels"]) > len(short["levels"])


def test_the_plan_is_shown_with_its_time(monkeypatch):
    show_two_gpus(monkeypatch)
    words = ("--reference", "lab", "--device", "gpu:0-1", "--command", "load {gpu} {level}", "--repeat", "1")
    text = call("calibrate", *words, "--step", "10s", "--dry-run").output
    assert re.match(r"11 steps of 10 s, 2 min in all; levels by the given command.\n +0  gpu:0 +0%  gpu:1 +0%", text)
    plan = json.loads(call("calibrate", *words, "--step", "10s", "--dry-run", "--json").stdout)
    assert (plan["steps"], plan["duration_s"]) == (11, 110.0)
    short = json.loads(call("calibrate", *words, "--step", "10s", "--dry-run", "--check", "--json").stdout)
    assert {level for row in short["levels"] for level in row} == {0.0, 0.5, 1.0}
    more = (*words[:-1], "5", "--step", "10s", "--dry-run", "--check", "--json")
    assert json.loads(call("calibrate", *more).stdout)["steps"] == 25 > short["steps"]
    for more, code in ((("--dry-run",), "config.no-reference"), (("--device", "node.dc"), "config.no-load")):
        done = call("calibrate", *words, *more, "--json", code=2)
        assert json.loads(done.stdout)["error"]["code"] == code


def test_a_plan_survives_the_way_to_its_process():
    plan = StaircasePlan(("gpu:0",), ((0.0,), (0.5,)), 10.0, {"gpu:0": (200.0, 700.0)}, ("x", "{gpu}", "{level}"))
    assert StaircasePlan.from_json(plan.to_json()) == plan
    assert make_load_words(plan, "gpu:3", 0.5) == ["x", "3", "0.5"]
    with pytest.raises(ConfigError):
        StaircasePlan.from_json("{}")
