"""`joulelab plan queue`: the recommendation first, a table that fits, JSON, a picture, and clear refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.plan.bad_inputs import check_refusal
from tests.plan.measured_runs import node_run

from joulelab.cli.group import run_commands
from joulelab.core.quantity import Quantity
from joulelab.plan.commands import COMMANDS
from joulelab.plan.queue.jobs import JobStream, QueueJob
from joulelab.plan.queue.policy_comparison import compare_policies
from joulelab.plan.queue.queue_command import command
from joulelab.plan.queue.queue_output import word_recommendation
from joulelab.plan.queue.site import NO_CAP, CapStep, QueueSite

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

HEADER = "id,submit,nodes,duration_s,node_w,highest_w,workload\n"
JOBS = HEADER + "".join(f"j{k},2026-01-05T0{k}:00:00Z,2,9000,6000,6500,train\n" for k in range(6))
PLAN = """[queue]
jobs = "jobs.csv"
nodes = 4
budget_w = 24_000
idle_w = 2_000
rated_w = 8_000
accuracy = 0.02

[queue.workloads.train]
gpus = 8
gpu_w = 700
"""
SITE = ("--nodes", "4", "--budget", "24kW", "--idle", "2kW")


@pytest.fixture
def plan(tmp_path: Path, call: Call) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def test_the_recommendation_is_first_and_the_answer_fits_a_screen(call: Call, plan: Path) -> None:
    out = call("plan", "queue", "--plan", plan, "--draws", "9").output
    lines = out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    first = " ".join(out.split("\n\n")[0].split())
    assert first.startswith("Cap the GPUs of train at ")
    assert " earlier on average (" in first
    assert "first come, first served under 24.0 kW" in first
    assert "no job waits longer than" in first
    for name in ("first come", "by nameplate", "backfill", "caps to fit", "least energy"):
        assert sum(line.startswith(name) for line in lines) == 1
    explained = call("plan", "queue", "--plan", plan, "--draws", "9", "--why").output
    assert len(explained.splitlines()) > len(lines)
    assert "makespan" in explained
    assert max(map(len, explained.splitlines())) <= 80


def test_json_has_all_figures_and_every_start(call: Call, plan: Path) -> None:
    answer = json.loads(call("plan", "queue", "--plan", plan, "--draws", "4", "--json").output)
    policies = {each["name"]: each for each in answer["policies"]}
    assert list(policies) == ["first come", "by nameplate", "backfill", "caps to fit", "least energy"]
    assert (answer["site"]["budget_w"], answer["draws"], answer["compared_with"]) == (24_000, 4, "first come")
    # Two such jobs at once need 4 x 6.5 kW, and less under caps.
    waits = {name: each["figures"]["wait_s"]["value"] for name, each in policies.items()}
    assert waits["caps to fit"] < waits["backfill"]
    saved = policies["least energy"]["changes_against"]["first come"]["energy_j"]
    assert saved["value"] < -0.05
    assert {start["mean_w"] for start in policies["backfill"]["starts"]} == {12_000.0}
    assert None not in {start["cap_w"] for start in policies["least energy"]["starts"]}
    assert answer["recommended"] in ("caps to fit", "least energy")
    assert len(answer["notes"]) == len(answer["messages"])


def test_the_old_name_and_the_old_table_still_work(call: Call, plan: Path) -> None:
    new = call("plan", "queue", "--plan", plan, "--draws", "2").output
    plan.write_text(PLAN.replace("[queue", "[schedule"))
    assert call("plan", "schedule", "--plan", plan, "--draws", "2").output == new
    off = json.loads(call("plan", "queue", "--plan", plan, "--unused", "off", "--json", "--draws", "2").output)
    assert off["site"]["idle_w"] == 0.0
    assert "schedule" not in COMMANDS


def test_options_replace_keys_of_the_plan_file(call: Call, plan: Path) -> None:
    words = ("--budget", "40kW", "--margin", "5%", "--count", "mean", "--slowdown", "3%", "--idle", "0W")
    site = json.loads(call("plan", "queue", "--plan", plan, *words, "--json", "--draws", "2").output)["site"]
    assert site == {
        "nodes": 4, "budget_w": 40_000.0, "idle_w": 0.0, "count": "mean", "margin": 0.05, "rated_w": 8_000.0,
    }  # fmt: skip


def test_without_a_known_effect_of_caps_the_answer_says_so(call: Call, plan: Path) -> None:
    out = " ".join(call("plan", "queue", "--jobs", plan.parent / "jobs.csv", *SITE).output.split())
    assert "without caps" in out.partition(":")[0]
    assert "Never capped, as no run shows the effect of caps: train." in out
    assert "The accuracy of the powers is not known" in out


def test_less_energy_in_the_same_time_is_not_called_earlier() -> None:
    jobs = tuple(QueueJob(f"j{k}", 1e4 * k, 1, 3_600.0, Quantity(6_000.0), 6_500.0, "made") for k in range(3))
    steps = (CapStep(400.0, Quantity(1.005), Quantity(0.8), 0.8), NO_CAP)
    found = compare_policies(JobStream(jobs, "3 jobs"), QueueSite(1, 9_000.0, 0.0), {"made": steps})
    text = word_recommendation(found)
    assert text.startswith("Cap the GPUs of made at 400 W and backfill: the 3 jobs end neither earlier nor later")
    assert "with 19.6 % less energy; no job waits. Power is not the limit: 6.50 kW is enough" in text


def test_warnings_come_before_other_notes_and_the_power_that_is_enough_is_rounded_up(call: Call, plan: Path) -> None:
    jobs = plan.parent / "jobs.csv"
    jobs.write_text(HEADER + "a,0,2,9000,6000,6506,train\nb,0,1,60,100,200,train\n")
    answer = json.loads(call("plan", "queue", "--jobs", jobs, *SITE, "--json").output)
    assert answer["messages"][0]["code"] == "queue.below-idle"
    assert answer["enough_w"] == 2 * 6_506 + 2 * 2_000
    assert "17.1 kW is enough" in answer["recommendation"]
    jobs.write_text(HEADER + "b,0,1,60,100,200,train\n")
    answer = json.loads(call("plan", "queue", "--jobs", jobs, *SITE, "--json").output)
    assert answer["enough_w"] == 4 * 2_000, "a budget below the idle power of all nodes is refused"
    assert "no other policy lets the job end earlier" in answer["recommendation"]


def test_simulated_and_measured_runs_are_not_mixed(call: Call, plan: Path, runs: Path) -> None:
    real, twin = node_run(runs), node_run(runs, twin={"name": "bnl-h100"})
    text = plan.read_text().replace("gpus = 8\ngpu_w = 700\n", f'runs = ["{twin}"]\n')
    plan.write_text(text)
    assert "simulated runs are mixed with measured ones" in call("plan", "queue", real, "--plan", plan, code=2).output


@pytest.mark.parametrize(("kinds", "names"), [(1, "made0"), (2, "made0, made1"), (5, "5 workloads")])
def test_workloads_under_one_cap_share_its_name(kinds: int, names: str) -> None:
    jobs = tuple(
        QueueJob(f"j{k}", 1e4 * k, 1, 3_600.0, Quantity(6_000.0), 6_500.0, f"made{k % kinds}") for k in range(5)
    )
    steps = {f"made{k}": (CapStep(400.0, Quantity(1.005), Quantity(0.8), 0.8), NO_CAP) for k in range(kinds)}
    text = word_recommendation(compare_policies(JobStream(jobs, "5 jobs"), QueueSite(1, 9_000.0, 0.0), steps))
    assert text.startswith(f"Cap the GPUs of {names} at 400 W and backfill")


def test_an_swf_log_is_enough_with_the_power_of_a_node(call: Call, plan: Path) -> None:
    log = plan.parent / "log.swf"
    log.write_text("".join(f"{k} {600 * k} -1 9000 2 -1 -1 2 9600 -1 1 1 1 3 1 1 -1 -1\n" for k in range(1, 7)))
    words = (
        "--jobs",
        log,
        *SITE,
        "--budget",
        "22kW",
        "--node-w",
        "6kW",
        "--gpus",
        "8",
        "--gpu-power",
        "700W",
        "--json",
    )
    answer = json.loads(call("plan", "queue", *words).output)
    assert answer["jobs"]["count"] == 6
    assert answer["recommendation"].startswith("Cap the GPUs of app3 at ")
    assert {"queue.assumed-power", "queue.mean-powers"} <= {each["code"] for each in answer["messages"]}


@pytest.mark.system  # pure, and slow
def test_runs_are_jobs_submitted_when_they_started(call: Call, runs: Path) -> None:
    for _ in range(2):
        node_run(runs, 600.0, idle_w=50.0, name="made")
    folders = [str(folder) for folder in sorted(runs.iterdir())]
    words = ("--nodes", "2", "--budget", "2kW", "--idle", "50W", "--draws", "3", "--json")
    answer = json.loads(call("plan", "queue", *folders, *words).output)
    assert (answer["jobs"]["source"], answer["simulated"]) == ("2 runs", False)
    answer = json.loads(call("plan", "queue", *folders, *words, "--repeat", "5", "--every", "2s").output)
    assert answer["jobs"]["source"] == "5 jobs, one each 2 s, made from 2 runs"


@pytest.mark.system  # pure, and slow
def test_a_picture_is_drawn_and_no_other_file_is_overwritten(
    call: Call, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = plan.parent / "power.svg"
    call("plan", "queue", "--plan", plan, "--picture", file, "--draws", "2")
    assert b"unused nodes" in file.read_bytes()
    other = plan.parent / "mine.png"
    other.write_bytes(b"mine")
    assert run_commands(["plan", "queue", "--plan", str(plan), "--picture", str(other)]) == 2
    assert "not a picture by joulelab" in capsys.readouterr().err
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], "config", "there are no jobs"),
        (["--jobs", "jobs.csv", "--budget", "9kW", "--idle", "1W"], "config", "the number of nodes is not given"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--idle", "1W"], "config", "the power budget is not given"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--budget", "9kW"], "config", "power of an unused node is not known"),
        (["--jobs", "jobs.csv", *SITE, "--budget", "7kW"], "config", "used up before any job starts"),
        (["--jobs", "jobs.csv", *SITE, "--nodes", "1"], "config", "jobs.csv:2: job j0 needs 2 nodes of 1"),
        (["--jobs", "jobs.csv", *SITE, "--budget", "12kW"], "config", "jobs.csv:2: job j0 never fits"),
        (["--jobs", "jobs.csv", *SITE, "--margin", "100%"], "config", "the margin leaves nothing of the budget"),
        (["--jobs", "jobs.csv", *SITE, "--repeat", "3", "--every", "1m"], "config", "--repeat is for runs"),
        (["--jobs", "jobs.csv", *SITE, "--gpus", "8"], "config", "the effect of caps has no source"),
        (["--jobs", "none.csv", *SITE], "config", "none.csv: cannot read the file of jobs"),
        (["--jobs", "bare.csv", *SITE, "--count", "highest"], "config", "the highest power of job a is not known"),
        (["--jobs", "log.swf", *SITE], "config", "log.swf:2: the power of job 1 is not known"),
        (["somerun", "--jobs", "jobs.csv", *SITE], "not-a-run", "no run 'somerun'"),
        (["--plan", "none.toml"], "config", "no such plan file"),
        (["--plan", "rack.toml"], "config", "has no [queue]"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--budget", "24", "--idle", "2kW"], "usage", "has no unit"),
        (["--jobs", "jobs.csv", *SITE, "--count", "most"], "usage", "most"),
        (["--jobs", "jobs.csv", "--nodes", "0"], "usage", "0 is not in the range"),
        (["--jobs", "jobs.csv", *SITE, "--draws", "-1"], "usage", "-1 is not in the range"),
        (["--jobs", "jobs.csv", *SITE, "--picture", "a.txt"], "usage", "name it .pdf, .svg or .png"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_with_a_next_step(plan: Path, words: list[str], code: str, text: str) -> None:
    (plan.parent / "bare.csv").write_text(HEADER + "a,0,1,10,5000,,\n")
    (plan.parent / "log.swf").write_text("; made up\n1 0 0 50 1 -1 -1 1 100 -1 1 3 1 7 1 1 -1 -1\n")
    (plan.parent / "rack.toml").write_text("title = 'no queue'\n")
    check_refusal(["plan", "queue", *words], code, text)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nodes = 0", "nodes is 0"),
        ("budget_w = -5", "budget_w is -5"),
        ('budget_w = "100kW"', "budget_w is '100kW'"),
        ("margin = 1.5", "margin is 1.5"),
        ("idle_w = -1", "idle_w is -1"),
        ('unused = "asleep"', "unused is 'asleep'"),
        ('count = "peak"', "count is 'peak'"),
        ("slowdown = 10", "slowdown is 10"),
        ("accuracy = true", "accuracy is true"),
        ("processors = 0", "processors is 0"),
        ('every = "soon"', "soon"),
        ("repeat = 3", "repeat and every belong together"),
        ('runs = "last"', "jobs and runs are both given"),
        ("cap = 5", "unknown key 'cap'"),
        ('tariff = "0.3EUR"', "plan queue has no tariff"),
        ("pue = 1.3", "plan queue has no pue"),
        ('zone = "Europe/Berlin"', "plan queue has no zone"),
        ("[queue.workloads.one]", "the effect of caps has no source"),
        ("[queue.workloads.one]\ngpus = 8", "the effect of caps has no source"),
        ('[queue.workloads.one]\nruns = "last"\ngpus = 8', "the effect of caps has two sources"),
        ("[queue.workloads.one]\ncaps = []", "unknown key 'caps'"),
        ("[schedule]", "[schedule] is the old name of [queue]"),
    ],
)
def test_a_wrong_key_of_the_plan_file_is_refused_with_its_line(plan: Path, line: str, text: str) -> None:
    plan.write_text(f'[queue]\njobs = "jobs.csv"\n{line}\n')
    error = check_refusal(["plan", "queue", "--plan", plan], "config", ["plan.toml:", text])
    assert error["next"] or error["mistakes"]


def test_the_help_is_that_of_the_group() -> None:
    assert command.get_short_help_str(200) == COMMANDS["queue"]
