"""From a run folder to a result: live, killed, closed; phases, work, load, gaps, uncertain intervals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.analysis.folders import NVML, Folder, counter, gpu
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import NS, ns
from tests.codes import raises_code

from joulelab.analysis import analyse as module
from joulelab.analysis.analyse import add_span_terms, analyse_phase, analyse_run, list_gaps, read_edge_offsets
from joulelab.analysis.result import Gap
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.report.messages import word_check
from joulelab.report.result_json import describe_result
from joulelab.store.imported import ImportedMeter, RunImport, import_run
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


# States.


def test_a_closed_run_is_measured_over_the_workloads_interval(folder):
    result = analyse_run(node(folder).close(START, END).open())
    assert (result.state, result.outcome, result.exit_code) == ("closed", "exit", 0)
    assert result.duration_s == pytest.approx(10.0)
    assert result.group("gpu").energy.value == pytest.approx(8000.0, rel=0.005)
    assert result.start_utc == "2023-11-14T22:13:25.000+00:00"
    assert result.run == folder.path.name
    assert result.command == ["python", "train.py"]


def test_a_killed_run_goes_to_the_last_reading_of_any_stream(folder):
    """The first GPU was lost early: it does not end the run."""
    lost = T < 8
    folder.add("nvml", gpu(0), T[lost], *(c[lost] for c in busy(50.0, 400.0)))
    folder.add("nvml", gpu(1), T, *busy(50.0, 400.0))
    folder.event(START, "workload", pid=77, start_ns=ns(START))
    result = analyse_run(folder.open())
    assert result.state == result.outcome == "killed"
    assert (result.start_ns, result.duration_s) == (ns(START), pytest.approx(14.9, abs=0.01))
    assert [c.code for c in result.checks if c.name == "ending"] == ["ending.killed"]
    assert result.exit_code is None
    lost_gpu, whole_gpu = result.scopes
    assert lost_gpu.reading.coverage < 0.4
    assert whole_gpu.reading.coverage == 1.0


def test_a_live_run_is_shown_so_far(tmp_path):
    folder = node(Folder(tmp_path, live=True), gpus=1)
    result = analyse_run(folder.open())
    assert result.state == "live"
    assert result.start_ns == ns(0.0), "nothing says when the workload began but the start of the record"
    assert result.duration_s == pytest.approx(19.9, abs=0.01)
    assert [(c.code, c.status) for c in result.checks if c.name == "ending"] == [("ending.live", "note")]


def test_a_run_whose_end_is_known_by_events_only(folder):
    node(folder, gpus=1)
    folder.event(START, "workload", start_ns=ns(START)).event(END + 0.2, "workload-end", end_ns=ns(END))
    result = analyse_run(folder.open())
    assert (result.start_ns, result.end_ns) == (ns(START), ns(END))


def test_a_killed_run_ends_when_it_was_last_seen_alive(folder):
    """The recorder goes on until it notices: later readings and events are no proof."""
    node(folder, gpus=1).event(START, "workload").event(21.9, "clock")
    folder.event(22.0, "stop", reason="owner-ended", alive_ns=ns(15.05))
    assert analyse_run(folder.open()).end_ns == ns(15.05)


def test_an_older_killed_run_ends_with_its_last_reading(folder):
    node(folder, gpus=1).event(START, "workload").event(21.9, "clock").event(22.0, "stop", reason="owner-ended")
    assert analyse_run(folder.open()).end_ns == ns(19.9) + 10_000


def test_an_older_killed_run_without_readings_ends_with_its_last_event_before_the_stop(folder):
    folder.event(START, "workload", start_ns=ns(START)).event(21.9, "clock").event(22.0, "stop", reason="owner-ended")
    assert analyse_run(folder.open()).end_ns == ns(21.9)


def test_readings_after_a_stop_are_those_of_another_recorder(folder):
    node(folder, gpus=1).event(START, "workload").event(10.0, "stop", reason="owner-closed", alive_ns=ns(9.0))
    assert analyse_run(folder.open()).end_ns == ns(19.9) + 10_000


def test_an_event_after_the_last_reading_ends_a_killed_run_whose_recorder_was_killed_too(folder):
    node(folder, gpus=1).event(START, "workload").event(22.0, "clock")
    assert analyse_run(folder.open()).end_ns == ns(22.0)


def test_a_run_without_anything_says_so(folder):
    result = analyse_run(folder.close(START, END).open())
    assert result.energy is None
    assert result.groups == result.scopes == ()
    assert result.per_work() == {}
    assert [c.code for c in result.checks] == ["power-meter"]
    bare = Folder(folder.path.parent, started={"utc_ns": 1})  # a start without a monotonic stamp
    assert json.loads((bare.path / "run.json").read_text())["started"] == {"utc_ns": 1}


def test_a_sealed_run_gives_the_same_numbers(folder):
    node(folder, ac=1400.0).close(START, END)
    before = analyse_run(folder.open()).to_json()
    seal_run(folder.open())
    assert not list(folder.path.glob("*/*.journal"))
    assert analyse_run(folder.open()).to_json() == before


# Readings and statistics.


def test_other_channels_of_a_scope_are_kept_beside_the_best(folder):
    node(folder, gpus=1)
    (found, *_) = analyse_run(folder.close(START, END).open()).scopes
    assert (found.reading.meter, found.reading.channel, found.reading.kind) == ("nvml", "energy_j", "counter")
    assert (found.reading.accuracy, found.reading.reference) == ("assumed", "test")
    assert found.reading.readings == 100
    (other,) = found.others
    assert other.channel == "power_instant_w"
    assert other.energy.value == pytest.approx(4000.0, rel=0.01)
    assert found.statistics.median == 400.0
    assert found.statistics.maximum == 400.0
    assert found.mean_w.value == pytest.approx(400.0, rel=0.005)
    assert (found.device, found.model) == ("", "H100")


def test_statistics_of_a_counter_alone_come_from_its_rises(folder):
    folder.add("rapl", counter("cpu:0"), T, busy(30.0, 100.0)[0])
    found = analyse_run(folder.close(START, END).open()).scopes[0].statistics
    assert found.median == pytest.approx(100, rel=0.01)
    assert found.window_s == pytest.approx(0.1)


def test_the_kernels_account_of_the_workload_is_part_of_the_load(folder):
    folder.event(9.0, "workload-end", end_ns=END, user_s=1.5, system_s=0.5, peak_memory_b=1e6)
    load = analyse_run(folder.close(START, END).open()).load
    assert (load["workload.user_s"], load["workload.system_s"]) == (1.5, 0.5)


# Phases and work.


def begin(t, k, name, parent=None, **more):
    line = {"t": ns(t), "mark": "begin", "id": f"9-{k}", "name": name, "n": None, "labels": {}, "parent": parent}
    return line | {"thread": 1, "rank": 0} | more


def end(t, k):
    return {"t": ns(t), "mark": "end", "id": f"9-{k}"}


def work(t, amounts, phase=None, at=(), rank=0):
    line = {"t": ns(t), "mark": "work", "from": ns(t), "phase": phase, "amounts": amounts, "count": 1, "rank": rank}
    return line | {"at": [ns(x) for x in at]}


def test_phases_have_their_energy_and_work_and_add_up(folder):
    node(folder, gpus=2, ac=1400.0)
    folder.marks(
        "9-1",
        begin(5.0, 1, "train"),
        begin(6.0, 2, "epoch", "9-1", n=0),
        work(7.0, {"samples": 50.0}, "9-2"),
        end(9.0, 2),
        begin(9.0, 3, "epoch", "9-1", n=1),
        work(10.0, {"samples": 30.0}, "9-3"),
        end(12.0, 3),
        end(14.0, 1),
        begin(14.5, 4, "predict"),
    )
    result = analyse_run(folder.close(START, END).open())
    shape = [(p.title, p.depth, p.start_s, p.duration_s, p.open_end) for p in result.phases]
    assert shape == [
        ("train", 0, 0.0, pytest.approx(9.0), False),
        ("epoch 0", 1, pytest.approx(1.0), pytest.approx(3.0), False),
        ("epoch 1", 1, pytest.approx(4.0), pytest.approx(3.0), False),
        ("predict", 0, pytest.approx(9.5), pytest.approx(0.5), True),
    ]
    train, first, second, predict = result.phases
    assert train.energy["gpu"].value == pytest.approx(7200.0, rel=0.01)
    assert predict.energy["gpu"].value == pytest.approx(400.0, rel=0.05)
    both = first.energy["gpu"] + second.energy["gpu"]
    assert both.value == pytest.approx(4800.0, rel=0.01)
    assert both.budget()["edge"] < math.hypot(
        first.energy["gpu"].budget()["edge"], second.energy["gpu"].budget()["edge"]
    )
    assert (train.work, first.work) == ({"samples": 80.0}, {"samples": 50.0})
    assert result.work == {"samples": 80.0}
    assert result.per_work()["samples"].value == pytest.approx(14000 / 80, rel=0.01)
    assert set(first.energy) == {"gpu", "cpu", "core", "dram", "node.ac", "measured"}


def test_phases_outside_of_the_interval_are_clipped(folder):
    node(folder, gpus=1).marks("9-1", begin(3.0, 1, "early"), end(7.0, 1))
    (phase,) = analyse_run(folder.close(START, END).open()).phases
    assert (phase.start_s, phase.duration_s) == (0.0, pytest.approx(2.0))


def test_of_very_many_phases_the_first_have_energies(folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_PHASE_ENERGIES", 2)
    marks = [m for k in range(4) for m in (begin(5.0 + k, k, "step", n=k), end(5.5 + k, k))]
    node(folder, gpus=1).marks("9-1", *marks)
    assert [bool(p.energy) for p in analyse_run(folder.close(START, END).open()).phases] == [True, True, False, False]


def test_one_stretch_is_analysed_as_a_run_of_its_own(folder):
    node(folder, gpus=1).marks("9-1", work(6.0, {"x": 1.0}), work(8.0, {"x": 2.0}), work(8.6, {"x": 4.0}))
    folder.event(4.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    result = analyse_phase(folder.close(START, END).open(), ns(7.5), ns(8.5))
    assert result.duration_s == pytest.approx(1.0)
    assert result.group("gpu").energy.value == pytest.approx(400.0, rel=0.02)
    assert result.group("gpu").net.value == pytest.approx(350.0, rel=0.03)
    assert result.work == {"x": 2.0}, "not that of the next stretch"


def test_reported_steps_exclude_a_load_in_step_in_the_phase_they_are_of(folder):
    folder.add("nvml", gpu(0, seen=0.25), T, *busy(50.0, 400.0))
    times = np.arange(5.1, 10.0, 0.137)
    lines = [work(t[-1], {"x": 1.0}, at=t) for t in np.split(times[:35], 5)]
    folder.marks("9-1", begin(5.0, 1, "train"), *lines, end(10.0, 1), begin(10.0, 2, "predict"), end(15.0, 2))
    train, predict = analyse_run(folder.close(START, END).open()).phases
    assert "unseen" not in train.energy["gpu"].budget()
    assert predict.energy["gpu"].budget()["unseen"] > 500


def test_of_very_many_steps_stretches_are_looked_at(folder, monkeypatch):
    """Each stretch of them is out of step; that holes lie between them does not matter."""
    monkeypatch.setattr(module, "MOST_STEP_STAMPS", 200)
    monkeypatch.setattr(module, "STEP_STRETCH", 96)
    folder.add("nvml", gpu(0, seen=0.25), T, *busy(50.0, 400.0))
    folder.marks("9-1", *(work(t, {"x": 1.0}, at=[t]) for t in np.arange(5.1, 14.9, 0.0137)))
    (found,) = analyse_run(folder.close(START, END).open()).scopes
    assert "unseen" not in found.energy.budget()


# Load, what is missing, gaps.

MACHINE = Stream(
    "machine",
    "machine",
    "host",
    1.0,
    (Spec("busy", "CPU load", "1"), Spec("disk_read_b", "disk", "B", "counter"), Spec("odd", "x", "1")),
)


TREE = Stream("tree", "tree", "workload", 1.0, (Spec("cpu_s", "CPU time", "s", "counter"), Spec("memory_b", "m", "B")))


def test_load_is_that_of_the_interval(folder):
    t = np.arange(0.5, 20, 1.0)
    nothing = np.full(t.size, np.nan)
    folder.add("host", MACHINE, t, np.where((t > 5) & (t < 15), 0.8, 0.1), 1e9 + 100 * t, nothing)
    ran = (t > 5) & (t < 16)
    folder.add("host", TREE, t[ran], 3.0 * np.clip(t[ran] - 5, 0, 10), np.full(ran.sum(), 7.0))
    load = analyse_run(folder.close(START, END).open()).load
    assert load["host.busy.max"] == 0.8
    assert load["host.busy.mean"] == pytest.approx(0.8, abs=0.15)
    assert load["host.disk_read_b"] == pytest.approx(1000, abs=110)
    assert load["workload.cpu_s"] == pytest.approx(30.0, abs=0.1), "it began at nothing"
    assert load["workload.memory_b.max"] == 7.0
    assert not any("odd" in k for k in load)


def test_one_reading_of_a_counter_since_boot_is_no_rise(folder):
    folder.add("host", MACHINE, [6.0], [0.5], [1e12], [1.0])
    folder.add("host", TREE, [6.0], [0.7], [5.0])
    load = analyse_run(folder.close(START, END).open()).load
    assert "host.disk_read_b" not in load
    assert load["workload.cpu_s"] == pytest.approx(0.7)
    assert load["host.odd.mean"] == 1.0


def test_what_is_missing_is_listed_in_meters_that_work_too(folder):
    folder.event(0.1, "meter", meter="rapl", status="denied", what="may not", why="root only", next="chmod")
    part = {"scope": "gpu:3", "what": "it gives no power", "why": "old driver", "next": ""}
    folder.event(0.2, "meter", meter="nvml", status="open", missing=[part])
    missing = analyse_run(folder.close(START, END).open()).missing
    assert missing == (
        {"meter": "rapl", "status": "denied", "code": "denied", "what": "may not", "why": "root only", "next": "chmod"},
        {
            "meter": "nvml",
            "status": "missing",
            "code": "meter.part",
            "what": "gpu:3: it gives no power",
            "why": "old driver",
            "next": "",
        },
    )


@pytest.mark.parametrize(
    ("kind", "values", "key"),
    [
        ("idle", {"from": "x", "to": []}, "from"),
        ("idle", {"from": 1}, "to"),
        ("meter", {"missing": [3], "meter": "m"}, "missing"),
        ("cap-set", {"asked": 1, "requested": 1, "found": "x"}, "found"),
        ("tree", {"pids": ["x"]}, "pids"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_and_is_no_defect(folder, monkeypatch, kind, values, key):
    folder.event(0.1, kind, **values)
    monkeypatch.setattr("joulelab.analysis.analyse.check_run", lambda _: (None).nothing)
    with raises_code("store.unusable") as caught:
        analyse_run(folder.close(START, END).open())
    assert f"events.run.jsonl, t {ns(0.1)}: {key} is " in caught.value.why


@pytest.mark.parametrize("error", [AttributeError("x"), TypeError("x"), ZeroDivisionError("x")])
def test_a_defect_is_not_called_bad_data(folder, monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr("joulelab.analysis.analyse.check_run", fail)
    with raises_code("defect") as caught:
        analyse_run(folder.close(START, END).open())
    assert caught.value.where.startswith("analysis/analyse.py:")


def test_all_mistakes_of_an_entry_are_kept_and_only_the_last_state_of_a_meter(folder):
    for key in ("unknown-key", "missing-key"):
        folder.event(0.1, "meter", meter="pdu", status="failed", what=key, code=f"config.{key}")
    tries = [{"t": 1, "event": "meter", "meter": "bmc", "status": "failed", "what": w, "code": w} for w in "ab"]
    (folder.path / "node1" / "events.0.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in tries))
    missing = analyse_run(folder.close(START, END).open()).missing
    assert [(m["meter"], m["code"]) for m in missing] == [
        ("bmc", "b"),
        ("pdu", "config.unknown-key"),
        ("pdu", "config.missing-key"),
    ]


def test_gaps_of_the_interval_are_kept(folder):
    for second, stream in ((1.0, "a"), (4.0, "b"), (16.0, "c")):
        folder.event(second, "gap", meter="nvml", stream=stream, reason="lost", **{"from": ns(second)})
    folder.event(2.0, "gap-end", meter="nvml", stream="a", to=ns(2.0))
    assert [g.stream for g in analyse_run(folder.close(START, END).open()).gaps] == ["b"]


# JSON.


def test_a_result_is_plain_json_without_nan(folder):
    node(folder, ac=1400.0).event(4.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    folder.add("odd", replace(gpu(7, given=replace(NVML, source="unknown"))), T, *busy(50.0, 400.0))
    folder.marks("9-1", begin(6.0, 1, "train"), work(8.0, {"samples": 80.0, "odd": 0.0}), end(9.0, 1))
    with (folder.path / "node1" / "marks" / "10-1.jsonl").open("w") as file:
        file.write(json.dumps({"t": ns(8.0), "mark": "work", "amounts": {"broken": math.nan}}) + "\n")
    result = analyse_run(folder.close(START, END).open())
    plain = result.to_json()
    text = json.dumps(plain, allow_nan=False)
    again = json.loads(text)
    assert again["schema"] == 1
    assert again["duration_s"] == pytest.approx(10.0)
    assert again["energy"]["expanded"] is not None
    assert again["work"]["broken"] is None
    assert again["rates"] == {"samples": pytest.approx(8.0), "odd": 0.0, "broken": None}
    assert set(again["per_work"]) == {"samples"}
    unknown = next(s for s in again["scopes"] if s["scope"] == "gpu:7")
    assert unknown["reading"]["energy"]["expanded"] is None
    assert unknown["reading"]["energy"]["expanded_if_seen"] is None
    assert again["phases"][0]["energy"]["gpu"]["value"] == pytest.approx(3600.0, rel=0.01)
    assert again["scopes"][0]["statistics"]["median"] == 400.0
    assert result.group("nothing") is None


def test_a_run_of_no_length_has_no_rates(folder):
    node(folder, gpus=1).marks("9-1", work(5.0, {"samples": 1.0}))
    result = analyse_run(folder.close(START, START).open())
    assert result.duration_s == 0.0
    assert result.to_json()["rates"] == {}
    json.dumps(result.to_json(), allow_nan=False)


def test_times_are_utc_by_the_first_clock_pair(folder):
    assert analyse_run(folder.close(START, END).open()).start_utc.startswith("2023-11-14T22:13:25.000")
    meta = json.loads((folder.path / "run.json").read_text())
    (folder.path / "run.json").write_text(json.dumps(meta | {"started": {"mono_ns": 5 * NS}}))
    assert analyse_run(folder.open()).start_utc == ""


def event(t, kind, stream="gpu:0.power", meter="nvml", **more):
    return {"t": t, "event": kind, "meter": meter, "stream": stream, **more}


def test_a_gap_lasts_from_the_last_good_reading_to_the_next():
    events = [event(30, "gap", reason="lost", **{"from": 20}), event(90, "gap-end", to=95)]
    assert list_gaps(events) == [Gap("nvml", "gpu:0.power", 20, 95, "lost")]


def test_the_first_reason_of_a_gap_stays():
    events = [event(30, "gap", reason="lost"), event(40, "gap", reason="denied"), event(90, "gap-end")]
    assert list_gaps(events) == [Gap("nvml", "gpu:0.power", 30, 90, "lost")]


def test_a_gap_that_nobody_ended_lasts():
    assert list_gaps([event(30, "gap")]) == [Gap("nvml", "gpu:0.power", 30, None, "")]


def test_an_end_without_a_beginning_is_none():
    assert list_gaps([event(30, "gap-end"), {"t": 5, "event": "clock"}]) == []


def test_streams_and_hosts_are_kept_apart_and_in_order():
    events = [
        event(30, "gap", host="a", reason="a"),
        event(10, "gap", host="b", reason="b"),
        event(20, "gap", stream="gpu:1.power", host="a", reason="c"),
        event(50, "gap-end", host="b"),
        event(60, "gap-end", host="a"),
    ]
    assert [(g.from_ns, g.to_ns, g.reason) for g in list_gaps(events)] == [
        (10, 50, "b"),
        (20, None, "c"),
        (30, 60, "a"),
    ]


def test_events_tell_how_far_the_ends_may_be_off() -> None:
    told = {"t": 1, "event": "interval-unsure", "begin_s": 7.5, "end_s": 0.25}
    assert read_edge_offsets([{"t": 0, "event": "clock"}, told]) == (7_500_000_000, 250_000_000)
    assert read_edge_offsets([{"t": 0, "event": "clock"}]) == (0, 0)


def test_an_interval_that_is_not_known_is_a_check_of_the_run(tmp_path: Path) -> None:
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.01))
    doubts = [
        {"t": 1010 * NS, "event": "interval-doubt", "status": status, "what": f"job 7: {status}", "next": "ask"}
        for status in ("failed", "warning", "note", "strange")
    ]
    rows = [(t * NS, t * NS, (100.0,)) for t in range(1000, 1201)]
    streams = [Fetched(Stream("node.ac", "power", "node.ac", 1.0, (spec,)), rows, "n1", doubts)]
    with open_run(
        import_run(tmp_path, RunImport([ImportedMeter("bmc", streams)], 1010 * NS, 1190 * NS, {}, ["x"]))
    ) as run:
        result = analyse_run(run)
    found = [c for c in result.checks if c.name == "interval"]
    assert [c.status for c in found] == ["failed", "warning", "note", "warning"]
    assert [c.texts for c in found[:2]] == [{"what": f"job 7: {s}", "next": "ask"} for s in ("failed", "warning")]
    worded = word_check(found[2])
    assert worded.next == "ask"
    plain = {"name": "interval", "code": "interval", "status": "note", "message": worded.text, "next": "ask"}
    plain |= {"scope": "", "numbers": {}, "texts": {"what": "job 7: note", "next": "ask"}}
    assert plain in describe_result(result)["checks"]


def test_an_end_is_worth_what_was_drawn_around_it() -> None:
    energy = Quantity(1000.0, {"gain:x": 3.0})
    assert add_span_terms(energy, lambda t, off: 1 / 0, 0, 10, (0, 0)) is energy
    # 100 W at the begin, 300 W at the end.
    watts = {0: 100.0, 10: 300.0}
    found = add_span_terms(energy, lambda t, off: watts[t] * off / math.sqrt(3), 0, 10, (2, 1))
    assert found.value == 1000.0
    assert found.terms == {
        "gain:x": 3.0,
        "interval:0": pytest.approx(-200 / math.sqrt(3)),
        "interval:10": pytest.approx(300 / math.sqrt(3)),
    }


def test_scopes_that_begin_together_add() -> None:
    one = add_span_terms(Quantity(1.0), lambda t, off: 5.0, 0, 9, (1, 1))
    two = add_span_terms(Quantity(2.0), lambda t, off: 7.0, 0, 9, (1, 1))
    assert (one + two).budget() == {"interval": pytest.approx(12 * math.sqrt(2))}
    assert (two - one).budget() == {"interval": pytest.approx(2 * math.sqrt(2))}


def test_the_cords_of_a_node_begin_together(tmp_path: Path) -> None:
    """Two outlets of 100 W and 200 W, the run known to 6 s at its begin and 3 s at its end."""
    streams = []
    for number, watts in ((1, 100.0), (2, 200.0)):
        spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.0, shared="pdu"))
        scope = f"outlet:p.{number}"
        stream = Stream(scope, "power", scope, 1.0, (spec,), "node.ac", sums="node.ac", parts=2)
        rows = [(t * NS, t * NS, (watts,)) for t in range(1000, 1201)]
        streams.append(Fetched(stream, rows, "n1"))
    what = RunImport([ImportedMeter("pdu", streams)], 1050 * NS, 1150 * NS, {}, ["x"], unsure_s=(6.0, 3.0))
    with open_run(import_run(tmp_path, what)) as run:
        result = analyse_run(run)
    node = next(s for s in result.scopes if s.scope == "node.ac")
    assert node.energy.value == pytest.approx(300 * 100)
    expected = 300 * math.hypot(6.0, 3.0) / math.sqrt(3)
    assert node.energy.budget()["interval"] == pytest.approx(expected, rel=1e-6)
    measured = next(g for g in result.groups if g.name == "measured")
    assert measured.energy.budget()["interval"] == pytest.approx(expected, rel=1e-6)
