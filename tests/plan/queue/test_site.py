"""[schedule] of a plan file, the site that is made of it, and what caps do to its workloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.plan.cost.test_accounted import job as accounted
from tests.report.synthetic import HOST, make_run

from joulelab.analysis.result import CapResult
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.measured_runs import read_measured_run
from joulelab.plan.plan_file import read_plan_file
from joulelab.plan.queue.caps import curve_of, given_response
from joulelab.plan.queue.jobs import Job, Stream, repeated, stream_of_runs
from joulelab.plan.queue.prepare import responses_of, site_of
from joulelab.plan.queue.site import GivenCap, Schedule, Site, Workload
from joulelab.store.run_reader import open_run

EXAMPLE = Path(__file__).parents[3] / "examples" / "plans" / "schedule.toml"
JOB = Job("a", 0.0, 1, 100.0, Quantity(6_000.0, {"gain:m": 30.0}), 6_600.0, "train")
CAPS = (GivenCap(500.0, 1.05, 5_000.0, 5_500.0), GivenCap(700.0, 1.0, 6_000.0, 6_600.0), GivenCap(400, 1.3, 4e3, 4.4e3))


def schedule_of(path: Path) -> Schedule:
    found = read_plan_file(path, need="schedule").schedule
    assert found is not None
    return found


def read(tmp_path: Path, text: str) -> Schedule:
    (tmp_path / "plan.toml").write_text(text)
    return schedule_of(tmp_path / "plan.toml")


def test_the_example_is_read() -> None:
    found = schedule_of(EXAMPLE)
    assert (found.jobs, found.nodes, found.budget_w, found.idle_w, found.slowdown) == ("jobs.csv", 20, 1e5, 2200.0, 0.1)
    assert [(w.name, w.gpus, w.gpu_w) for w in found.workloads] == [
        ("llm-finetune", 8, 700.0),
        ("vision-train", 8, 700.0),
    ]


def test_every_key_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
[schedule]
runs = ["a", "b"]
repeat = 10
every = "5m"
margin = 0
unused = "off"
count = "mean"
pue = 1.2
tariff = "0.3EUR"
intensity = "380"
zone = "Europe/Berlin"
[schedule.workloads.train]
caps = [{cap_w = 700, slowdown = 1, node_w = 6000}, {cap_w = 500, slowdown = 1.05, node_w = 5000, highest_w = 5500}]
[schedule.workloads.eval]
runs = "last"
""",
    )
    assert (found.runs, found.repeat, found.every_s, found.margin) == (("a", "b"), 10, 300.0, 0.0)
    assert (found.unused, found.count, found.pue, found.tariff) == ("off", "mean", 1.2, "0.3EUR")
    assert found.workloads[0].caps == (GivenCap(700.0, 1.0, 6000.0, 6000.0), GivenCap(500.0, 1.05, 5000.0, 5500.0))
    assert found.workloads[1].runs == ("last",)


def test_everything_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(
            tmp_path,
            """[schedule]
nodes = 0
budget_w = -5
margin = 1.5
unused = "asleep"
pue = 0.9
repeat = 3
jobs = "a.csv"
runs = "b"
cap = 5
[schedule.workloads.one]
[schedule.workloads.two]
gpus = 8
[[schedule.workloads.three.caps]]
cap_w = 5
""",
        )
    told = str(caught.value)
    for words in (
        "plan.toml:2: nodes is 0", "plan.toml:3: budget_w is -5", "plan.toml:4: margin is 1.5",
        "plan.toml:5: unused is 'asleep'", "plan.toml:6: pue is 0.9", "repeat and every belong together",
        "plan.toml:9: jobs and runs are both given", "plan.toml:10: unknown key 'cap'",
        "plan.toml:11: the caps of one are told in 0 ways", "plan.toml:12: gpus and gpu_w of two belong together",
        "has no slowdown", "has no node_w",
    ):  # fmt: skip
        assert words in told
    with pytest.raises(ConfigError, match=r"has no \[schedule\]"):
        read(tmp_path, "title = 'x'\n")


def test_the_site_is_what_was_given_and_what_is_missing_is_told() -> None:
    stream = Stream((JOB,), "one job")
    given = Schedule(nodes=4, budget_w=3e4, idle_w=2e3, margin=0.1, pue=1.3)
    assert site_of(given, stream, []) == (Site(4, 3e4, 2e3, "idle", "highest", 0.1, None, 1.3), ())
    site, notes = site_of(given, Stream((replace(JOB, highest_w=None),), ""), [])
    assert site.count == "mean"
    assert "kept by mean powers" in notes[0]
    assert site_of(replace(given, idle_w=None, unused="off"), stream, [])[0].rest_w == 0
    for missing, words in (("nodes", "how many nodes"), ("budget_w", "budget is not given"), ("idle_w", "unused node")):
        with pytest.raises(ConfigError, match=words):
            site_of(replace(given, **{missing: None}), stream, [])
    assert (site.limit_w, site.room_w) == (pytest.approx(27_000.0), pytest.approx(19_000.0))


def test_caps_are_those_given_modelled_or_none() -> None:
    other = replace(JOB, id="b", workload="eval", submit_s=1.0)
    stream = Stream((JOB, other, replace(JOB, id="c", workload="new")), "jobs")
    given = Schedule(accuracy=0.04, workloads=(Workload("train", caps=CAPS), Workload("eval", gpus=8, gpu_w=700.0)))
    found, notes = responses_of(given, stream, [], {})
    assert found["train"].caps_w == (400, 500.0, 700.0)
    assert found["eval"].source == "model"
    assert notes == ("new is never capped: no run tells what caps do to it",)
    curve = curve_of(found["train"], 0.1)
    assert [step.cap_w for step in curve] == [500.0, None]  # 400 W costs more time than that
    assert curve[0].node.value == pytest.approx(5 / 6)
    assert curve[0].slowdown.expanded == pytest.approx(0.042)
    assert not given_response(CAPS, None, "x").points[0].node_w.known
    with pytest.raises(ConfigError, match="need the highest one, with slowdown = 1"):
        given_response(CAPS[:1], None, "train")


def test_runs_under_caps_are_no_jobs(tmp_path: Path) -> None:
    with open_run(make_run(tmp_path, name="train")) as run:
        free = read_measured_run(run)
    gpus = [scope.scope for scope in free.result.scopes if scope.scope.startswith("gpu")]
    caps = tuple(CapResult(HOST, scope, 300.0, 700.0, "W", 0, "restored") for scope in gpus)
    capped = replace(free, result=replace(free.result, caps=caps, run="other"))
    found = stream_of_runs([capped, free])
    assert [job.id for job in found.jobs] == [free.result.run]
    assert "1 runs under caps are no jobs: they tell what caps do" in found.notes
    [job] = found.jobs
    assert job.nodes == 1
    assert job.node_w.value * job.duration_s == pytest.approx(free.result.energy.value, rel=1e-6)
    assert job.highest_w == max(draw.highest_w for draw in free.draws)
    assert (found.source, found.zoned) == ("1 run", True)


def test_jobs_that_were_only_accounted_for_go_by_their_mean(tmp_path: Path) -> None:
    """Their highest power is not known, so the budget is kept by means; nor what caps do to them."""
    run = accounted(tmp_path, model="slurm rapl")
    found = stream_of_runs([run])
    [job] = found.jobs
    assert (job.nodes, job.node_w.value, job.highest_w, job.rated_w) == (4, pytest.approx(125.0), None, None)
    assert "spread evenly" in found.notes[0]
    assert "only parts of the nodes were measured" in found.notes[1]
    site, notes = site_of(Schedule(nodes=4, budget_w=3e4, idle_w=50.0), found, [run])
    assert (site.count, len(notes)) == ("mean", 1)
    responses, never = responses_of(Schedule(), found, [run], {})
    assert not responses
    assert "is never capped" in never[0]
    with pytest.raises(ConfigError, match="does not tell on how many nodes"):
        stream_of_runs([accounted(tmp_path, None)])


def test_what_a_plan_file_says_sets_no_colours(tmp_path: Path) -> None:
    """Its names stand in tables: nothing in them moves a cursor."""
    found = read(tmp_path, '[schedule]\nruns = ["a\\u001b[31m"]\n[schedule.workloads."x\\u001b[2J"]\nruns = "last"\n')
    assert found.runs == ("a\\x1b[31m",)
    assert found.workloads[0].name == "x\\x1b[2J"


def test_jobs_are_made_of_others_in_turn() -> None:
    stream = Stream((JOB, replace(JOB, id="b", submit_s=7.0)), "2 runs")
    found = repeated(stream, 3, 60.0)
    assert [(job.id, job.submit_s) for job in found.jobs] == [("a#1", 0.0), ("b#2", 60.0), ("a#3", 120.0)]
    with pytest.raises(ConfigError, match="no jobs to schedule"):
        stream_of_runs([])
