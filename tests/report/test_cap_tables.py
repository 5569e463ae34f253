"""What is shown of caps: devices and their holders, and what a run did."""

from __future__ import annotations

import re

import msgspec

from joulelab.analysis.device_checks import list_caps
from joulelab.analysis.result import CapResult
from joulelab.control.client import CapDevice, CapStatus
from joulelab.report.cap_tables import lay_out_cap_status
from joulelab.report.terminal import write_blocks

GPU = CapDevice("gpu:0", "GPU-0", "Quadro RTX 6000", "power", "W", 100, 260, 260, 170, 170)
CLOCKS = CapDevice("gpu:0", "GPU-0.clocks", "Quadro RTX 6000", "clocks", "Hz", 210e6, 2100e6, 2100e6, None, None)


def shown(status: CapStatus) -> str:
    return write_blocks(lay_out_cap_status(status), 80)


def test_every_device_with_its_range_and_holder():
    held = msgspec.structs.replace(GPU, holder="alice (pid 12, `train`)")
    text = shown(CapStatus([held, CLOCKS], [("gpu:1", "it takes no cap")]))
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    assert ["gpu:0", "170 W", "170 W", "260 W", "100 to 260 W", "Quadro RTX 6000"] in rows
    assert ["gpu:0 clocks", "-", "-", "2,100 MHz", "210 to 2,100 MHz"] in [row[:5] for row in rows]
    assert re.search(r"^gpu:0 .*alice \(pid 12, `train`\)$", text, re.MULTILINE)
    assert ["gpu:1", "it takes no cap"] in rows


def test_what_was_left_behind_names_the_command_that_puts_it_back():
    text = shown(CapStatus([msgspec.structs.replace(GPU, leftover={"found": 250})], []))
    assert "-> joulelab cap restore" in text
    damaged = shown(CapStatus([msgspec.structs.replace(GPU, leftover={"problem": "damaged"})], []))
    assert "damaged" in damaged
    assert "cap restore" not in damaged
    assert shown(CapStatus([], [])).count("\n") == 1


def test_a_journal_that_is_left_after_the_restore_is_no_cap():
    left = {"found": 170, "is_restored": True, "journal": "/state/GPU-0.json"}
    text = shown(CapStatus([msgspec.structs.replace(GPU, leftover=left)], []))
    assert "/state/GPU-0.json" in text
    assert "left behind" not in text
    assert "make its folder writable, then: joulelab cap restore" in text


def set_to(watts, t, **more):
    known = {"event": "cap-set", "host": "n", "device": "GPU-0", "scope": "gpu:0", "asked": watts, "found": 250.0}
    return {**known, "unit": "W", "t": t, **more}


def test_caps_of_a_run_are_told_once_with_their_end():
    events = [set_to(170.0, 1), {"event": "clock", "t": 2}, set_to(170.0, 3), set_to(200.0, 4, found=170.0)]
    events += [{"event": "cap-restored", "host": "n", "device": "GPU-0", "outcome": "restored", "t": 5}]
    events += [{"event": "cap-restored", "host": "n", "device": "GPU-9", "outcome": "restored", "t": 5}]
    assert list_caps(events) == (CapResult("n", "gpu:0", 200.0, 250.0, "W", 1, "restored"),)
