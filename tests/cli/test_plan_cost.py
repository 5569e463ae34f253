"""`joulelab plan cost` and `plan carbon`: runs, planned work, a plan with sites, statements, what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from tests.plan.measured_runs import node_run

from joulelab.cli.group import commands, run_commands
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


@pytest.fixture(autouse=True)
def two(runs: Path) -> None:
    node_run(runs, 6000.0, seconds=20.0, work={"tokens": 4e6}, name="fast")
    node_run(runs, 4000.0, seconds=40.0, work={"tokens": 4e6}, name="slow")


@pytest.mark.parametrize("name", ["cost", "carbon"])
def test_help_says_what_the_group_says(call: Call, name: str) -> None:
    assert COMMANDS[name] in " ".join(call("plan", name, "--help").stdout.split())


def test_a_run_by_a_figure(call: Call) -> None:
    text = call("plan", "carbon", "fast", "--intensity", "380", "--pue", "1.3±0.05", "--rated", "10200W").stdout
    assert "Carbon by average intensity" in text
    assert "1.300 ± 0.050" in text
    data = json.loads(call("plan", "carbon", "fast", "--intensity", "380", "--pue", "1.3", "--json").stdout)
    (entry,) = data["entries"]
    assert data["unit"] == "g"
    assert entry["amount"]["value"] == pytest.approx(6 * 20 / 3600 * 380 * 1.3, rel=0.05)
    assert entry["rate_uncertainty_included"] is False
    cost = json.loads(call("plan", "cost", "--tariff", "0.32EUR", "--json").stdout)
    assert (cost["unit"], len(cost["entries"])) == ("EUR", 1)  # the last run where none is named


def test_planned_work_by_options(call: Call) -> None:
    words = ("plan", "carbon", "fast", "--intensity", "380", "--work", "tokens=1e9", "--nodes", "4", "--json")
    (entry,) = json.loads(call(*words).stdout)["entries"]
    assert entry["planned"]["how"] == "assumed"
    assert entry["nodes"] == 4
    (alone,) = json.loads(call("plan", "cost", "fast", "--tariff", "1EUR", "--nodes", "2", "--json").stdout)["entries"]
    assert (alone["planned"]["unit"], alone["planned"]["amount"]) == ("runs", 1.0)


def test_a_plan_weighs_kinds_of_nodes_at_sites(call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    data = json.loads(call("plan", "cost", "--plan", "plan.toml", "--json").stdout)
    assert [(e["node"], e["site"]) for e in data["entries"]] == [
        ("fast", "north"), ("fast", "home"), ("slow", "north"), ("slow", "home"),
    ]  # fmt: skip
    assert all(entry["purchase"] and entry["rated"] for entry in data["entries"])
    assert {even["site"] for even in data["equal"]} == {"north", "home"}
    text = call("plan", "carbon", "--plan", "plan.toml").stdout
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "epoch on fast" in text
    typed = json.loads(call("plan", "carbon", "--plan", "plan.toml", "--intensity", "100", "--json").stdout)
    assert {entry["mean_rate"] for entry in typed["entries"]} == {100.0}


def test_kinds_of_nodes_are_weighed_by_one_workload(
    call: Call, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call is not None
    node_run(runs, 4000.0, seconds=40.0, work={"tokens": 4e6}, name="other", labels={"workload": "resnet"})
    (tmp_path / "plan.toml").write_text(PLAN.replace('runs = ["slow"]', 'runs = ["other"]'))
    assert run_commands(["plan", "cost", "--plan", "plan.toml"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "epoch: kinds of nodes are not weighed by different workloads (fast: python train.py; slow: resnet)" in said


@pytest.mark.system  # pure, and slow
def test_what_files_are_called_does_not_change_an_interval(call: Call, tmp_path: Path) -> None:
    widths = []
    for first, second in (("a", "b"), ("x/log", "y/log")):
        for name in (first, second):
            log = tmp_path / f"{name}.csv"
            log.parent.mkdir(exist_ok=True)
            log.write_text("t,w\n" + "".join(f"{1714564800 + k},4000\n" for k in range(61)))
            known = ("--map", "w=node.ac:W", "gain=0.02", "reference=sheet")
            call("import", "csv", log, "--time", "t=unix", *known, "--name", name.replace("/", "-"))
        names = [name.replace("/", "-") for name in (first, second)]
        total = json.loads(call("plan", "cost", *names, "--tariff", "1EUR", "--json").stdout)["total"]["here"]
        widths.append(total["expanded"])
    assert widths[0] == pytest.approx(widths[1])


def test_a_cap_is_modelled_where_only_the_node_was_measured(call: Call, tmp_path: Path) -> None:
    words = ("plan", "cost", "fast", "--tariff", "1EUR", "--cap", "400W", "--json")
    (entry,) = json.loads(call(*words, "--gpu-power", "700W", "--gpus", "8").stdout)["entries"]
    (step,) = entry["planned"]["steps"]
    assert (step["axis"], step["how"]) == ("cap", "assumed")
    assert "70% of the node's power" in step["said"]
    assert step["time"]["value"] > 1 > step["energy"]["value"]
    (tmp_path / "plan.toml").write_text("[nodes.a]\ngpus = 8\ngpu_w = 700\n")
    (by_plan,) = json.loads(call(*words, "--plan", "plan.toml").stdout)["entries"]
    assert by_plan["planned"]["steps"] == entry["planned"]["steps"]


def test_a_statement_is_text_and_latex(call: Call) -> None:
    words = ("plan", "carbon", "fast", "--intensity", "380", "--statement")
    text = call(*words).stdout
    assert "LaTeX:" in text
    assert r"$\pm$" in text
    (told,) = json.loads(call(*words, "--json").stdout)["statements"]
    assert told["sci"]["unit"] == "tokens"
    assert told["not_included"]


@pytest.mark.system  # pure, and slow
def test_a_picture_is_written_and_nothing_of_others_over(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("plan", "carbon", "fast", "--intensity", "380", "--picture")
    assert call(*words, "a.svg").stdout.rstrip().endswith("a.svg")
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    (tmp_path / "b.svg").write_text("mine")
    for name in ("b.svg", "c.txt"):
        assert run_commands([*words, name]) == 2
    assert (tmp_path / "b.svg").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("carbon", "fast"), "here has no intensity; give --intensity table:DE"),
        (("carbon", "fast", "--intensity", "-5"), "cannot be below 0"),
        (("carbon", "fast", "--intensity", "0.3EUR"), "is a price"),
        (("cost", "fast", "--tariff", "0.3"), "no currency is given"),
        (("carbon", "fast", "--intensity", "380", "--pue", "0.5"), "is no PUE"),
        (("carbon", "fast", "--intensity", "380", "--at", "soon"), "is no time"),
        (("carbon", "fast", "--intensity", "380", "--work", "samples=5"), "reports no samples"),
        (("carbon", "fast", "--intensity", "380", "--work", "tokens=0"), "is no work"),
        (("carbon", "fast", "--intensity", "380", "--only", "gpus=2"), "no run has the label gpus=2"),
        (("carbon", "fast", "--intensity", "380", "--work", "gpu_hours=5"), "does not tell its GPUs"),
        (("carbon", "fast", "slow", "--intensity", "380", "--batch", "5"), "no run tells its batch"),
        (("carbon", "fast", "--intensity", "380", "--cap", "nan"), "is not a power"),
        (("carbon", "fast", "--intensity", "380", "--rated", "inf"), "is not a power"),
        (("carbon", "--plan", "none.toml"), "there is no such plan"),
        (("cost", "fast", "--tariff", "1e308EUR", "--json"), "1e+308 EUR/kWh is no rate"),
        (("carbon", "fast", "--intensity", "1e308", "--json"), "1e+308 g/kWh is no rate"),
        (("cost", "fast", "--tariff", "1EUR", "--work", "runs=1e308"), "would take more than 1000 years on 1 node"),
        (("cost", "fast", "--tariff", "1EUR", "--rated", "1e308W", "--json"), "too large to reckon with"),
        (("cost", "fast", "--tariff", "1EUR", "--pue", "1e300"), "it is 1 to 100"),
        (("cost", "fast", "--tariff", "1EUR", "--rated", "10.2"), "'10.2' has no unit; write 10.2W or 10.2kW"),
        (("cost", "fast", "--tariff", "1EUR", "--cap", "400"), "'400' has no unit"),
        (("cost", "fast", "--tariff", "1EUR", "--cap", "400W", "--gpu-power", "700W"), "for a model give --gpus 8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    call: Call, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call is not None  # in its folder, with its runs
    assert run_commands(["plan", *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_cap_is_modelled_by_the_power_of_a_gpu(call: Call, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node_run(runs, 6000.0, seconds=20.0, gpu_w=600.0, gpus=8, name="boards")
    words = ("plan", "carbon", "boards", "--intensity", "380", "--cap", "500W", "--gpu-power")
    low, high = (json.loads(call(*words, watts, "--json").stdout)["entries"][0] for watts in ("600W", "700W"))
    assert low["planned"]["how"] == "assumed"
    assert low["planned"]["time_s"]["value"] < high["planned"]["time_s"]["value"]  # a cap of 5/6 costs less than of 5/7
    assert run_commands([*words, "-3"]) == 2
    assert "is not a power" in capsys.readouterr().err


@pytest.mark.system  # pure, and slow
def test_imported_runs_are_told_to_say_their_workload(
    call: Call, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b32", "b64"):
        log = tmp_path / f"{name}.csv"
        log.write_text("t,w\n" + "".join(f"{1714564800 + k},{int(name[1:]) * 10}\n" for k in range(61)))
        for more in ([], ["-l", "workload=train", "-l", f"batch={name[1:]}"]):
            named = [*more, "--name", name + ("-told" if more else "")]
            call("import", "csv", log, "--time", "t=unix", "--map", "w=node.ac:W", *named)
    words = ["plan", "carbon", "--intensity", "380", "--work", "runs=1", "--batch", "48"]
    assert run_commands([*words, "b32", "b64"]) == 2
    assert "import them with -l workload=NAME" in " ".join(capsys.readouterr().err.split())
    (entry,) = json.loads(call(*words, "b32-told", "b64-told", "--json").stdout)["entries"]
    assert entry["planned"]["how"] == "interpolated"


def test_the_group_lists_both() -> None:
    assert "carbon" in CliRunner().invoke(commands, ["plan", "--help"]).output
