"""The words of checks and of the notes of studies: whom they are about, with the numbers, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.doubts import SECONDS, T, checks, only, steady
from tests.analysis.folders import Folder, counter, power, state
from tests.analysis.studies import by_cap, cell, noted, sweep, trial
from tests.analysis.virtual import ns

from joulelab.analysis.cell_metrics import Cell, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.result import Check
from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy
from joulelab.report.messages import word_check, word_note


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("code", "name"), [("not-read", "not read"), ("cap.vanished", "cap"), ("idle-gpus", "idle GPUs"), ("late", "late")]
)
def test_a_check_has_a_name_in_words(code, name):
    assert Check(code, "note").name == name


def test_a_sentence_has_the_scope_and_the_numbers_of_its_check(folder):
    steady(folder, 330.0, seen=0.25).add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 400.0))
    caps = [np.full(SECONDS.size, w) for w in (300.0, 400.0)]
    folder.add("nvml", state(0, "cap_enforced_w", "cap_requested_w"), SECONDS, *caps)
    folder.add("nvml", state(0, "throttle"), SECONDS, np.where(SECONDS > 10, 0x8, 0))
    folder.event(6.0, "process", scope="gpu:0", pids=[*range(80, 90)])
    folder.event(8.0, "disk", error="ENOSPC", dropped_rows=12).event(8.0, "clock-step", by_ns=-7_200_000_000_000)
    steady(folder, index=1, keep=T < 0.05)
    words = {
        "not-read": "gpu:1: fewer than two readings by nvml, so totals do not include it",
        "throttled": "gpu:0: slowed down by the hardware in 50 % of the readings",
        "cap": "gpu:0: in 100 % of the readings a cap of 300 W is in force, but 400 W was requested",
        "cap-not-enforced": "gpu:0: used 330 W on average, more than its cap of 300 W",
        "other-processes": "gpu:0: also used by 10 other processes (PID 80, 81, 82, 83, 84)",
        "disk": "writing to the disk failed (ENOSPC); 12 readings lost",
        "clock-stepped": "the UTC clock was stepped by -2 h 00 min; energies use monotonic time and are not affected",
        "in-step": "gpu:0: the sensors measure 25 % of the time, and another meter disagrees; "
        "the uncertainty includes what the sensors may have missed",
    }
    assert {code: word_check(only(folder, code)).text for code in words} == words
    assert str(only(folder, "disk")) == f"disk: {words['disk']}"


def test_many_scopes_are_not_all_named(folder):
    for host in ("node1", "node2", "node3"):
        for scope in ("cpu:0", "cpu:1"):
            folder.add("rapl", counter(scope, given=Accuracy("unknown")), T, 100 * T, host=host)
    found = only(folder, "accuracy")
    assert word_check(found).text.startswith("cpu:0,1 of node1, node2, node3: the accuracy of the meter is unknown")
    assert len(found.scope.split(", ")) == 6


def test_the_reason_of_a_gap_is_that_of_the_meter(folder):
    steady(folder, keep=(T < 8.05) | (T > 10.05))
    late = T[T > 12]
    folder.add("pdu", power("node.ac"), late, np.full(late.size, 900.0))
    folder.event(1.0, "meter", meter="pdu", status="failed", what="the port is closed")
    folder.event(12.0, "meter", meter="pdu", status="open", what="")
    found = {c.scope: word_check(c).text for c in checks(folder, "gaps")}
    assert found["gpu:0"].endswith(" % of the time")
    assert found["node.ac"].endswith("; pdu opened late (the port is closed)")
    steady(other := Folder(folder.path.parent), keep=(T < 8.05) | (T > 10.05))
    for stream, reason in (("gpu:0.power", "GPU is lost"), ("gpu:0.power.other", "no"), ("gpu:10.power", "no")):
        other.event(8.1, "gap", meter="nvml", stream=stream, reason=reason, **{"from": 0})
    assert word_check(only(other, "gaps")).text.endswith("(GPU is lost)")


@pytest.mark.parametrize(("count", "words"), [(0, "Call joulelab.step()"), (5, "12 are enough, the run has 5")])
def test_the_advice_says_what_steps_lack(folder, count, words):
    steady(folder, seen=0.25)
    if count:
        at = [ns(6 + 0.1 * k) for k in range(count)]
        line = {"t": at[-1], "mark": "work", "from": at[0], "phase": None, "amounts": {"steps": count}, "at": at}
        folder.marks("9-1", line)
    assert words in word_check(only(folder, "unseen")).next


# Notes of studies.


def notes(cells, **more):
    found = summarise_cells(cells, **more)
    assert noted(found)  # each gives what its message needs
    return {note.code: word_note(note) for note in found.notes}


def test_notes_name_cells_with_their_knobs_and_of_many_only_some():
    cells = [replace(c, trials=()) if c.knobs["cap"] < 200 else c for c in sweep(gpus=(8,), caps=range(100, 261, 20))]
    named = "cap=100 W gpus=8; cap=120 W gpus=8; cap=140 W gpus=8; cap=160 W gpus=8 and 1 more"
    assert notes(cells)["cells-missing"] == f"No result for 5 of 9 cells: {named}."
    runs = [trial(1.0, 1.0)] * 2
    phases = [cell("a:fit", runs, phase="fit"), cell("a:eval", [], phase="eval")]
    assert notes(phases)["cells-missing"] == "No result for 1 of 2 cells: phase=eval."
    unused = "Phases are not compared with each other, so phase=fit in the reference has no effect."
    assert notes(phases, reference={"phase": "fit"})["reference-unused"] == unused


def test_notes_write_spreads_and_degrees_of_freedom_out():
    said = notes(sweep(caps=range(100, 260, 4), gpus=(8,), n=5))["pooled.all"]
    assert said.startswith("Spread between runs, pooled over all cells: energy 0.")
    assert said.count("(160") == 2
    both = [*by_cap({260.0: [(99.0, 9.9), (101.0, 10.1)], 200.0: [(90.0, 10.0)]})]
    assert notes(both)["one-run.unknown"].endswith("± 5.0 % is assumed. Repeat the runs to measure it.")


def test_notes_name_runs_that_are_odd_or_not_capped():
    odd = [replace(trial(v, 10.0), run=f"run-{v:g}") for v in (100.0, 100.5, 99.5, 100.2, 99.9, 180.0)]
    said = notes([cell("r", odd, node="here")])["odd-runs"]
    assert said.endswith("used: node=here (run-180). By chance alone about one cell in 50 has such a repeat.")
    uncapped = Check("cap-not-enforced", "failed", "gpu:0", {"mean_w": 201.0, "cap_w": 100.0})
    doubts = (uncapped, Check("too-short", "warning", "gpu:0"))
    bad = replace(trial(50.0, 10.0), doubts=doubts, uncapped=(uncapped,))
    said = notes([*by_cap({260.0: [(100.0, 10.0)] * 2}), cell("c100", [bad, bad], cap=100.0)])
    assert said["not-capped"].startswith("! The cap was not in force in 2 runs of cap=100 W (gpu:0: used 201 W on")
    assert said["warnings"] == "2 of 4 runs have warnings: too short (cap=100 W). See the column doubts in slots.csv."


def test_notes_say_by_which_work_runs_are_compared():
    cells = [
        Cell(f"b{b}", {"batch": b}, (replace(trial(1.0, 1.0), work={"steps": 20.0, "samples": s}),) * 2)
        for b, s in ((16, 320.0), (64, 1280.0))
    ]
    per = "Amounts of work differ: energy and time are compared per unit of samples, EDP per unit squared"
    other = 'To compare per steps: per = "steps" in a study file; sweep --write makes one.'
    assert notes(cells)["work.differs"] == f"{per}. Amounts of samples differ most. {other}"
    assert notes(cells, per=["samples"])["work.asked-for"] == f"{per}, as requested. {other}"
    assert notes(cells, per=["steps"])["work.whole"].endswith("whole runs are compared, although their samples differ.")


def test_a_reference_that_no_cell_is_lists_what_there_is():
    with pytest.raises(ConfigError, match="no cell has cap=170 W") as caught:
        summarise_cells(sweep(gpus=(2, 8), caps=(100, 180)), reference={"cap": 170.0})
    assert caught.value.next == "there are cap 100 W, 180 W; gpus 2, 8"


def test_a_goal_that_is_none_lists_the_known_ones():
    with pytest.raises(ConfigError, match="there is no goal 'watts'") as caught:
        Goal.parse("watts")
    assert (caught.value.next or "").startswith("known are energy, time, edp")
