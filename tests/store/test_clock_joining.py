"""Times of several hosts in one: by clock pairs, by questions and answers, and how far they may be off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.make import BOOT, STARTED, UTC_NS, close_run, gpus, make_run, ramp, write_rows
from tests.store.make import START_NS as START
from tests.store.test_run_reader import write_lines

from joulelab.core.clock import ClockPair
from joulelab.store.clock_joining import UNSYNCHRONISED_NS, choose_joint, join_by_answers, join_by_utc
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path

S = 10**9
OFF = 77_777 * S + 123  # how much later the first host booted
ERROR = 1_000_000


def pair(mono: int, utc: int, boot: str = "b", *, error: int | None = ERROR, width: int = 400) -> ClockPair:
    return ClockPair(mono, utc, width, error, boot)


def clock(mono: int, utc: int, boot: str = "other", **more: Any) -> dict[str, Any]:
    line = {"mono_ns": mono, "utc_ns": utc, "width_ns": 400, "kernel_error_ns": ERROR, "boot_id": boot}
    return {"t": mono, "event": "clock", **line, **more}


def moved(joint: Any, *times: int) -> list[int]:
    found: list[int] = joint.moved(np.array(times, np.int64)).tolist()
    return found


def test_two_hosts_meet_in_utc() -> None:
    joint = join_by_utc([pair(START, UTC_NS)], [pair(START + OFF, UTC_NS)])
    assert joint is not None
    assert moved(joint, START + OFF, START + OFF - 5, START + OFF + 10**12) == [START, START - 5, START + 10**12]
    assert joint.error_ns == 2 * (ERROR + 201)


@given(
    st.lists(st.integers(0, 3600 * S), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(0, 3600 * S), min_size=1, max_size=6, unique=True),
    st.floats(-9e-5, 9e-5),
    st.floats(-9e-5, 9e-5),
    st.lists(st.integers(0, 3600 * S), min_size=2, max_size=9),
)
def test_clocks_that_drift_evenly_are_joined_to_the_nanosecond_between_pairs(
    first: list[int], other: list[int], fast: float, slow: float, times: list[int]
) -> None:
    """Let both clocks drift against UTC; between pairs of both nothing is lost, beyond them no more than the drift."""

    def at(t: int, drift: float) -> int:
        return t + round(t * drift)

    near = [pair(START + at(t, fast), UTC_NS + t) for t in sorted(first)]
    far = [pair(START + OFF + at(t, slow), UTC_NS + t) for t in sorted(other)]
    joint = join_by_utc(near, far)
    assert joint is not None
    low, high = max(min(first), min(other)), min(max(first), max(other))
    found = moved(joint, *(START + OFF + at(t, slow) for t in sorted(times)))
    assert found == sorted(found)
    if (
        max(
            np.abs(np.diff([t * fast for t in sorted(first)])).max(initial=0),
            np.abs(np.diff([t * slow for t in sorted(other)])).max(initial=0),
        )
        < 4e7
    ):
        for t, there in zip(sorted(times), found, strict=True):
            beyond = max(low - t, t - high, 0) if low <= high else 3600 * S
            assert abs(there - START - at(t, fast)) <= 4 + beyond * (abs(fast) + abs(slow)) * 1.01


def test_the_error_has_all_its_parts() -> None:
    near, far = [pair(START, UTC_NS)], [pair(START + OFF, UTC_NS, width=2000, error=5_000_000)]
    joint = join_by_utc(near, far)
    assert joint is not None
    assert joint.error_ns == ERROR + 201 + 5_000_000 + 1001
    untold = join_by_utc(near, [pair(START, UTC_NS, error=None)])
    assert untold is not None
    assert untold.error_ns > UNSYNCHRONISED_NS
    archive = join_by_utc(near, [pair(UTC_NS, UTC_NS, "imported", error=None, width=0)])
    assert archive is not None
    assert archive.error_ns == ERROR + 201 + 1
    assert moved(archive, UTC_NS + 5) == [START + 5]
    scattered = [pair(START + k * 60 * S, UTC_NS + k * 60 * S + (k % 2) * 30_000) for k in range(10)]
    joint = join_by_utc(scattered, far)
    assert joint is not None
    assert 30_000 <= joint.error_ns - (ERROR + 201 + 5_000_000 + 1001) < 60_000
    assert join_by_utc([], far) is None
    assert join_by_utc(near, []) is None


def test_time_does_not_go_back_where_utc_was_stepped() -> None:
    step = 10 * S
    far = [
        pair(START, UTC_NS, error=9 * S),
        pair(START + S, UTC_NS + S - step),
        pair(START + 60 * S, UTC_NS + 60 * S - step),
    ]
    joint = join_by_utc([pair(START, UTC_NS - step), pair(START + 60 * S, UTC_NS + 60 * S - step)], far)
    assert joint is not None
    assert moved(joint, START, START + S // 2, START + S, START + 50 * S) == [
        START,
        START + S // 2,
        START + S,
        START + 50 * S,
    ]
    assert joint.error_ns > step, "nobody knows which was right"


def answer(there: int, since: int, until: int) -> dict[str, Any]:
    return {"event": "clock-node", "node": "node2", "from": since, "to": until, "node_ns": there}


def test_a_quick_answer_is_worth_more_than_a_clock_that_nothing_synchronises() -> None:
    near, far = [pair(START, UTC_NS, error=16 * S)], [pair(START + OFF, UTC_NS + 5 * S, error=16 * S)]
    answers = [
        answer(START + OFF + 10, START, START + 1000),
        answer(START + OFF + S, START + S - 9000, START + S + 9000),
    ]
    joint = choose_joint(near, far, answers)
    assert joint is not None
    assert moved(joint, START + OFF) == [START + 490]
    assert 500 <= joint.error_ns < 2_000_000
    later = answer(START + OFF + 60 * S, START + 60 * S, START + 60 * S + 40)
    drifting = join_by_answers([*answers, later, {"from": 5}, answer(1, 9, 3), {**later, "to": "?"}])
    assert drifting is not None
    assert moved(drifting, START + OFF + 60 * S) == [START + 60 * S + 20]
    assert drifting.error_ns >= 500 + 60 * S // 10_000
    assert join_by_answers([]) is None
    tight = choose_joint([pair(START, UTC_NS, error=1000)], [pair(START + OFF, UTC_NS, error=1000)], answers)
    assert tight is not None
    assert moved(tight, START + OFF) == [START], "here UTC is better"


@pytest.fixture
def run(runs: Path) -> Path:
    """Make a run of two hosts that booted at other times, and read the same things at the same moments."""
    run = make_run(runs, started={**STARTED, "kernel_error_ns": ERROR})
    write_rows(run, gpus(), ramp(6))
    path = write_rows(run, gpus(), ramp(6, start_ns=START + OFF), host="node2")
    path.write_bytes(path.read_bytes().replace(BOOT.encode(), BOOT.replace("1", "9").encode()))
    write_lines(run / "node1" / "events.run.jsonl", {"t": START + 2, "event": "idle", "from": START, "to": START + 2})
    write_lines(
        run / "node2" / "events.0.jsonl",
        clock(START + OFF, UTC_NS),
        {"t": START + OFF + 9, "event": "trap", "from": "pdu"},
    )
    mark = {"t": START + OFF + 7, "mark": "work", "from": START + OFF + 3, "at": [START + OFF + 4, START + OFF + 7]}
    write_lines(run / "node2" / "marks" / "1-2.jsonl", mark)
    close_run(run)
    return run


def test_all_times_of_a_run_are_the_first_hosts(run: Path) -> None:
    with open_run(run) as opened:
        near, far = opened.tables()
        for stream in ("gpu0", "gpu1"):
            one, two = opened.series(near, stream), opened.series(far, stream)
            assert one.t0_ns.tolist() == two.t0_ns.tolist()
            assert one.t1_ns.tolist() == two.t1_ns.tolist()
        by_kind = {e["event"]: e for e in opened.events()}
        assert (by_kind["clock"]["t"], by_kind["clock"]["mono_ns"]) == (START, START + OFF), "pairs stay raw"
        assert (by_kind["trap"]["t"], by_kind["trap"]["from"]) == (START + 9, "pdu")
        assert by_kind["idle"]["from"] == START
        (mark,) = opened.marks()
        assert (mark["t"], mark["from"], mark["at"]) == (START + 7, START + 3, [START + 4, START + 7])
        assert [p.mono_ns for p in opened.clock_pairs("node2")] == [START + OFF]
        assert opened.clock_error_ns("node1") == 0
        assert opened.clock_error_ns("node2") == pytest.approx(UNSYNCHRONISED_NS + ERROR, abs=ERROR), (
            "the end tells none"
        )
        assert opened.unjoined() == []


def test_a_host_without_pairs_is_left_as_it_is_and_named(run: Path) -> None:
    (run / "node2" / "events.0.jsonl").unlink()
    (run / "node3" / "marks").mkdir(parents=True)
    with open_run(run) as opened:
        assert opened.unjoined() == ["node2"], "of the third there is nothing to join"
        assert opened.clock_error_ns("node2") is None
        assert opened.series(opened.tables()[1], "gpu0").t0_ns[0] == START + OFF
        assert opened.marks()[0]["t"] == START + OFF + 7
    write_lines(run / "node1" / "events.1.jsonl", {"t": 1, **answer(START + OFF, START - 50, START + 50)})
    with open_run(run) as opened:
        assert opened.unjoined() == []
        assert opened.marks()[0]["t"] == START + 7


def test_hosts_of_one_boot_have_one_clock(runs: Path) -> None:
    run = make_run(runs)
    write_rows(run, gpus(), ramp(4))
    write_rows(run, gpus(), ramp(4), host="node2")
    with open_run(run) as opened:
        assert opened.unjoined() == []
        assert opened.clock_error_ns("node2") == 0
        assert opened.series(opened.tables()[1], "gpu0").t0_ns[0] == START
    write_lines(run / "node2" / "events.0.jsonl", clock(START, UTC_NS + S, BOOT))
    with open_run(run) as opened:
        assert opened.clock_error_ns("node2") == 0
