"""`joulelab plan when`: tables, JSON, pictures, what is kept, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.plan.measured_runs import node_run

from joulelab.plan.rates.kept import Origin, keep
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps
from joulelab.plan.when.baselines import TITLES
from joulelab.plan.when.when_command import WAYS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

SINCE = dt.datetime(2025, 1, 6, tzinfo=dt.UTC)  # a Monday, long over
FROM = ("--from", "2025-01-06T00:30")
GIVEN = ("--power", "6.9kW", "--idle", "2.2kW", "--duration", "20h", "--rated", "10.2kW")


def series(path: Path, days: int = 4, noise: float = 0.0, less: float = 0.0, **header: str) -> Path:
    """Write an hourly series as CSV; prices are a thousandth of intensities, so much less."""
    about = {"kind": "average", "unit": "g/kWh", "zone": "DE", **header}
    hours = np.arange(24 * days)
    values = 350 + 150 * np.sin(hours / 12 * np.pi) + np.random.default_rng(1).normal(0, noise, len(hours))
    if about["kind"] == "price":
        values = values / 1000 - less
    lines = [f"# {key}: {value}" for key, value in about.items()] + ["time,value"]
    lines += [f"{(SINCE + dt.timedelta(hours=int(h))).isoformat()},{v:.4f}" for h, v in zip(hours, values, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.system  # pure, and slow
def test_every_way_stands_beside_running_now(call: Call, tmp_path: Path) -> None:
    forecast = series(tmp_path / "forecast.csv")
    said = call(
        "plan",
        "when",
        *GIVEN,
        *FROM,
        "--intensity",
        forecast,
        "--deadline",
        "72h",
        "--gpus",
        "8",
        "--gpu-power",
        "700W",
    )
    text = said.output
    assert max(map(len, text.splitlines())) <= 80
    for title in ("now", "now, best cap", "best start", "pauses, node idles", "pauses, node off", "caps, node idles"):
        assert f"\n{title}" in text
    assert "nameplate" in text
    assert "not measured" in text
    assert "\ncaps, node idles, model " in text
    assert "that the grid emits less is not proved" in _flat(text)
    assert "a node that idles draws 31.9 % of what it does at work" in _flat(text)
    assert "138.0 ± ?" in text  # kWh: nobody states how accurate the power is


def test_json_has_all_of_it(call: Call, tmp_path: Path) -> None:
    forecast = series(tmp_path / "forecast.csv")
    words = (*GIVEN, *FROM, "--intensity", forecast, "--deadline", "72h", "--json", "--choose", "pauses-off")
    data = json.loads(call("plan", "when", *words).output)
    assert data["chosen"] == "pauses-off"
    assert (data["unit"], data["kind"], data["simulated"]) == ("g", "average", False)
    by = {way["name"]: way for way in data["ways"]}
    assert by["now"]["cost"]["value"] == pytest.approx(by["now"]["cost_by_nameplate"] * 6.9 / 10.2)
    assert by["now"]["cost"]["expanded"] is None
    assert by["pauses-off"]["gain"]["value"] > by["start"]["gain"]["value"] > 0
    ran = sum(s["until_utc_s"] - s["since_utc_s"] for s in data["stretches"] if s["does"] == "run")
    assert ran == pytest.approx(20 * 3600, abs=60)
    assert {s["does"] for s in data["stretches"]} == {"run", "pause"}


@pytest.mark.system  # pure, and slow
def test_a_run_is_planned_by_price_and_drawn(call: Call, runs: Path, tmp_path: Path) -> None:
    run = node_run(runs, 7000.0, seconds=30.0)
    prices = series(tmp_path / "prices.csv", kind="price", unit="EUR/kWh")
    picture = tmp_path / "plan.svg"
    words = ("plan", "when", run.name, "--duration", "10h", *FROM, "--tariff", prices, "--deadline", "2d")
    text = call(*words, "--picture", picture, "--pue", "1.3", "--pause-cost", "10m").output
    assert "EUR" in text
    assert "less money than run now" in text
    assert "the grid" not in text
    assert b"run now" in picture.read_bytes()
    other = tmp_path / "mine.png"
    other.write_bytes(b"a photo")
    assert "choose another file with --picture" in _flat(call(*words, "--picture", other, "--keep", code=2).output)
    assert not (tmp_path / "joulelab-plans").exists()  # nothing is kept of what is refused


@pytest.mark.system  # pure, and slow
def test_what_a_run_says_against_its_idle_power_is_repeated(call: Call, runs: Path, tmp_path: Path) -> None:
    warmer = itertools.count(2000.0, 30.0)
    run = node_run(runs, 7000.0, seconds=30.0, step_s=0.1, idle_w=lambda _: next(warmer), gpu_w=400.0)
    words = ("plan", "when", run.name, *FROM, "--intensity", series(tmp_path / "f.csv"), "--deadline", "1d")
    text = _flat(call(*words).output)
    assert "the idle power is doubted" in text
    assert "node.ac: idle power drifted by +585 W while it was measured" in text
    assert "doubted" not in call(*words, "--idle", "2kW").output
    steady = node_run(runs, 7000.0, seconds=30.0)
    assert "doubted" not in call("plan", "when", steady.name, *words[3:]).output


@pytest.mark.system  # pure, and slow
def test_rated_power_of_parts_is_held_against_these_parts(call: Call, runs: Path, tmp_path: Path) -> None:
    """Two GPUs rated at 700 W draw 400 W each, in a node of 7000 W: 1400 W are no share of that."""
    run = node_run(runs, 7000.0, seconds=30.0, step_s=0.1, gpu_w=400.0)
    words = ("plan", "when", run.name, *FROM, "--intensity", series(tmp_path / "f.csv"), "--deadline", "1d")
    text = _flat(call(*words).output)
    assert "rated power of gpu: 1400 W x time says" in text
    assert "of running now, +75.2 % against what these used; the job is of more than these" in text
    assert "rated parts," in text
    assert "nameplate" not in text
    given = _flat(call(*words, "--rated", "10kW").output)
    assert "nameplate as given: 10.00 kW x time says" in given
    assert "of running now, +43.0 %" in given
    kept = json.loads(call(*words, "--json").output)["job"]
    assert (kept["rated_alike"], kept["rated_times"]) == (False, pytest.approx(1.752, abs=0.001))


def test_a_nameplate_of_nodes_is_no_share_of_parts(call: Call, runs: Path, tmp_path: Path) -> None:
    run = node_run(runs, 400.0, seconds=30.0, scope="gpu:0")
    words = ("plan", "when", run.name, *FROM, "--intensity", series(tmp_path / "f.csv"), "--deadline", "1d")
    text = _flat(call(*words, "--rated", "10kW").output)
    assert "of running now; the job is of parts of the nodes only, and no share is told" in text


def test_idle_power_may_be_none_and_more_than_at_work_is_said(call: Call, tmp_path: Path) -> None:
    words = ("plan", "when", "--power", "6.9kW", "--duration", "5h", *FROM, "--deadline", "2d")
    words = (*words, "--intensity", series(tmp_path / "f.csv"))
    data = json.loads(call(*words, "--idle", "0W", "--json").output)
    assert (data["job"]["idle_w"]["value"], data["job"]["idle_from"]) == (0.0, "given")
    by = {way["name"]: way["cost"]["value"] for way in data["ways"]}
    assert by["pauses-idle"] == pytest.approx(by["pauses-off"])
    (tmp_path / "plan.toml").write_text("[nodes.h100]\nidle_w = 2200\n")
    typed = json.loads(call(*words, "--plan", tmp_path / "plan.toml", "--idle", "0", "--json").output)
    assert typed["job"]["idle_w"]["value"] == 0.0
    assert "is not a power" in call(*words, "--rated", "0W", code=2).output
    more = "a node draws more in pauses than at work (9000 W, at work 6900 W)"
    assert more in _flat(call(*words, "--idle", "9kW").output)
    assert "more in pauses" not in _flat(call(*words, "--idle", "2kW").output)


def test_a_node_that_waits_is_counted_where_pauses_cost(call: Call, tmp_path: Path) -> None:
    """The row without pauses costs what it does by hand: 1 h of 700 W, then 3.042 kWh."""
    prices = tmp_path / "w.csv"
    hours = "".join(f"2026-10-24T{20 + k}:00:00Z,{v}\n" for k, v in enumerate((107.2, 26.9, 110.5)))
    prices.write_text(f"# kind: price\n# unit: EUR/MWh\ntime,value\n{hours}")
    times = ("--from", "2026-10-24T20:00Z", "--deadline", "2026-10-24T23:00Z", "--slot", "1h")
    node = ("--power", "6900W", "--idle", "700W", "--duration", "30m", "--gpus", "8", "--gpu-power", "700W")
    text = _flat(call("plan", "when", *node, *times, "--tariff", prices, "--pause-cost", "10m", "--waits").output)
    assert "caps, no pauses, model 3.742 ± ? 0.1569 ± ?" in text
    assert "that is counted, except where it is off in pauses" in text


def test_a_sweep_on_a_twin_is_called_simulated(call: Call, runs: Path, tmp_path: Path) -> None:
    twin: dict[str, Any] = {"twin": {"name": "bnl"}}
    names = [
        node_run(runs, watts, seconds=seconds, cap=cap, gpu_w=400.0, **twin).name
        for watts, seconds, cap in ((7000.0, 30.0, None), (5000.0, 33.0, 500.0))
    ]
    forecast = series(tmp_path / "forecast.csv", kind="marginal")
    words = ("plan", "when", *names, "--duration", "10h", *FROM, "--intensity", forecast, "--deadline", "2d")
    text = _flat(call(*words).output)
    assert "(simulated)" in text
    assert "simulated: twin bnl" in text
    assert "marginal intensity: what one kWh more causes" in text
    assert "Caps, node idles" in text
    assert json.loads(call(*words, "--json").output)["simulated"] is True


def test_a_plan_is_kept_and_there_is_no_review(call: Call, tmp_path: Path) -> None:
    words = ("plan", "when", *GIVEN, *FROM, "--intensity", series(tmp_path / "forecast.csv"), "--deadline", "72h")
    said = call(*words, "--keep", "--choose", "pauses-off").output
    (kept,) = (tmp_path / "joulelab-plans").iterdir()
    assert kept.name in said
    assert "review" not in said
    data = json.loads(kept.read_text())
    assert (data["chosen"], "reviews" in data) == ("pauses-off", False)
    assert "No such command 'review'" in call("plan", "review", kept.stem, code=2).output
    assert "review" not in call("plan", "--help").output


def test_one_figure_leaves_nothing_to_gain(call: Call) -> None:
    text = call("plan", "when", *GIVEN, "--intensity", "380", "--deadline", "48h").output
    assert "Run it now: no other way costs less" in _flat(text)


def test_errors_of_earlier_forecasts_are_told(call: Call, tmp_path: Path) -> None:
    """Three forecasts, two with what came: the gain that is promised, and that under their errors."""
    hours = np.arange(24 * 3)
    swing = 350 + 150 * np.sin(hours / 12 * np.pi)
    for week in (2, 1, 0):
        since_s = SINCE.timestamp() - week * 7 * 86_400
        for issued, values in ((since_s, swing), (None, swing * (0.9 if week == 2 else 1.0) + 10 * week)):
            if issued is None and week == 0:
                continue
            label = Label("average", "g/kWh", "test", "DE", source="test", issued_utc_s=issued)
            steps = Steps(label, since_s + 3600.0 * hours, values, since_s + 3 * 86_400.0)
            keep(steps, Origin("em", "em-DE", since_s), tmp_path / "joulelab-rates")
    words = ("plan", "when", *GIVEN, *FROM, "--intensity", "kept:em-DE/forecast", "--deadline", "71h", "--json")
    data = json.loads(call(*words).output)
    assert data["scatter"]["forecasts"] == 2
    promised = next(w for w in data["ways"] if w["name"] == data["chosen"])["gain"]["value"]
    assert 0 < data["scatter"]["lowest"] <= data["scatter"]["highest"] < promised
    assert any("if it is off as 2 earlier ones were" in line for line in data["said"])


def test_times_are_shown_in_the_zone_that_they_are_read_in(call: Call, tmp_path: Path) -> None:
    times = ("--from", "2025-01-06T02:00", "--deadline", "2025-01-08T12:00")
    words = ("plan", "when", *GIVEN, *times, "--intensity", series(tmp_path / "f.csv"))
    berlin = ("--zone", "Europe/Berlin", "--choose", "start")
    data = json.loads(call(*words, *berlin, "--json").output)
    assert data["time_zone"] == "Europe/Berlin"
    by = {way["name"]: way for way in data["ways"]}
    assert by["now"]["start_utc_s"] == SINCE.timestamp() + 3600.0
    text = call(*words, *berlin).output
    assert max(map(len, text.splitlines())) <= 80
    assert f"from {_clock(by['start']['start_utc_s'] + 3600)} Europe/Berlin:" in _flat(text)
    assert "in Europe/Berlin, until Wed 08 12:00" in _flat(text)
    assert "in UTC, until Wed 08 12:00" in _flat(call(*words).output)


def _clock(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).strftime("%a %d %H:%M")


def test_a_pue_may_have_an_uncertainty(call: Call, runs: Path, tmp_path: Path) -> None:
    run = node_run(runs, 7000.0, seconds=30.0)
    words = ("plan", "when", run.name, *FROM, "--intensity", series(tmp_path / "f.csv"), "--deadline", "1d")
    data = json.loads(call(*words, "--pue", "1.3±0.13", "--json").output)
    assert (data["pue"], data["pue_expanded"]) == (1.3, pytest.approx(0.13))
    cost = data["ways"][0]["cost"]
    assert cost["expanded"] / cost["value"] > 0.1
    assert "PUE of 1.3 ± 0.13 is in the cost, not in the energy" in _flat(call(*words, "--pue", "1.3+-0.13").output)
    assert "PUE" not in call(*words).output
    for wrong in ("0.9", "nan", "inf", "much"):
        assert "is no PUE" in call(*words, "--pue", wrong, code=2).output
    assert "not a finite number" in _flat(call(*words, "--pause-energy", "nan", code=2).output)


@pytest.mark.system  # pure, and slow
def test_where_one_is_paid_for_running_there_are_amounts_and_no_shares(call: Call, tmp_path: Path) -> None:
    prices = series(tmp_path / "prices.csv", less=0.3, kind="price", unit="EUR/kWh")
    words = ("plan", "when", *GIVEN, *FROM, "--duration", "6h", "--tariff", prices, "--deadline", "3d")
    text = call(*words, "--choose", "pauses-off").output
    assert "EUR less than run now" in _flat(text)
    assert "against now," in text
    assert "%" not in text.partition("start,")[0]
    assert "best start 41.40 ± ? -3.489 ± ? -9.490 ± ? -5.158" in _flat(text)


def test_repeats_are_one_job_and_others_are_refused(call: Call, runs: Path, tmp_path: Path) -> None:
    names = [node_run(runs, watts, seconds=30.0).name for watts in (6900.0, 7100.0)]
    other = node_run(runs, 7000.0, seconds=30.0, command=["python", "other.py"]).name
    words = ("--intensity", series(tmp_path / "f.csv"), *FROM, "--deadline", "1d")
    assert "the job is the mean of 2 runs" in _flat(call("plan", "when", *names, *words).output)
    assert "one run: how much runs of this job differ is not known" in _flat(call("plan", "when", other, *words).output)
    assert "the runs are no repeats of one job" in _flat(call("plan", "when", *names, other, *words, code=2).output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deadline", "10h"), "the deadline is too early"),
        (("--deadline", "20d"), "is known from"),
        (("--deadline", "soon"), "is no time"),
        (("--deadline", "48h", "--choose", "caps-idle"), "there is no way"),
    ],
)
def test_what_cannot_be_is_refused(call: Call, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    given = ("plan", "when", *GIVEN, *FROM, "--intensity", series(tmp_path / "f.csv"))
    assert said in _flat(call(*given, *words, code=2).output)


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ((",350.0000", ",-350.0"), (), "a carbon intensity cannot be below 0"),
        (("2025-01-07T05:00:00+00:00,", "# "), (), "has a gap where it is used"),
        ((",350.0000", ",many"), (), "many"),
        (("+00:00", ""), ("--zone", "Europe/Nowhere"), "no time zone"),
        (("2025-01-06", "2025-03-30"), ("--zone", "Europe/Berlin", "--from", "2025-03-30T02:30"), "never"),
        (("2025-01-06", "2025-10-26"), ("--zone", "Europe/Berlin", "--from", "2025-10-26T02:30"), "twice"),
    ],
)
def test_series_and_times_that_cannot_be_are_refused(
    call: Call, tmp_path: Path, change: tuple[str, str], words: tuple[str, ...], said: str
) -> None:
    path = series(tmp_path / "f.csv", days=1 if "2025-01-06" in change else 4)
    path.write_text(path.read_text().replace(*change))
    given = ("plan", "when", *GIVEN, *FROM, "--intensity", path, "--deadline", "72h")
    assert said in _flat(call(*given, *words, code=2).output)


def test_usage(call: Call, tmp_path: Path) -> None:
    forecast = series(tmp_path / "f.csv")
    assert "one of them" in call("plan", "when", *GIVEN, "--deadline", "48h", code=2).output
    words = ("plan", "when", *GIVEN, *FROM, "--intensity", forecast, "--deadline", "48h")
    assert "name it .pdf" in call(*words, "--picture", "x.gif", code=2).output
    said = call("plan", "when", "--intensity", forecast, *FROM, "--deadline", "48h", code=2).output
    assert "no job to plan" in said


def test_the_choices_are_the_ways() -> None:
    assert tuple(TITLES) == WAYS


@pytest.mark.system  # pure, and slow
def test_a_plan_file_says_what_its_node_is(call: Call, tmp_path: Path) -> None:
    forecast = series(tmp_path / "forecast.csv")
    node = "[nodes.h100]\nrated_w = 10200\nidle_w = 2200\ngpus = 8\ngpu_w = 700\n"
    (tmp_path / "plan.toml").write_text(node)
    asked = ("--power", "6.9kW", "--duration", "20h", *FROM, "--intensity", forecast, "--deadline", "72h", "--json")
    typed = ("--idle", "2.2kW", "--rated", "10.2kW", "--gpus", "8", "--gpu-power", "700W")
    by_file = json.loads(call("plan", "when", "--plan", tmp_path / "plan.toml", *asked).stdout)
    by_hand = json.loads(call("plan", "when", *typed, *asked).stdout)
    assert by_file["job"] == by_hand["job"]
    assert by_file["job"] != json.loads(call("plan", "when", *asked).stdout)["job"]
