"""What was found on an analyzer outlives a recorder that is killed, and is put back by the next one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
from tests.instruments.analyzer_bench import Bench, rows_of, told

from joulelab.core.clock import monotonic_ns
from joulelab.core.process_identity import read_start_ticks
from joulelab.instruments.analyzer.kept import Kept
from joulelab.twin.servers._scpi_readings import AnalyzerFlaws
from joulelab.twin.servers.analyzer import serve

ASKED = (
    ":INP:VOLT:RANG?;:INP:CURR:RANG?;:RATE?;:NUM:NORM:NUM?;:NUM:NORM:ITEM1?;:MEAS:AVER:STAT?;:INTEG:STAT?;"
    ":INTEG:MODE?;:STAT:FILT1?;:COMM:REM?;:COMM:HEAD?"
)


@pytest.fixture
def served(truth, tmp_path):
    with contextlib.ExitStack() as stack:
        yield Bench(stack, stack.enter_context(serve(truth, tmp_path, AnalyzerFlaws(period_s=0.25, window_s=0.25), 0)))


def kept_files(state_home):
    return sorted(state_home.glob("joulelab/*"))


@pytest.mark.system
def test_what_a_killed_process_found_is_put_back_by_the_next(truth, served, state_home):
    link = served.link()
    link.write(":COMM:HEAD OFF;:NUM:NORM:NUM 2;ITEM1 S,1;:MEAS:AVER:STAT ON;:INTEG:MODE CONT;:STAT:FILT1 BOTH")
    found = link.query(ASKED)
    entry = {k: v for k, v in served.served.entries["analyzer"].items() if k != "meter"}
    entry |= {"resource": served.served.facts["socket"], "current_a": 10, "voltage_v": 600.0, "timeout_s": 60.0}
    code = (
        "import json, sys; from joulelab.instruments import analyzer;"
        "meter = analyzer.open_meter(json.loads(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    words, pipe = [sys.executable, "-c", code, json.dumps(entry)], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout.readline() == "open\n"
        during = link.query(ASKED)
        assert ";STAR;" in during
        (path,) = kept_files(state_home)
        assert path.name.startswith("analyzer-")
        killed_ns = monotonic_ns()
        child.kill()
    assert link.query(ASKED) == during, "it is left as the killed process had set it"
    meter = served.open(current_a=5, voltage_v=300.0, period_s=0.1)  # other wishes: that integration is in the way
    assert rows_of(meter, 2)[-1]["energy_j"] < truth.energy("node.ac", killed_ns, monotonic_ns()), "from zero again"
    assert json.loads(path.read_text())["pid"] == os.getpid()
    meter.close()
    assert link.query(ASKED) == found
    assert kept_files(state_home) == []


@pytest.mark.system
def test_nothing_is_left_behind_and_two_meters_do_not_share(served, state_home):
    first = served.open()
    (path,) = kept_files(state_home)
    before = path.read_text()
    second = served.open()
    second.close()
    assert path.read_text() == before
    first.close()
    assert kept_files(state_home) == []


def test_what_a_living_process_keeps_is_not_touched(state_home):
    path = state_home / "joulelab" / "analyzer-C3.json"
    path.parent.mkdir()
    parent = os.getppid()
    data = {"pid": parent, "start_ticks": read_start_ticks(parent), "started": True, "found": {":RATE": "1"}}
    path.write_text(json.dumps(data))
    kept = Kept()
    kept.begin("C3")
    kept.found[":RATE"] = "5"
    kept.save()
    kept.clear()
    assert json.loads(path.read_text()) == data
    path.write_text(json.dumps(data | {"start_ticks": -1}))  # another process has its number now
    kept.begin("C3")
    assert (kept.found, kept.started, kept.integrates) == ({":RATE": "1"}, True, True)
    kept.clear()
    assert not path.exists()


def test_what_was_not_put_back_stays_for_the_same_process(state_home):
    kept = Kept()
    kept.begin("a/b c")
    kept.found[":RATE"] = "1"
    kept.save()
    kept.release()
    again = Kept()
    again.begin("a/b c")
    assert again.found == {":RATE": "1"}
    again.clear()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"found": {":RATE": "1;:INTEG:RES"}}', '{"found": {"RATE": "1"}}', "\u0000"]
)
def test_a_damaged_file_is_not_believed(state_home, text):
    path = state_home / "joulelab" / "analyzer-C3.json"
    path.parent.mkdir()
    path.write_text(text)
    kept = Kept()
    kept.begin("C3")
    assert kept.found == {}
    kept.clear()


@pytest.mark.system
def test_a_folder_that_cannot_be_written_is_told_and_nothing_more(served, state_home):
    (state_home / "joulelab").write_text("a file")
    meter = served.open()
    assert rows_of(meter, 1)[0]["power_w"] > 100
    assert "lost with this process" in told(meter)["not-kept"]["text"]
    meter.close()
