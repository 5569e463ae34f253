"""`joulelab plan when`: the recommendation, its table and JSON, pictures, and bad inputs."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.plan.bad_inputs import check_refusal
from tests.plan.measured_runs import node_run

from joulelab.plan.when.when_command import WAYS
from joulelab.plan.when.when_output import TITLES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

pytest.importorskip("highspy")
SINCE = dt.datetime(2025, 1, 6, tzinfo=dt.UTC)  # a Monday, long over
FROM = ("--from", "2025-01-06T00:30")
GIVEN = ("--power", "6.9kW", "--idle", "2.2kW", "--duration", "20h")


def write_series(path: Path, days: int = 4, less: float = 0.0, **header: str) -> Path:
    """Write an hourly series as CSV; prices are a thousandth of intensities, minus `less`."""
    about = {"kind": "average", "unit": "g/kWh", "zone": "DE", **header}
    hours = np.arange(24 * days)
    values = 350 + 150 * np.sin(hours / 12 * np.pi)
    if about["kind"] == "price":
        values = values / 1000 - less
    lines = [f"# {key}: {value}" for key, value in about.items()] + ["time,value"]
    lines += [f"{(SINCE + dt.timedelta(hours=int(h))).isoformat()},{v:.4f}" for h, v in zip(hours, values, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def join_lines(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.system
def test_the_recommendation_comes_first_and_the_answer_is_short(call: Call, tmp_path: Path) -> None:
    forecast = write_series(tmp_path / "f.csv")
    words = ("plan", "when", *GIVEN, *FROM, "--intensity", forecast, "--deadline", "72h", "--gpus", "8")
    text = call(*words, "--gpu-power", "700W", "--cap", "500W").output
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    first = join_lines(text.partition("\n\n")[0])
    pattern = r"Start at Mon 08:\d\d: 44\.4 kg CO2e instead of 50\.3 kg CO2e now \(\d+\.\d % less\), rates of .*"
    assert re.match(pattern, first), first
    assert "deadline Thu 00:30" in first
    for title in ("now", "now, cap 500 W (model)", "best start", "pauses, node idles", "pauses, node off"):
        assert f"\n{title}" in text
    assert "If it were off" in join_lines(text)
    explained = join_lines(call(*words, "--gpu-power", "700W", "--cap", "500W", "--slot", "1h", "--why").output)
    assert "solved by HiGHS" in explained
    assert "The plan is the cheapest way" in explained


def test_json_has_the_plan_the_ways_and_the_notes(call: Call, tmp_path: Path) -> None:
    words = (*GIVEN, *FROM, "--intensity", write_series(tmp_path / "f.csv"), "--deadline", "72h", "--json")
    data = json.loads(call("plan", "when", *words, "--choose", "pauses-off").output)
    assert (data["chosen"], data["unit"], data["kind"], data["simulated"]) == ("pauses-off", "g", "average", False)
    ways = {way["name"]: way for way in data["ways"]}
    assert ways["now"]["cost"]["expanded"] is None
    assert ways["pauses-off"]["saving"]["value"] > ways["start"]["saving"]["value"] > 0
    ran = sum(s["end_utc_s"] - s["start_utc_s"] for s in data["stretches"] if s["action"] == "run")
    assert ran == pytest.approx(20 * 3600, abs=60)
    assert {s["action"] for s in data["stretches"]} == {"wait", "run", "pause", "done"}
    assert "when.node-free" in {message["code"] for message in data["messages"]}


def test_a_run_is_planned_by_price_and_drawn(call: Call, runs: Path, tmp_path: Path) -> None:
    run = node_run(runs, 7000.0, seconds=30.0)
    prices = write_series(tmp_path / "prices.csv", kind="price", unit="EUR/kWh")
    picture = tmp_path / "plan.svg"
    words = ("plan", "when", run.name, "--duration", "10h", *FROM, "--tariff", prices, "--deadline", "1d")
    text = join_lines(call(*words, "--picture", picture, "--pue", "1.3±0.13", "--pause-cost", "10m", "--why").output)
    assert re.search(r"Start at Mon \d\d:\d\d: [\d.]+ ± [\d.]+ EUR instead of", text)
    assert "a PUE of 1.30 ± 0.13" in text
    assert "the grid" not in text
    assert b"run now" in picture.read_bytes()


def test_an_idle_power_that_drifted_is_doubted(call: Call, runs: Path, tmp_path: Path) -> None:
    warmer = itertools.count(2000.0, 30.0)
    run = node_run(runs, 7000.0, seconds=30.0, step_s=0.1, idle_w=lambda _: next(warmer))
    words = ("plan", "when", run.name, *FROM, "--intensity", write_series(tmp_path / "f.csv"), "--deadline", "1d")
    assert "The idle power of run" in join_lines(call(*words).output)
    assert "not certain" not in call(*words, "--idle", "2kW").output


def test_a_sweep_on_a_twin_is_simulated_and_may_be_the_plan(call: Call, runs: Path, tmp_path: Path) -> None:
    twin: dict[str, Any] = {"twin": {"name": "bnl"}}
    names = [
        node_run(runs, watts, seconds=seconds, cap=cap, gpu_w=400.0, **twin).name
        for watts, seconds, cap in ((7000.0, 30.0, None), (5000.0, 33.0, 500.0))
    ]
    forecast = write_series(tmp_path / "f.csv", kind="marginal")
    words = ("plan", "when", *names, "--duration", "10h", *FROM, "--intensity", forecast, "--deadline", "1d")
    text = join_lines(call(*words, "--why").output)
    assert "with a cap of 500 W (simulated):" in text
    assert "on a simulation (twin bnl)" in text
    assert "Marginal intensity is an estimate" in text


def test_one_figure_leaves_nothing_to_gain(call: Call) -> None:
    text = join_lines(call("plan", "when", *GIVEN, "--intensity", "380", "--deadline", "48h").output)
    assert text.startswith("Start now: 52.4 kg CO2e, rates of ")
    assert "No other way saves 0.1 %." in text


def test_the_sentence_is_about_the_way_that_is_run(call: Call, tmp_path: Path) -> None:
    text = "# kind: average\n# unit: g/kWh\ntime,value\n"
    text += "".join(f"{SINCE + dt.timedelta(hours=k):%Y-%m-%dT%H:%MZ},{300 - 0.5 * (k > 1)}\n" for k in range(9))
    (tmp_path / "flat.csv").write_text(text)  # 0.17 % less after two hours
    words = ("plan", "when", "--power", "6kW", "--idle", "2kW", "--duration", "1h", *FROM, "--deadline", "5h")
    words += ("--intensity", str(tmp_path / "flat.csv"))
    stretches = json.loads(call(*words, "--json").output)["stretches"]
    starts = [one["start_utc_s"] for one in stretches if one["action"] == "run"]
    assert starts[0] > SINCE.timestamp()
    assert join_lines(call(*words).output).startswith("Start at ")
    chosen = join_lines(call(*words, "--choose", "now").output)
    assert "You chose this way; by default: best start, 1.80 kg CO2e." in chosen


@pytest.mark.parametrize(("option", "value"), [("--duration", "5"), ("--slot", "900"), ("--deadline", "48")])
def test_a_time_without_a_unit_is_questioned(call: Call, option: str, value: str) -> None:
    words = ["plan", "when", "--power", "6kW", "--duration", "5h", "--deadline", "48h", "--intensity", "380"]
    found = call(*words, option, value, code=2)
    assert "has no unit" in found.output or "is not a time; write it as" in found.output


def test_the_pue_of_the_site_counts(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "joulelab.toml").write_text('[site]\nzone = "DE"\npue = 1.5\n')
    monkeypatch.setenv("JOULELAB_CONFIG", str(tmp_path / "joulelab.toml"))
    words = ("plan", "when", *GIVEN, "--intensity", "380", "--deadline", "48h")
    assert "Start now: 78.7 kg CO2e, rates of 380 g/kWh, PUE 1.5," in join_lines(call(*words).output)  # 1.5 x 52.4
    assert "52.4 kg CO2e, rates of 380 g/kWh, finished" in join_lines(call(*words, "--pue", "1").output)


def test_times_are_shown_in_the_zone_that_they_are_read_in(call: Call, tmp_path: Path) -> None:
    times = ("--from", "2025-01-06T02:00", "--deadline", "2025-01-08T12:00", "--zone", "Europe/Berlin")
    words = ("plan", "when", *GIVEN, *times, "--intensity", write_series(tmp_path / "f.csv"))
    data = json.loads(call(*words, "--json").output)
    assert data["time_zone"] == "Europe/Berlin"
    assert data["ways"][0]["start_utc_s"] == SINCE.timestamp() + 3600.0
    assert "deadline Wed 12:00" in join_lines(call(*words).output)


def test_costs_below_zero_have_amounts_and_no_shares(call: Call, tmp_path: Path) -> None:
    prices = write_series(tmp_path / "prices.csv", less=0.3, kind="price", unit="EUR/kWh")
    words = ("plan", "when", *GIVEN[:4], *FROM, "--duration", "6h", "--tariff", prices, "--deadline", "2d")
    text = call(*words).output
    assert "-3.49 EUR instead of 6.00 EUR now" in join_lines(text)
    assert "against now, EUR" in text
    assert "%" not in text.partition("note")[0]


def test_a_plan_file_gives_the_node(call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("[nodes.h100]\nidle_w = 2200\ngpus = 8\ngpu_w = 700\n")
    forecast = write_series(tmp_path / "f.csv")
    words = ("--power", "6.9kW", "--duration", "20h", *FROM, "--intensity", forecast, "--deadline", "30h", "--json")
    by_file = json.loads(call("plan", "when", "--plan", tmp_path / "plan.toml", *words).stdout)
    typed = ("--idle", "2.2kW", "--gpus", "8", "--gpu-power", "700W")
    assert by_file["job_details"] == json.loads(call("plan", "when", *typed, *words).stdout)["job_details"]


def test_the_choices_are_the_ways() -> None:
    assert tuple(TITLES) == WAYS


F = ("--intensity", "f.csv")
BAD = {
    "no rate": (GIVEN, "usage", "give --intensity"),
    "two rates": ((*GIVEN, *F, "--tariff", "0.3EUR"), "usage", "--by carbon or --by cost"),
    "other rate": ((*GIVEN, *F, "--by", "cost"), "usage", "--by cost needs --tariff"),
    "price for carbon": ((*GIVEN, "--intensity", "0.3EUR"), "config", "a carbon intensity"),
    "price without currency": ((*GIVEN, "--tariff", "0.3"), "config", "currency"),
    "no such file": ((*GIVEN, "--intensity", "none.csv"), "config", "none.csv"),
    "removed service": ((*GIVEN, "--intensity", "kept:de"), "config", "are gone"),
    "no job": ((*F,), "config.no-job", "there is no job to plan"),
    "no duration": (("--power", "6.9kW", *F), "config.no-job", "no duration is given"),
    "power without unit": (("--power", "6900", "--duration", "20h", *F), "usage", "6900W or 6900kW"),
    "no power": (("--power", "0W", "--duration", "20h", *F), "usage", "is not a power"),
    "idle below 0": ((*GIVEN, *F, "--idle", "-2kW"), "usage", "is not a power"),
    "no duration at all": (("--power", "6.9kW", "--duration", "0h", *F), "usage", "--duration"),
    "deadline too early": ((*GIVEN, *F, "--deadline", "10h"), "config.deadline", "--deadline 20.02h or later"),
    "deadline before the start": ((*GIVEN, *F, "--deadline", "2025-01-05"), "config.deadline", "not after the start"),
    "deadline in words": ((*GIVEN, *F, "--deadline", "soon"), "config.time", "is not a time"),
    "series too short": ((*GIVEN, *F, "--deadline", "20d"), "config", "none is continued"),
    "too many slots": ((*GIVEN, *F, "--slot", "1m"), "config.slots", "--slot 1h"),
    "no slot": ((*GIVEN, *F, "--slot", "0m"), "usage", "--slot"),
    "long restart": ((*GIVEN, *F, "--pause-cost", "3h"), "config.slots", "longer than every slot"),
    "restart energy": ((*GIVEN, *F, "--pause-energy", "nan"), "usage", "not a finite number"),
    "pue below 1": ((*GIVEN, *F, "--pue", "0.9"), "config", "is not a PUE"),
    "pue in words": ((*GIVEN, *F, "--pue", "much"), "config", "is not a PUE"),
    "way without caps": ((*GIVEN, *F, "--choose", "caps"), "config.way", "no effect of caps is known"),
    "unknown way": ((*GIVEN, *F, "--choose", "best"), "usage", "pauses-off"),
    "cap without response": ((*GIVEN, *F, "--cap", "300W"), "config.unknown-cap", "--gpus 8 --gpu-power 700W"),
    "cap out of range": (
        (*GIVEN, *F, "--gpus", "8", "--gpu-power", "700W", "--cap", "100W"), "config.unknown-cap", "100 W is not known",
    ),
    "no gpus": ((*GIVEN, *F, "--gpus", "0"), "usage", "--gpus"),
    "no nodes": ((*GIVEN, *F, "--nodes", "0"), "usage", "--nodes"),
    "unknown zone": ((*GIVEN, *F, "--zone", "Europe/Nowhere"), "config", "no time zone"),
    "skipped hour": (
        (*GIVEN, *F, "--zone", "Europe/Berlin", "--from", "2025-03-30T02:30"), "config", "does not exist",
    ),
    "hour twice": ((*GIVEN, *F, "--zone", "Europe/Berlin", "--from", "2025-10-26T02:30"), "config", "occurs twice"),
    "unknown run": (("nosuchrun", *F), "not-a-run", "nosuchrun"),
    "no picture": ((*GIVEN, *F, "--picture", "x.gif"), "usage", ".pdf"),
    "command without --run": ((*GIVEN, *F, "--", "python", "x.py"), "usage", "--run or --submit"),
    "--run without a command": ((*GIVEN, *F, "--run"), "usage", "no command"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_with_a_next_step(call: Call, tmp_path: Path, kind: str) -> None:
    assert call  # it sets the folder
    write_series(tmp_path / "f.csv")
    words, code, text = BAD[kind]
    given = [*(() if "--from" in words else FROM), *(() if "--deadline" in words else ("--deadline", "72h"))]
    place = words.index("--") if "--" in words else len(words)
    check_refusal(("plan", "when", *words[:place], *given, *words[place:]), code, text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((",350.0000", ",-350.0"), "0 or more"),
        (("2025-01-07T05:00:00+00:00,", "# "), "has a gap"),
        ((",350.0000", ",many"), "many"),
    ],
)
def test_bad_series_are_refused(call: Call, tmp_path: Path, change: tuple[str, str], text: str) -> None:
    assert call
    path = write_series(tmp_path / "f.csv")
    path.write_text(path.read_text().replace(*change))
    check_refusal(("plan", "when", *GIVEN, *FROM, "--intensity", path, "--deadline", "72h"), "config", text)


def test_runs_of_other_work_are_refused(call: Call, runs: Path, tmp_path: Path) -> None:
    assert call
    names = [node_run(runs, 7000.0, seconds=30.0, command=["python", file]).name for file in ("a.py", "b.py")]
    words = ("plan", "when", *names, "--intensity", write_series(tmp_path / "f.csv"), *FROM, "--deadline", "1d")
    check_refusal(words, "config.other-work", "--only KEY=VALUE")


def test_a_plan_that_begins_in_the_past_is_not_run(call: Call, tmp_path: Path) -> None:
    words = ("plan", "when", *GIVEN, *FROM, "--intensity", write_series(tmp_path / "f.csv"), "--deadline", "48h")
    text = join_lines(call(*words, "--run", "--", "false", code=2).output)
    assert "--from: a plan that begins in the past cannot be run; leave out --from, or give a later one" in text


def test_a_checkpoint_needs_a_job_to_start(call: Call) -> None:
    words = ("plan", "when", *GIVEN, "--intensity", "380", "--deadline", "48h", "--checkpoint", "true")
    assert "--checkpoint needs --run or --submit" in call(*words, code=2).output
