"""`joulelab plan cost`: runs, planned work, a plan with sites, the configured site, statements, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.plan.bad_inputs import check_refusal
from tests.plan.measured_runs import node_run

from joulelab.cli.group import run_commands
from joulelab.plan.commands import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

PLAN = """
[nodes.fast]
rated_w = 10200
price = 300000
lifetime_years = 5
embodied_kg = 1500
runs = ["fast"]
[nodes.slow]
rated_w = 8000
price = 50000
lifetime_years = 5
embodied_kg = 900
runs = ["slow"]
[[sites]]
name = "north"
intensity = 30
tariff = "0.10EUR"
pue = 1.1
[[sites]]
name = "home"
intensity = 380
tariff = "0.32EUR"
pue = 1.4
[[work]]
name = "epoch"
amount = { tokens = 1e9 }
"""
RATES = ("--tariff", "1EUR", "--intensity", "380")


@pytest.fixture(autouse=True)
def two(runs: Path) -> None:
    node_run(runs, 6000.0, seconds=20.0, work={"tokens": 4e6}, name="fast")
    node_run(runs, 4000.0, seconds=40.0, work={"tokens": 4e6}, name="slow")


def ask(call: Call, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("plan", "cost", *words, "--json").stdout)
    return found


def test_help_says_the_same_as_the_group_and_carbon_is_an_alias(call: Call) -> None:
    assert COMMANDS["cost"] in " ".join(call("plan", "cost", "--help").stdout.split())
    words = ("fast", *RATES, "--pue", "1.3")
    assert call("plan", "carbon", *words).stdout == call("plan", "cost", *words).stdout
    assert "carbon" not in COMMANDS


def test_a_run_has_money_and_carbon(call: Call) -> None:
    data = ask(call, "fast", *RATES, "--pue", "1.3±0.05", "--rated", "10200W")
    (entry,) = data["entries"]
    assert data["units"] == {"cost": "EUR", "carbon": "g"}
    assert entry["carbon"]["amount"]["value"] == pytest.approx(6 * 20 / 3600 * 380 * 1.3, rel=0.05)
    assert entry["cost"]["amount"]["value"] == pytest.approx(entry["site_kwh"]["value"])
    assert entry["rated"]["energy_kwh"] == pytest.approx(10.2 * 20 / 3600)
    assert entry["cost"]["rated_amount"] == pytest.approx(10.2 * 20 / 3600 * 1.3)
    assert entry["carbon"]["rate_uncertainty_included"] is False
    last = ask(call, "--tariff", "0.32EUR")  # the last run if none is named
    assert (last["purposes"], len(last["entries"]), last["messages"][0]["code"]) == (["cost"], 1, "cost.no-intensity")


def test_the_configured_site_is_used_and_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "joulelab.toml").write_text('[site]\nzone = "DE"\nprice = "0.30 EUR"\npue = 1.2\n')
    text = " ".join(call("plan", "cost", "fast").stdout.split())
    assert "(0.3 EUR/kWh; Germany 2023, 381 g/kWh by Ember and Energy Institute; PUE 1.2; set by joulelab site)" in text
    data = ask(call, "fast", "--tariff", "1USD")
    assert (data["configured_site"], data["units"]["cost"]) == (True, "USD")
    assert data["entries"][0]["pue"]["value"] == 1.2
    assert ask(call, "fast", *RATES, "--pue", "1.5")["configured_site"] is False


def test_a_run_of_another_site_is_marked(call: Call, tmp_path: Path, runs: Path) -> None:
    north = {"zone": "SE", "g_per_kwh": 40.0, "price": 0.1, "currency": "EUR", "pue": 1.1}
    node_run(runs, 6000.0, name="north", options={"site": north})
    (tmp_path / "joulelab.toml").write_text('[site]\nzone = "DE"\nprice = "0.30 EUR"\npue = 1.2\n')
    assert ask(call, "north", "fast")["messages"][0]["code"] == "cost.other-site"
    assert ask(call, "fast")["messages"][0]["code"] != "cost.other-site"
    assert ask(call, "north", *RATES, "--pue", "1.5")["messages"][0]["code"] != "cost.other-site"


def test_planned_work_by_options(call: Call) -> None:
    (entry,) = ask(call, "fast", *RATES, "--work", "tokens=1e9", "--nodes", "4")["entries"]
    assert (entry["planned"]["how"], entry["nodes"]) == ("assumed", 4)
    assert entry["cost"]["per"]["tokens"]["value"] == pytest.approx(entry["cost"]["whole"]["value"] / 1e9)
    (alone,) = ask(call, "fast", *RATES, "--nodes", "2")["entries"]
    assert (alone["planned"]["unit"], alone["planned"]["amount"]) == ("runs", 1.0)
    text = call("plan", "cost", "fast", *RATES, "--work", "tokens=1e9").stdout
    assert text.startswith("1,000,000,000 tokens on 1 node would use")
    assert "per million tokens" in text


def test_nodes_are_shared_by_options(call: Call) -> None:
    words = ("--node-price", "8766", "--lifetime", "1", "--embodied", "8766")
    (entry,) = ask(call, "fast", *RATES, *words)["entries"]
    assert entry["cost"]["purchase"]["per_node_hour"] == pytest.approx(1.0)
    assert entry["carbon"]["purchase"]["per_node_hour"] == pytest.approx(1000.0)


def test_a_plan_compares_kinds_of_nodes_at_sites(call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    data = ask(call, "--plan", "plan.toml")
    assert [(e["node"], e["site"]) for e in data["entries"]] == [
        ("fast", "north"), ("fast", "home"), ("slow", "north"), ("slow", "home"),
    ]  # fmt: skip
    assert all(entry["cost"]["purchase"] and entry["rated"] for entry in data["entries"])
    assert {(even["site"], even["purpose"]) for even in data["equal"]} == {
        (site, purpose) for site in ("north", "home") for purpose in ("cost", "carbon")
    }
    text = call("plan", "cost", "--plan", "plan.toml").stdout
    assert text.startswith("For epoch, choose slow at north: lowest cost")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) <= 25
    typed = ask(call, "--plan", "plan.toml", "--intensity", "100")
    assert {entry["carbon"]["mean_rate"] for entry in typed["entries"]} == {100.0}


@pytest.mark.system  # pure, and slow
def test_names_of_files_do_not_change_an_interval(call: Call, tmp_path: Path) -> None:
    widths = []
    for first, second in (("a", "b"), ("x/log", "y/log")):
        for name in (first, second):
            log = tmp_path / f"{name}.csv"
            log.parent.mkdir(exist_ok=True)
            log.write_text("t,w\n" + "".join(f"{1714564800 + k},4000\n" for k in range(61)))
            known = ("--map", "w=node.ac:W", "gain=0.02", "reference=sheet")
            call("import", "csv", log, "--time", "t=unix", *known, "--name", name.replace("/", "-"))
        names = [name.replace("/", "-") for name in (first, second)]
        widths.append(ask(call, *names, "--tariff", "1EUR")["total"]["here"]["cost"]["expanded"])
    assert widths[0] == pytest.approx(widths[1])


def test_a_cap_is_modelled_if_only_the_node_was_measured(call: Call, tmp_path: Path) -> None:
    words = ("fast", "--tariff", "1EUR", "--cap", "400W")
    (entry,) = ask(call, *words, "--gpu-power", "700W", "--gpus", "8")["entries"]
    (step,) = entry["planned"]["steps"]
    assert (step["axis"], step["how"]) == ("cap", "assumed")
    assert step["time"]["value"] > 1 > step["energy"]["value"]
    (tmp_path / "plan.toml").write_text("[nodes.a]\ngpus = 8\ngpu_w = 700\n")
    (by_plan,) = ask(call, *words, "--plan", "plan.toml")["entries"]
    assert by_plan["planned"]["steps"] == entry["planned"]["steps"]


def test_a_statement_is_text_and_latex(call: Call) -> None:
    text = call("plan", "cost", "fast", *RATES, "--statement").stdout
    assert "LaTeX:" in text
    assert r"$\pm$" in text
    (found,) = ask(call, "fast", *RATES, "--statement")["statements"]
    assert found["sci"]["unit"] == "tokens"
    assert found["not_included"]


@pytest.mark.system  # pure, and slow
def test_a_picture_is_written_and_no_other_file_overwritten(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("plan", "cost", "fast", *RATES, "--rated", "9kW", "--picture")
    assert call(*words, "a.svg").stdout.rstrip().endswith("a.svg")
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    (tmp_path / "b.svg").write_text("mine")
    for name in ("b.svg", "c.txt"):
        assert run_commands([*words, name]) == 2
    assert (tmp_path / "b.svg").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("fast --intensity -5", "config", "the carbon intensity -5 is negative"),
        ("fast --intensity 0.3EUR", "config", "is a price, but a carbon intensity is needed"),
        ("fast --intensity table:XX", "config", "no carbon intensity is known for the zone 'XX'"),
        ("fast --intensity table:DE:1950", "config", "there is no 1950 carbon intensity for Germany"),
        ("fast --intensity none.csv", "config", "cannot read the series"),
        ("fast --intensity grid.json", "config", "no longer read"),
        ("fast --intensity kept:em-DE", "config", "stores of fetched series are gone"),
        ("fast --intensity em:DE", "config", "Electricity Maps needs a key"),
        ("fast --intensity future.csv", "config", "future.csv covers 2026-11-01 00:00 UTC"),
        ("fast --intensity gap.csv", "config", "gap.csv has a gap where it is needed"),
        ("fast --tariff 0.3", "config", "the price 0.3 has no currency; write it as 0.3EUR"),
        ("fast --tariff 380g", "config", "is average carbon, but a price is needed"),
        ("fast --tariff 0.3POTATO", "config", "'POTATO' is not the unit of a rate"),
        ("fast --tariff 1e308EUR", "config", "1e+308 EUR/kWh is not a rate"),
        ("fast --tariff old.toml", "config", "is valid from any time to 2020-01-01 00:00 UTC"),
        ("fast --tariff holes.toml", "config", "no rule has a price for mon 00:00 in jan"),
        ("fast --pue 0.5", "config", "'0.5' is not a PUE (it is from 1 to 10)"),
        ("fast --pue 1e300", "config", "is not a PUE"),
        ("fast --at soon", "config", "'soon' is not a time"),
        ("fast --tariff tou.toml --at 2023-10-29T02:30", "config", "2023-10-29 02:30 occurs twice in Europe/Berlin"),
        ("fast --tariff tou.toml --work runs=5", "config", "its start is not known (tou changes over time); add --at"),
        ("fast --work samples=5", "config", "reports no samples"),
        ("fast --work tokens=0", "config", "tokens=0 is not work"),
        ("fast --work tokens=many", "usage", "is not a name and a number"),
        ("fast --work gpu_hours=5", "config", "has no number of GPUs"),
        ("fast --work runs=1e308 --tariff 1EUR", "config", "takes more than 1000 years on 1 node"),
        ("fast slow --batch 5", "config", "no run records its batch"),
        ("fast --only gpus=2", "config", "no run has the label gpus=2"),
        ("fast --nodes 0", "usage", "is not in the range"),
        ("fast --cap nan", "usage", "is not a power"),
        ("fast --cap 400", "usage", "'400' has no unit"),
        ("fast --cap 400W --gpu-power 700W", "config", "the effect of caps is not known"),
        ("fast --rated 10.2", "usage", "'10.2' has no unit; write 10.2W or 10.2kW"),
        ("fast --rated 1e308W --tariff 1EUR", "config", "the figures are too large"),
        ("fast --node-price 5", "config", "the share of a node needs its lifetime"),
        ("fast --lifetime 0", "usage", "is not in the range"),
        ("fast --picture x.txt", "usage", "x.txt is not a picture"),
        ("fast --picture x.svg", "config", "there is nothing to draw"),
        ("nothing", "not-a-run", "nothing"),
        ("--plan none.toml", "config", "there is no such plan file"),
        ("--plan mixed.toml", "config", "b has no tariff, but other sites have one"),
        ("--plan currencies.toml", "config", "currencies are not converted"),
        ("--plan moving.toml", "config", "data_gb is no longer used"),
        ("--plan workloads.toml --tariff 1EUR", "config", "the kinds of nodes did different workloads"),
        ("--plan work.toml", "config", "the work has no amount"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(call: Call, tmp_path: Path, runs: Path, words: str, code: str, said: str) -> None:
    assert call is not None  # in its folder, with its runs
    rows = "time,value\n2026-11-01T00:00Z,300\n2026-11-01T01:00Z,300\n"
    old = "time,value\n2023-11-14T21:00Z,300\n2023-11-14T22:00Z,\n2023-11-14T23:00Z,300\n"
    rule = 'unit = "ct/kWh"\ntime_zone = "Europe/Berlin"\n[[rules]]\nprice = 20\nhours = "22:00-06:00"\n'
    site = '[[sites]]\nname = "{}"\n{}\n'
    files = {
        "future.csv": f"# kind: average\n# unit: g/kWh\n{rows}",
        "gap.csv": f"# kind: average\n# unit: g/kWh\n{old}",
        "grid.json": "{}",
        "old.toml": 'unit = "EUR/kWh"\nprice = 0.3\ntime_zone = "UTC"\nuntil = 2020-01-01\n',
        "holes.toml": rule.replace("22:00-06:00", "22:00-23:00"),
        "tou.toml": rule.replace("[[rules]]", "price = 30\n[[rules]]"),
        "mixed.toml": site.format("a", 'tariff = "1EUR"') + site.format("b", "intensity = 5"),
        "currencies.toml": site.format("a", 'tariff = "1EUR"') + site.format("b", 'tariff = "1USD"'),
        "moving.toml": site.format("a", "data_gb = 5"),
        "work.toml": "[[work]]\nnodes = 2\n",
        "workloads.toml": PLAN[: PLAN.index("[[sites]]")].replace('"slow"', '"other"') + "[[work]]\nrepeats = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if "workloads" in words:
        node_run(runs, 4000.0, seconds=40.0, work={"tokens": 4e6}, name="other", labels={"workload": "resnet"})
    check_refusal(["plan", "cost", *words.split()], code, said)


@pytest.mark.system  # pure, and slow
def test_imported_runs_need_their_workload(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b32", "b64"):
        log = tmp_path / f"{name}.csv"
        log.write_text("t,w\n" + "".join(f"{1714564800 + k},{int(name[1:]) * 10}\n" for k in range(61)))
        for more in ([], ["-l", "workload=train", "-l", f"batch={name[1:]}"]):
            named = [*more, "--name", name + ("-told" if more else "")]
            call("import", "csv", log, "--time", "t=unix", "--map", "w=node.ac:W", *named)
    words = ["--intensity", "380", "--work", "runs=1", "--batch", "48"]
    assert run_commands(["plan", "cost", *words, "b32", "b64"]) == 2
    assert "import it with -l workload=NAME" in " ".join(capsys.readouterr().err.split())
    (entry,) = ask(call, *words, "b32-told", "b64-told")["entries"]
    assert entry["planned"]["how"] == "interpolated"
