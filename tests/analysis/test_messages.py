"""The words of checks: whom they are about, with the numbers of the check, and why."""

from __future__ import annotations

import numpy as np
import pytest
from tests.analysis.doubts import SECONDS, T, checks, only, steady
from tests.analysis.folders import Folder, counter, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.result import Check
from joulelab.core.spec import Accuracy


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("code", "name"), [("not-read", "not read"), ("cap.vanished", "cap"), ("idle-gpus", "idle GPUs"), ("late", "late")]
)
def test_a_check_has_a_name_in_words(code, name):
    assert Check(code, "note", "").name == name


def test_a_sentence_has_the_scope_and_the_numbers_of_its_check(folder):
    steady(folder, 330.0, seen=0.25).add("bmc", power("gpu:0", seen=0.25), T, np.full(T.size, 400.0))
    caps = [np.full(SECONDS.size, w) for w in (300.0, 400.0)]
    folder.add("nvml", state(0, "cap_enforced_w", "cap_requested_w"), SECONDS, *caps)
    folder.add("nvml", state(0, "throttle"), SECONDS, np.where(SECONDS > 10, 0x8, 0))
    folder.event(6.0, "process", scope="gpu:0", pids=[*range(80, 90)])
    folder.event(8.0, "disk", error="ENOSPC", dropped_rows=12).event(8.0, "clock-step", by_ns=-7_200_000_000_000)
    steady(folder, index=1, keep=T < 0.05)
    words = {
        "not-read": "gpu:1: fewer than two readings, so no sum holds it",
        "throttled": "gpu:0: held back by hardware slowdown in 50% of the readings",
        "cap": "gpu:0: 300 W is enforced, 400 W was requested",
        "cap-not-enforced": "gpu:0: 330 W on average above the cap of 300 W",
        "other-processes": "gpu:0: processes that are not the workload's were there (80, 81, 82, 83, 84)",
        "disk": "ENOSPC; rows lost: 12",
        "clock-stepped": "UTC was stepped by -7200.000 s; energies use monotonic time and are not affected",
        "in-step": "gpu:0: the sensors measure 25 % of the time, and another meter disagrees: "
        "the interval includes what they may have missed",
    }
    assert {code: only(folder, code).message for code in words} == words


def test_many_scopes_are_not_all_named(folder):
    for host in ("node1", "node2", "node3"):
        for scope in ("cpu:0", "cpu:1"):
            folder.add("rapl", counter(scope, given=Accuracy("unknown")), T, 100 * T, host=host)
    found = only(folder, "accuracy")
    assert found.message.startswith("node1/cpu:0, node1/cpu:1, node2/cpu:0 and 3 more: the accuracy is unknown")
    assert len(found.scope.split(", ")) == 6


def test_the_reason_of_a_gap_is_that_of_the_meter(folder):
    steady(folder, keep=(T < 8.05) | (T > 10.05))
    late = T[T > 12]
    folder.add("pdu", power("node.ac"), late, np.full(late.size, 900.0))
    folder.event(1.0, "meter", meter="pdu", status="failed", what="the port is closed")
    folder.event(12.0, "meter", meter="pdu", status="open", what="")
    found = {c.scope: c.message for c in checks(folder, "gaps")}
    assert found["gpu:0"].endswith("% of the time without readings (no readings)")
    assert found["node.ac"].endswith("(pdu opened late: the port is closed)")
    steady(other := Folder(folder.path.parent), keep=(T < 8.05) | (T > 10.05))
    for stream, reason in (("gpu:0.power", "GPU is lost"), ("gpu:0.power.other", "no"), ("gpu:10.power", "no")):
        other.event(8.1, "gap", meter="nvml", stream=stream, reason=reason, **{"from": 0})
    assert only(other, "gaps").message.endswith("(GPU is lost)")


@pytest.mark.parametrize(("count", "words"), [(0, "call joulelab.step()"), (5, "12 would do, 5 are known")])
def test_the_advice_says_what_steps_lack(folder, count, words):
    steady(folder, seen=0.25)
    if count:
        at = [ns(6 + 0.1 * k) for k in range(count)]
        line = {"t": at[-1], "mark": "work", "from": at[0], "phase": None, "amounts": {"steps": count}, "at": at}
        folder.marks("9-1", line)
    assert words in only(folder, "unseen").next
