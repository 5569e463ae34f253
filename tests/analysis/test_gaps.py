"""Gap events become stretches with a reason."""

from __future__ import annotations

from joulelab.analysis.analyse import list_gaps
from joulelab.analysis.result import Gap


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
