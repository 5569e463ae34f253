"""`joulelab plan schedule`: tables that fit, JSON, a picture, and what is wrong told in a line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from benchmarks.plan_queue import CURVE, busy_stream
from tests.report.synthetic import make_run

from joulelab.cli.group import run_commands
from joulelab.plan.commands import COMMANDS
from joulelab.plan.queue.outcome import compare
from joulelab.plan.queue.policies import BACKFILL, NAMEPLATE
from joulelab.plan.queue.queue_command import command
from joulelab.plan.queue.queue_output import headline, lay_out_schedule, lines
from joulelab.plan.queue.site import Site
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

HEAD = "id,submit,nodes,duration_s,node_w,highest_w,workload\n"
JOBS = HEAD + "".join(f"j{k},2026-01-05T0{k}:00:00Z,2,9000,6000,6500,train\n" for k in range(6))
PLAN = """
[schedule]
jobs = "jobs.csv"
nodes = 4
budget_w = 24_000
idle_w = 2_000
rated_w = 8_000
accuracy = 0.02
pue = 1.2

[schedule.workloads.train]
caps = [{cap_w = 700, slowdown = 1.0, node_w = 6000}, {cap_w = 450, slowdown = 1.06, node_w = 4700}]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def test_tables_fit_and_say_what_was_done(call: Call, plan: Path) -> None:
    out = call("plan", "schedule", "--plan", plan, "--tariff", "0.3EUR", "--intensity", "380", "--draws", "9").output
    assert max(map(len, out.splitlines())) <= 80
    for words in ("by nameplate", "makespan, h", "cost, EUR", "CO2e, kg", "least energy", "PUE of 1.2", "never capped"):
        assert (words in out) is (words != "never capped")
    rows = {
        line.split("  ")[0]: line for line in out.splitlines() if line.startswith(("first come", "backfill", "caps"))
    }
    assert {"first come", "backfill", "caps to fit"} <= set(rows)


def test_json_has_everything_and_caps_let_more_run(call: Call, plan: Path) -> None:
    told = json.loads(call("plan", "schedule", "--plan", plan, "--draws", "4", "--json").output)
    of = {each["name"]: each for each in told["policies"]}
    assert list(of) == ["first come", "waits", "nameplate", "backfill", "caps to fit", "least energy"]
    assert told["site"]["budget_w"] == 24_000
    assert told["draws"] == 4
    # Two such jobs at once need 4 x 6.5 kW, under caps 4 x 5.1.
    assert of["first come"]["figures"]["over_highest_s"]["value"] > 0
    assert of["backfill"]["figures"]["over_highest_s"]["value"] == 0
    assert of["caps to fit"]["figures"]["wait_s"]["value"] < of["backfill"]["figures"]["wait_s"]["value"]
    saved = of["least energy"]["changes_against"]["backfill"]["energy_j"]
    assert saved["value"] < -0.1
    assert saved["expanded"] < 0.1
    assert {s["cap_w"] for s in of["least energy"]["starts"]} == {450.0}
    figures = {name: each["value"] for name, each in of["first come"]["figures"].items()}
    assert figures["rated_jobs_j"] == pytest.approx(1.2 * 6 * 2 * 9000 * 8000)
    assert figures["rated_j"] == pytest.approx(figures["rated_jobs_j"] + figures["idle_j"])
    assert figures["idle_j"] > 0
    assert {(s["mean_w"], s["highest_w"]) for s in of["backfill"]["starts"]} == {(12_000.0, 13_000.0)}


def test_what_is_typed_goes_before_the_plan_file(call: Call, plan: Path) -> None:
    words = (
        "plan",
        "schedule",
        "--plan",
        plan,
        "--budget",
        "40kW",
        "--margin",
        "5%",
        "--unused",
        "off",
        "--json",
        "--draws",
        "2",
    )
    site = json.loads(call(*words, "--count", "mean", "--slowdown", "3%").output)["site"]
    assert (site["budget_w"], site["margin"], site["unused"], site["count"]) == (40_000.0, 0.05, "off", "mean")


def test_jobs_of_a_file_need_no_plan(call: Call, plan: Path) -> None:
    words = ("--nodes", "4", "--budget", "24kW", "--idle", "2kW")
    out = call("plan", "schedule", "--jobs", plan.parent / "jobs.csv", *words).output
    assert "of no job it is known what caps do" in " ".join(out.split())
    assert "train is never capped" in out
    assert "± ?" in out  # nobody says how good the powers are
    assert "nameplate: the nameplate of job j0's nodes is not known; give --rated" in " ".join(out.split())


@pytest.mark.system  # pure, and slow
def test_runs_are_jobs_each_submitted_when_it_started(call: Call, runs: Path) -> None:
    for _ in range(2):
        make_run(runs, name="made")
    folders = [str(folder) for folder in sorted(runs.iterdir())]
    words = ("--nodes", "2", "--budget", "2kW", "--idle", "50W", "--rated", "900W", "--draws", "3")
    told = json.loads(call("plan", "schedule", *folders, *words, "--json").output)
    assert told["jobs"] == {"source": "2 runs", "count": 2, "uncapped": told["jobs"]["uncapped"]}
    assert any("only parts of the nodes were measured" in note for note in told["notes"])
    assert told["simulated"] is False
    out = call("plan", "schedule", *folders, *words, "--repeat", "5", "--every", "2s").output
    assert "5 jobs, one each 2 s, made from 2 runs" in out


@pytest.mark.system  # pure, and slow
def test_a_picture_is_drawn_and_nothing_of_others_is_written_over(
    call: Call, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = plan.parent / "power.svg"
    call("plan", "schedule", "--plan", plan, "--picture", file, "--draws", "2")
    assert b"over the budget" in file.read_bytes()
    other = plan.parent / "mine.png"
    other.write_bytes(b"mine")
    assert run_commands(["plan", "schedule", "--plan", str(plan), "--picture", str(other)]) == 2
    assert run_commands(["plan", "schedule", "--plan", str(plan), "--picture", "a.txt"]) == 2
    assert "not a picture by joulelab" in capsys.readouterr().err
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no jobs to schedule"),
        (["--jobs", "jobs.csv", "--budget", "9kW", "--idle", "1W"], "how many nodes the site has is not given"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--idle", "1W"], "the power budget is not given"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--budget", "9kW"], "what an unused node draws is not known"),
        (["--jobs", "jobs.csv", "--nodes", "4", "--budget", "9kW", "--idle", "3kW"], "used up before any job starts"),
        (
            ["--jobs", "jobs.csv", "--nodes", "1", "--budget", "9kW", "--idle", "3kW"],
            "jobs.csv:2: job j0 needs 2 nodes",
        ),
        (
            ["--jobs", "jobs.csv", "--nodes", "4", "--budget", "24kW", "--idle", "1W", "--margin", "120%"],
            "a margin of 120 % leaves nothing of the budget",
        ),
        (["--jobs", "jobs.csv", "--repeat", "3"], "--repeat is for runs"),
        (["--plan", "none.toml"], "no such plan file"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(
    plan: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    assert run_commands(["plan", "schedule", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_rate_by_the_hour_needs_times_with_a_zone(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    (plan.parent / "jobs.csv").write_text(JOBS.replace("Z,", ","))
    hours = "".join(f"2026-01-0{d}T{h:02d}:00:00Z,{300 + h}\n" for d in (4, 5, 6, 7) for h in range(24))
    (plan.parent / "grid.csv").write_text(f"# kind: average\n# unit: g/kWh\ntime,value\n{hours}")
    words = ["plan", "schedule", "--plan", "plan.toml", "--intensity", "grid.csv", "--draws", "2"]
    assert run_commands(words) == 2
    assert "the times of the jobs have no zone; give --zone" in capsys.readouterr().err
    assert run_commands([*words, "--zone", "Europe/Berlin"]) == 0
    assert "average carbon intensity" in " ".join(capsys.readouterr().out.split())


def test_a_rate_by_the_hour_needs_times_that_are_dates(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plan.parent)
    (plan.parent / "jobs.csv").write_text(HEAD + "a,0,2,9000,6000,6500,train\nb,3600,2,9000,6000,6500,train\n")
    about = 'unit = "EUR/kWh"\ntime_zone = "Europe/Berlin"\nprice = 0.3\n'
    night = '[[rules]]\nname = "night"\nprice = 0.2\nhours = "22:00-06:00"\n'
    (plan.parent / "night.toml").write_text(f"{about}{night}")
    (plan.parent / "flat.toml").write_text(about)
    (plan.parent / "grid.csv").write_text(
        "# kind: average\n# unit: g/kWh\ntime,value\n2026-01-05T00:00:00Z,300\n2026-01-05T01:00:00Z,310\n"
    )
    words = ["plan", "schedule", "--plan", "plan.toml", "--draws", "2"]
    for rate in (["--tariff", "night.toml"], ["--intensity", "grid.csv"], ["--intensity", "em:DE"]):
        assert run_commands([*words, *rate]) == 2
        assert "no dates; write `submit` as 2026-01-05T08:00:00Z" in " ".join(capsys.readouterr().err.split())
    for rate in (["--tariff", "0.3EUR"], ["--tariff", "flat.toml"], ["--intensity", "table:DE"]):
        assert run_commands([*words, *rate]) == 0
    since = 1_767_571_200  # 2026-01-05: s since 1970 are dates
    jobs = f"a,{since},2,9000,6000,6500,train\nb,{since + 3600},2,9000,6000,6500,train\n"
    (plan.parent / "jobs.csv").write_text(HEAD + jobs)
    assert run_commands([*words, "--tariff", "night.toml"]) == 0


def test_changes_and_the_headline_are_against_the_same(call: Call, plan: Path) -> None:
    out = " ".join(call("plan", "schedule", "--plan", plan, "--tariff", "0.3EUR", "--draws", "9").output.split())
    told = json.loads(call("plan", "schedule", "--plan", plan, "--draws", "9", "--json").output)
    assert told["compared_with"] == "first come"
    found = re.search(r"(caps to fit|least energy) against first come: (-[\d.]+) ± [\d.]+ % energy", out)
    assert found is not None
    of = {each["name"]: each["changes_against"]["first come"]["energy_j"]["value"] for each in told["policies"]}
    assert float(found[2]) == pytest.approx(100 * of[found[1]], abs=0.1)
    assert re.search(rf"{found[1]} [\d.]+ ± [\d.]+ {found[2]}", out)
    assert "changes are against first come" in out


def test_a_policy_that_never_starts_some_job_is_told_beside_first_come() -> None:
    """A job that fits only under a cap."""
    found = compare(busy_stream(10, 1), Site(6, 6 * 2200.0 + 16e3, 2200.0), {"made": CURVE}, draws=0)
    assert found.outcome(BACKFILL) is None
    assert found.base is found.outcomes[0]
    assert any(text.endswith("changes are against first come") for _, text in lines(found, {}))


@pytest.mark.system  # pure, and slow
def test_unused_nodes_may_draw_nothing_and_jobs_below_them_are_said(call: Call, plan: Path) -> None:
    words = ("plan", "schedule", "--jobs", plan.parent / "jobs.csv", "--nodes", "4", "--budget", "40kW", "--json")
    told = json.loads(call(*words, "--idle", "0W").output)
    assert told["site"]["idle_w"] == 0.0
    assert not any("hardly right" in note for note in told["notes"])
    (plan.parent / "low.toml").write_text(PLAN.replace("idle_w = 2_000", "idle_w = 0"))
    assert json.loads(call("plan", "schedule", "--plan", plan.parent / "low.toml", "--json").output)["site"][
        "idle_w"
    ] == pytest.approx(0.0)
    low = json.loads(call(*words, "--idle", "7kW").output)["notes"]
    assert any("6 jobs draw less than an unused node (job j0 6000 W per node, unused 7000 W)" in note for note in low)
    off = json.loads(call(*words, "--idle", "7kW", "--unused", "off").output)["notes"]
    assert not any("hardly right" in note for note in off)


def test_simulated_powers_are_called_simulated() -> None:
    made = replace(busy_stream(10, 1), twins=("bnl-h100",))
    found = compare(made, Site(6, 40e3, 2200.0), {"made": CURVE}, draws=3)
    assert lines(found, {})[0] == ("warning", "simulated: twin bnl-h100, virtual time")
    text = write_blocks(lay_out_schedule(found, {}, width=80), 80)
    assert headline(found).split(":")[0] in " ".join(text.split())


@pytest.mark.parametrize(
    ("makespan", "wait_s", "told"),
    [
        (1.0, 0.0, "costs nothing here"),
        (1.0, 300.0, "the same makespan, 5 min 00 s of waiting more per job"),
        (0.9, -300.0, "-10.0 % makespan, 5 min 00 s of waiting less per job"),
    ],
)
def test_the_price_of_nameplates_has_its_sign_in_words(makespan: float, wait_s: float, told: str) -> None:
    found = compare(busy_stream(10, 1), Site(6, 60e3, 2200.0, rated_w=10_200.0), {"made": CURVE}, draws=0)
    own = found.outcome(BACKFILL)
    assert own is not None
    (figures,) = own.drawn
    other = {**figures, "makespan_s": makespan * figures["makespan_s"], "wait_s": wait_s + figures["wait_s"]}
    outcomes = tuple(replace(o, drawn=(other,)) if o.policy == NAMEPLATE else o for o in found.outcomes)
    said = dict(lines(replace(found, outcomes=outcomes), {}))
    assert told in said["rated"]


def test_the_help_is_what_the_group_says() -> None:
    assert command.get_short_help_str(200) == COMMANDS["schedule"]
