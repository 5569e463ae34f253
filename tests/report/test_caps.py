"""What is shown of caps: devices and their holders, and what a run did."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
from tests.report.test_agreement import result

from joulelab.analysis.caps import caps_of
from joulelab.analysis.result import CapResult
from joulelab.control.client import CapDevice, CapStatus
from joulelab.report.caps import cap_lines, print_caps
from joulelab.report.console import make_console

GPU = CapDevice("gpu:0", "GPU-0", "Quadro RTX 6000", "power", "W", 100, 260, 260, 170, 170)
CLOCKS = CapDevice("gpu:0", "GPU-0.clocks", "Quadro RTX 6000", "clocks", "Hz", 210e6, 2100e6, 2100e6, None, None)


def shown(status: CapStatus) -> str:
    file = io.StringIO()
    print_caps(make_console(file, 80), status)
    return file.getvalue()


def test_every_device_with_its_range_and_holder():
    held = msgspec.structs.replace(GPU, holder="alice (pid 12, `train`)")
    text = shown(CapStatus([held, CLOCKS], [("gpu:1", "it takes no cap")]))
    assert "gpu:0         170 W     170 W     260 W     100 to 260 W  Quadro RTX 6000" in text
    assert "gpu:0 clocks      -         -  2100 MHz  210 to 2100 MHz" in text
    assert "gpu:0    held by alice (pid 12, `train`)" in text
    assert "gpu:1    it takes no cap" in text


def test_what_was_left_behind_names_the_command_that_puts_it_back():
    text = shown(CapStatus([msgspec.structs.replace(GPU, leftover={"found": 250})], []))
    assert "-> joulelab cap restore" in text
    problem = {"problem": "the journal is damaged; set the cap by hand"}
    damaged = shown(CapStatus([msgspec.structs.replace(GPU, leftover=problem)], []))
    assert "the journal is damaged; set the cap by hand" in damaged
    assert "cap restore" not in damaged
    assert "there is nothing to cap here" in shown(CapStatus([], []))


def set_to(watts, t, **more):
    known = {"event": "cap-set", "host": "n", "device": "GPU-0", "scope": "gpu:0", "asked": watts, "found": 250.0}
    return {**known, "unit": "W", "t": t, **more}


def test_caps_of_a_run_are_told_once_with_their_end():
    events = [set_to(170.0, 1), {"event": "clock", "t": 2}, set_to(170.0, 3), set_to(200.0, 4, found=170.0)]
    events += [{"event": "cap-restored", "host": "n", "device": "GPU-0", "outcome": "restored", "t": 5}]
    events += [{"event": "cap-restored", "host": "n", "device": "GPU-9", "outcome": "restored", "t": 5}]
    assert caps_of(events) == (CapResult("n", "gpu:0", 200.0, 250.0, "W", 1, "restored"),)


def test_devices_with_equal_caps_share_a_line():
    caps = [CapResult("n", f"gpu:{n}", 170.0, 250.0, "W", 0, "restored") for n in range(3)]
    caps += [CapResult("n", "gpu:3", 200.0, 250.0, "W", 2, "left")]
    caps += [CapResult("n", "gpu:3", 1.2e9, None, "Hz", 0, "")]
    assert cap_lines(replace(result(), caps=tuple(caps))) == [
        ("caps", "gpu:0-2 capped at 170 W; 250 W before, put back"),
        ("caps", "gpu:3 capped at 200 W, the last of 3 tried; 250 W before, left, since somebody else had changed it"),
        ("caps", "gpu:3 clocks locked at 1200 MHz; free before, not put back yet"),
    ]
