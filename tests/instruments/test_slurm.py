"""Which row counts, what is flagged, what is a gap: over rows as Slurm writes them, without a Slurm."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.slurm.fake import DAY, PM, T0, Fake, row

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.readings import Readings
from joulelab.core.clock import NS
from joulelab.instruments.slurm.client import Answer


def energy(archive):
    return archive.fetch(0, 0)[0].rows[1][2][0]


def said(archive, kind="problem"):
    key = {"problem": "what", "gap": "reason"}[kind]
    return [event[key] for event in archive.fetch(0, 0)[0].events if event["event"] == kind]


def test_single_node_rows():
    steps = row("1", 50) + row("1.batch", 70) + row("1.0", 50)
    outer = row("1.extern", 71)
    for text, joules, counts in (
        (steps + outer, 71, ".extern"),
        (steps, 70, ".batch"),
        (row("1", 50) + row("1.0", 50), 50, "the job's row"),
        (row("1", "") + row("1.batch", 70), 70, ".batch"),
    ):
        archive = Fake(text).archive()
        assert energy(archive) == joules
        assert archive.facts["row"] == counts
        assert said(archive) == []


def test_several_nodes_rows():
    wide = {"nodes": "n[1-2]", "count": 2}
    text = row("1", 100, **wide) + row("1.batch", 60) + row("1.0", 100, **wide)
    archive = Fake(text).archive()
    assert (energy(archive), archive.facts["row"], archive.facts["nodes"]) == (100, "the job's row", "n[1-2]")
    assert archive.fetch(0, 0)[0].host == "n[1-2]"
    archive = Fake(text + row("1.extern", 121, **wide)).archive()
    assert (energy(archive), archive.facts["row"]) == (121, ".extern")
    archive = Fake(row("1", "", **wide) + row("1.batch", 60)).archive()
    assert math.isnan(energy(archive))
    assert "first of 2 nodes" in said(archive, "gap")[0]


def test_an_outer_row_without_energy_is_passed_over_and_said():
    archive = Fake(row("1", 50) + row("1.batch", 70) + row("1.extern", 0)).archive()
    assert energy(archive) == 70
    assert any(".extern" in text and ".batch is used" in text for text in said(archive))


def test_steps_side_by_side_and_gaps():
    wide = {"nodes": "n[1-2]", "count": 2}
    double = (
        row("1", 200, **wide) + row("1.0", 100, "00:00", "00:50", **wide) + row("1.1", 100, "00:20", "01:00", **wide)
    )
    assert said(Fake(double).archive()) == [
        "steps ran side by side for 30 s: each is charged all of its nodes, so the sum counts them more than once"
    ]
    (text,) = said(Fake(row("1.extern", 90, **wide) + double).archive())
    assert "do not add them" in text
    gaps = row("1", 80) + row("1.0", 40, "00:05", "00:20") + row("1.1", 40, "00:30", "00:59")
    (text,) = said(Fake(gaps).archive())
    assert text == "for 16 s of 60 s no step ran: that energy is not in the sum of steps"
    assert said(Fake(row("1", 80) + row("1.0", 80, "00:01", "01:00")).archive()) == []


@every_row(
    ("value", "config", "reason"),
    [
        ("0", PM.replace("pm_counters", "none"), "AcctGatherEnergyType is none"),
        ("", PM.replace("pm_counters", "none"), "AcctGatherEnergyType is none"),
        ("0", PM, "does not read its meter on n1"),
        ("0", PM.replace("1 sec", "120 sec"), "shorter than the 120 s"),
        ("18446744073709551614", PM, "without a value (18446744073709551614)"),
        ("", PM, "no step was started with srun"),
        ("18446744073709000000", PM, "without a value"),
        ("9223372036854775000", PM, "is impossible"),
    ],
)
def test_what_is_no_energy_is_a_gap_with_its_reason(value, config, reason):
    archive = Fake(row("1", value), config=config).archive()
    job = archive.fetch(0, 0)[0]
    assert [math.isnan(values[0]) for _, _, values in job.rows] == [True, True]
    assert reason in said(archive, "gap")[0]
    assert [event["event"] for event in job.events][-2:] == ["gap", "gap-end"]
    short = Fake(row("1", "0", "00:00", "00:00")).archive()
    assert "less than a second" in said(short, "gap")[0]


def test_the_analysis_gives_exactly_that_energy():
    archive = Fake(row("1", 14_401, nodes="n7") + row("1.0", 7_000, "00:10", "00:40"), others="").archive(gain=0.02)
    start, end = archive.interval
    assert (start, end) == (T0, T0 + 60 * NS)
    for fetched, joules in zip(archive.fetch(start, end), (14_401, 7_000), strict=True):
        a, b = fetched.rows[0][0], fetched.rows[1][0]
        t = np.array([a, b])
        spec = fetched.stream.channels[0]
        curve = CounterCurve(Readings.from_rows(t, t, np.array([v[2][0] for v in fetched.rows])), spec, name="slurm")
        found = curve.energy(a, b)
        assert found.value == pytest.approx(joules, abs=1e-6)
        # Each edge is off by as much as a look (1 s) and a whole second hold, at the power of the rest of the time: the
        # mean over all of it is too low where idle time counts in place of work.
        power = joules / ((b - a) / NS - 2)
        edges = [u for source, u in found.terms.items() if source.startswith("edge")]
        assert sorted(map(abs, edges)) == pytest.approx([(2 * power + 1) / math.sqrt(8)] * 2, rel=1e-3)
        assert spec.accuracy.gain == 0.02
        assert fetched.host == "n7"
    assert [f.stream.parent for f in archive.fetch(0, 0)] == [None, "job"]
    assert [f.stream.scope for f in archive.fetch(0, 0)] == ["job", "job/0"]
    archive.close()
    archive.close()


def test_facts_and_steps():
    archive = Fake(row("1", 50) + row("1.0", 50, "00:05", "00:20")).archive()
    facts = archive.facts
    assert facts["name"] == "train|it now"
    assert [facts[k] for k in ("user", "state", "exit_code", "nodes", "elapsed_s")] == [
        "ann",
        "COMPLETED",
        "0:0",
        "n1",
        60,
    ]
    assert (facts["plugin"], facts["frequency_s"]) == ("pm_counters", 1.0)
    assert archive.steps == [("0", T0 + 5 * NS, T0 + 20 * NS)]


def test_jobs_on_the_same_nodes_are_listed_with_their_cpu_time():
    mine = row("1", 50) + row("1.0", 50)
    others = (
        f"1|COMPLETED|{DAY}00:00|{DAY}01:00|n1\n2|RUNNING|{DAY}00:30|Unknown|n1\n3|FAILED|{DAY}01:00|{DAY}02:00|n1\n"
    )
    use = "1|8|01:30.500\n1.batch|8|01:30.500\n2|4|1-02:03:04\n"
    (event,) = (e for e in Fake(mine, others=others, use=use).archive().fetch(0, 0)[0].events if "jobs" in e)
    assert (event["event"], event["job"]) == ("shared-jobs", "1")
    assert event["jobs"] == [
        {"job": "1", "from_s": 0.0, "to_s": 60.0, "cpus": 8, "cpu_s": 90.5},
        {"job": "2", "from_s": 30.0, "to_s": 60.0, "cpus": 4, "cpu_s": None},  # it still runs
    ]
    wide = f"2|COMPLETED|{DAY}00:30|{DAY}01:30|n[1-4]\n"
    (event,) = (e for e in Fake(mine, others=wide, use=use).archive().fetch(0, 0)[0].events if "jobs" in e)
    assert event["jobs"][1] == {"job": "2", "from_s": 30.0, "to_s": 90.0, "cpus": 1, "cpu_s": 93784.0 / 4}
    again = use + "2|4|00:10\n"
    assert not any("jobs" in e for e in Fake(mine, others=wide, use=again).archive().fetch(0, 0)[0].events)
    two = row("1", 50, nodes="n[1-2]", count=2) + row("1.0", 50, nodes="n[1-2]", count=2)
    assert not any("jobs" in e for e in Fake(two, others=wide, use=use).archive().fetch(0, 0)[0].events)
    for known, answer in ((others, Answer(1, "", "sacct: error: no")), (others, "1|8|01:30\n2||x\n"), ("", use)):
        fetched = Fake(mine, others=known, use=answer).archive().fetch(0, 0)[0]
        assert not any("jobs" in e for e in fetched.events)


def test_shared_nodes_are_flagged():
    mine = row("1", 50) + row("1.0", 50)
    others = f"1|COMPLETED|{DAY}00:00|{DAY}01:00|n1\n2|COMPLETED|{DAY}00:30|{DAY}01:30|n1\n"
    others += f"3|COMPLETED|{DAY}01:00|{DAY}02:00|n1\n"
    (text,) = said(Fake(mine, others=others).archive())
    assert "shared n1 with 2 (30 s)" in text
    assert "--exclusive" in text
    (text,) = said(Fake(mine, others=f"9|RUNNING|{DAY}00:10|Unknown|n1\n").archive())
    assert "with 9 (50 s)" in text
    (text,) = said(Fake(mine, job="JobState=COMPLETED OverSubscribe=YES").archive())
    assert "OverSubscribe" in text
    (text,) = said(Fake(mine, config=PM.replace("none", "jobs,users")).archive())
    assert "PrivateData" in text


def test_arrays_and_heterogeneous_jobs_name_their_parts():
    tasks = row("8_1", 5, raw="14") + row("8_2", 6, raw="8", index=2) + row("8_10", 7, raw="9", index=3)
    with raises_code("config.several-jobs") as caught:
        Fake(tasks).archive("8")
    assert "8_1, 8_2, 8_10" in caught.value.next
    assert energy(Fake(row("8_1", 5, raw="14")).archive("8_1")) == 5
    first, second = row("9+0", 40) + row("9+0.0", 40), row("9+1", 30, raw="10", index=2, nodes="n2")
    with raises_code("config.several-jobs") as caught:
        Fake(first + second).archive("9")
    assert "9+0, 9+1" in caught.value.next
    assert energy(Fake(second).archive("9+1")) == 30


def test_requeued_jobs():
    rows = row("1", "", "00:00", "00:20", state="REQUEUED") + row("1.batch", 20, "00:00", "00:20", state="CANCELLED")
    rows += row("1", 50, "01:00", "02:00", index=2) + row("1.batch", 55, "01:00", "02:00", index=2)
    archive = Fake(rows).archive()
    assert energy(archive) == 55
    assert "execution 2 of 2 is shown; not counted: 1 (REQUEUED, 20 s)" in said(archive)[0]
    first = Fake(rows).archive(attempt=1)
    assert (energy(first), first.interval[1]) == (20, T0 + 20 * NS)
    with raises_code("config.no-attempt"):
        Fake(rows).archive(attempt=3)


def test_a_job_that_has_just_ended_is_waited_for():
    late = row("1", "", end="Unknown", state="RUNNING") + row("1.batch", 0, end="Unknown", state="RUNNING")
    zero = row("1", "") + row("1.extern", 0)
    final = row("1", 70) + row("1.extern", 70)
    fake = Fake("", late, zero, final, job="JobState=COMPLETING")
    assert energy(fake.archive(now=T0 + 61 * NS)) == 70
    assert fake.asked == 4
    slow = Fake(*[late] * 12, final, job="JobState=COMPLETED")
    assert any("only after 3.0 s" in text for text in said(slow.archive()))


def test_waiting_ends():
    late = row("1", "", end="Unknown", state="RUNNING")
    fake = Fake(late, job="JobState=COMPLETED")
    with raises_code("read-failed.no-end"):
        fake.archive(settle_s=5)
    assert 5 * NS <= fake.t < 6 * NS
    with raises_code("unavailable.no-end"):
        Fake(late).archive()
    step = row("1", 50) + row("1.0", 0, end="Unknown", state="RUNNING")
    assert any("1.0 still counts as running" in text for text in said(Fake(step).archive()))
    zero = Fake(row("1", 0) + row("1.0", 0)).archive(now=T0 + 62 * NS)
    assert math.isnan(energy(zero))
    assert any("may still come" in text for text in said(zero))


def test_no_such_job_and_jobs_that_wait():
    with raises_code("unavailable.unknown-job"):
        Fake("").archive()
    pending = row("1", 0, "Unknown", "Unknown", nodes="None assigned", count=0, state="PENDING")
    with raises_code("unavailable.not-started"):
        Fake(pending, job="JobState=PENDING").archive()
    never = row("1", 0, "00:01", "00:01", nodes="None assigned", count=0, state="CANCELLED")
    with raises_code("unavailable.not-run"):
        Fake(never).archive()


def test_a_running_job_is_not_imported():
    """For a moment the database has a row without nodes: it is read again."""
    half = row("1", 0, end="Unknown", state="PENDING", count=0)
    fake = Fake(half, row("1", "", end="Unknown", state="RUNNING"), job="JobState=RUNNING")
    with raises_code("unavailable.running"):
        fake.archive(now=T0 + 30 * NS)
    assert fake.asked == 2


def test_what_is_not_known_is_said():
    archive = Fake(row("1", 50) + row("1.0", 50), others="not a row\n").archive()
    assert any("whether others were on n1 is not known" in text for text in said(archive))
    archive = Fake(row("1", 50), config=PM.replace("1 sec", "0 sec")).archive()
    assert any("30 s assumed" in text for text in said(archive))
    assert any("none is stated" in text for text in said(Fake(row("1", 50, end="00:01")).archive()))
    requeued = row("1", 20, end="00:20", state="REQUEUED")
    assert any("put back into the queue" in text for text in said(Fake(requeued).archive()))


def test_a_stated_offset_is_a_share_of_an_energy():
    archive = Fake(row("1", 6000)).archive(gain=0.01, offset_w=5.0, reference="our own calibration")
    accuracy = archive.fetch(0, 0)[0].stream.channels[0].accuracy
    assert (accuracy.source, accuracy.gain, accuracy.offset) == ("calibrated", pytest.approx(0.06), 0.0)
