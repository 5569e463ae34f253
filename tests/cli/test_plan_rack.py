"""`joulelab plan rack`: the published case, runs, plan files that are written and read back, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import node_run

from joulelab.cli.group import run_commands

if TYPE_CHECKING:
    from tests.cli.conftest import Call

PUBLISHED = ("--supply", "70kW", "--rated", "10.2kW", "--margin", "27%", "--nodes", "5", "--max", "8.48kW")
EXAMPLE = Path(__file__).parents[2] / "examples" / "plans" / "bnl-rack.toml"


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_published_case_gives_the_sixth_node(call: Call) -> None:
    said = flat(call("plan", "rack", *PUBLISHED).stdout)
    assert "6 nodes fit by the measured maximum of 8.480 kW each, 5 by the nameplate of 10.20 kW." in said
    assert "27.31 % of the supply stay free, 27.0 % have to; supply keeps out one more." in said
    assert "There are 5 now: one more fits." in said


def test_the_example_says_the_same_as_the_published_figures(call: Call) -> None:
    from joulelab.papers.paper import read_published

    bnl = read_published("bnl")
    told = json.loads(call("plan", "rack", "--plan", EXAMPLE, "--json").stdout)
    assert told["rack"]["supply_w"] == bnl["rack_supply_w"]
    assert told["rack"]["nodes_now"] == bnl["rack_nodes"]
    assert told["rack"]["margin"] == bnl["rack_margin_published"]
    assert told["node"]["rated_w"] == bnl["rated_w"]
    rows = {row["rule"]: row for row in told["rows"]}
    assert (rows["nameplate"]["nodes"], rows["measured maximum"]["nodes"]) == (5, 6)
    assert round(rows["measured maximum"]["free"], 4) == 0.2731
    assert told["response"]["source"] == "model"


def test_a_run_answers_and_its_plan_file_answers_the_same(call: Call, runs: Path, tmp_path: Path) -> None:
    run = node_run(runs, lambda s: 7_000.0 if int(s / 5) % 2 else 6_000.0, seconds=200.0, name="train")
    words = ("--supply", "40kW", "--margin", "10", "--percentile", "p60", "--confidence", "0.9", "--json")
    (tmp_path / "kept").mkdir()
    first = json.loads(call("plan", "rack", run, *words, "--save", "kept/plan.toml").stdout)
    kept = tomllib.loads((tmp_path / "kept" / "plan.toml").read_text())
    assert kept["rack"] == {"supply_w": 40_000, "margin": 0.1, "rules": {"percentiles": [60], "confidence": 0.9}}
    assert kept["nodes"]["node"]["runs"] == [f"../runs/{run.name}"]
    assert json.loads(call("plan", "rack", "--plan", "kept/plan.toml", "--json").stdout) == first
    rows = {row["rule"]: row for row in first["rows"]}
    assert rows["measured maximum"]["nodes"] == 5
    assert rows["p60"]["exceed"]["confidence"] == 0.9
    assert (
        "5 nodes fit by the measured maximum"
        in call("plan", "rack", "train", "--supply", "40kW", "--margin", "10").stdout
    )


def test_a_kept_plan_names_the_runs_that_were_chosen(call: Call, runs: Path, tmp_path: Path) -> None:
    cool = node_run(runs, 5_000.0, seconds=20.0, labels={"batch": "8"}, name="train")
    hot = node_run(runs, 7_000.0, seconds=20.0, labels={"batch": "64"}, name="train")
    words = ("--supply", "40kW", "--json")
    first = call("plan", "rack", cool, hot, "--only", "batch=8", *words, "--save", "only.toml").stdout
    assert call("plan", "rack", "--plan", "only.toml", "--json").stdout == first
    last = call("plan", "rack", "last", *words, "--save", "last.toml").stdout
    node_run(runs, 3_000.0, seconds=20.0)
    assert call("plan", "rack", "--plan", "last.toml", "--json").stdout == last
    assert run_commands(["plan", "rack", "--plan", "only.toml", "--only", "batch=8", "--save", "again.toml"]) == 2


def test_a_table_fits_eighty_columns(call: Call, runs: Path) -> None:
    node_run(runs, 8_888.8, seconds=30.0, gpu_w=600.0, gpus=8)
    said = call("plan", "rack", "last", "--supply", "1.23456MW", "--rated", "12345.6W", "--cap", "600W").stdout
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said


@pytest.mark.system  # pure, and slow
def test_a_picture_is_drawn_by_its_ending(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call("plan", "rack", *PUBLISHED, "--picture", "rack.svg")
    assert (tmp_path / "rack.svg").read_bytes().startswith(b"<?xml")


def test_only_files_of_ours_are_written_over(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("x = 1\n")
    assert "not a plan file by joulelab" in call("plan", "rack", *PUBLISHED, "--save", "mine.toml", code=2).stderr
    assert (tmp_path / "mine.toml").read_text() == "x = 1\n"
    call("plan", "rack", *PUBLISHED, "--save", "mine.toml", "--force")
    call("plan", "rack", *PUBLISHED, "--save", "mine.toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rated", "10kW"), "a rack without a supply"),
        (("--supply", "70kW"), "a rack without nodes"),
        (("--supply", "-5"), "'-5' is not a power"),
        (("--supply", "lots"), "'lots' is not a power"),
        (("--supply", "70"), "'70' has no unit; write 70W or 70kW"),
        (("--supply", "70kW", "--rated", "10.2"), "'10.2' has no unit; write 10.2W or 10.2kW"),
        (("--supply", "70kW", "--max", "8480"), "'8480' has no unit"),
        (("--supply", "70kW", "--rated", "10kW", "--margin", "100%"), "margin is 1"),
        (("--supply", "70kW", "--rated", "10kW", "--margin", "x"), "'x' is not a share"),
        (("--supply", "70kW", "--rated", "10kW", "--percentile", "100"), "there is no percentile 100"),
        (("--supply", "70kW", "--rated", "10kW", "--picture", "a.gif"), "a.gif is no picture"),
        (("--supply", "70MW", "--rated", "10W"), "more than 10000 nodes of 10 W would fit"),
        (("--plan", "none.toml"), "there is no such plan file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call: Call, words: tuple[str, ...], said: str) -> None:
    assert said in call("plan", "rack", *words, code=2).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = 'x'", "the plan file has no [rack]"),
        ("[rack]\nsupply_w = 1e4\nnode = 'b'\n[nodes.a]\nrated_w = 1000", "there is no [nodes.b]"),
        ("[rack]\nsupply_w = 1e4\n[nodes.a]\nrated_w = 1\n[nodes.b]\nrated_w = 2", "several kinds of node"),
        ("[rack]\nsupply_w = 1e4\n[nodes.a]\nrated_w = -1", "plan.toml:4: rated_w is -1"),
        ("[rack]\nsupply_w = 1e4\n[nodes.a]\nrated_w = 10\n[[mix]]\nnodes = 2\nnode = 'a'", "has no runs"),
        ("rack = 7", "rack is 7"),
        ("[rak]\nsupply_w = 1", "unknown key 'rak'"),
    ],
)
def test_what_is_wrong_in_a_plan_file_is_said(call: Call, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    assert said in call("plan", "rack", "--plan", "plan.toml", code=2).stderr


def test_a_plan_file_keeps_all_that_it_says_when_saved(call: Call, tmp_path: Path) -> None:
    text = """
title = "Rack 7"
[rack]
feeds = [{ name = "A", volts = 415, amps = 63 }, { name = "B", volts = 415, amps = 63 }]
redundancy = "A/B"
cooling_w = 40000.5
node = "dgx h100"
[nodes."dgx h100"]
rated_w = 10200
[[sites]]
name = "here"
"""
    (tmp_path / "a.toml").write_text(text)
    call("plan", "rack", "--plan", "a.toml", "--margin", "5%", "--save", "b.toml")
    wanted = tomllib.loads(text)
    wanted["rack"]["margin"] = 0.05
    assert tomllib.loads((tmp_path / "b.toml").read_text()) == wanted


@pytest.mark.system
def test_a_burn_of_the_twin_gives_the_sixth_node_and_is_called_simulated(call: Call, tmp_path: Path) -> None:
    study = 'name = "burn"\nrepeats = 1\n[workloads.burn]\nreference = "burn"\n'
    (tmp_path / "burn.toml").write_text(
        f'{study}parameters = {{ seconds = 600, device = "cuda", host_memory = 0.87 }}\n'
    )
    call("study", "run", "burn.toml", "--twin", "bnl-h100", "--no-figures")
    said = flat(call("plan", "rack", "burn-bnl-h100", "--supply", "70kW", "--margin", "27%", "--nodes", "5").stdout)
    assert said.startswith("Simulated: twin bnl-h100, virtual time. 6 nodes fit by the simulated maximum of 8.4")
    assert "5 by the nameplate of 10.20 kW" in said
    assert "Only 5 fit if" in said
    assert "measured maximum" not in said


def test_the_plan_file_of_the_page_is_read(call: Call, runs: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "plan-rack.md"
    (tmp_path / "plan.toml").write_text(page.read_text().partition("```toml\n")[2].partition("```")[0])
    node_run(runs, 6_000.0, gpu_w=500.0, gpus=8)
    told = json.loads(call("plan", "rack", "--plan", "plan.toml", "--json").stdout)
    assert told["title"] == "Rack 7"
    assert [limit["name"] for limit in told["limits"]] == ["breakers", "feed lost", "cooling", "height"]
    assert told["mix"]["nodes"] == 2
