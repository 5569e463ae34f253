"""`joulelab plan rack`: the published case, runs, plan files that are written and read back, and bad input."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.plan.bad_inputs import check_refusal
from tests.plan.measured_runs import node_run
from tests.report.synthetic import make_run

from joulelab.cli.group import run_commands

if TYPE_CHECKING:
    from tests.cli.conftest import Call

PUBLISHED = ("--supply", "70kW", "--rated", "10.2kW", "--margin", "27%", "--nodes", "5", "--max", "8.48kW")
EXAMPLE = Path(__file__).parents[2] / "examples" / "plans" / "bnl-rack.toml"


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_published_case_gives_the_sixth_node(call: Call) -> None:
    printed = call("plan", "rack", *PUBLISHED).stdout
    first = flat(printed).partition(". ")[0]
    assert first.startswith(
        "Plan for 6 nodes: six fit by the measured maximum of 8.48 kW, leaving 27.3 % of 70 kW free"
    )
    assert "five by nameplate" in first
    assert "There are 5 now: one more fits." in printed
    assert len(printed.splitlines()) <= 25
    assert len(call("plan", "rack", *PUBLISHED, "--why").stdout.splitlines()) > len(printed.splitlines())


def test_the_example_gives_the_published_figures(call: Call) -> None:
    from joulelab.papers.paper import read_published

    bnl = read_published("bnl")
    found = json.loads(call("plan", "rack", "--plan", EXAMPLE, "--json").stdout)
    assert found["rack"]["supply_w"] == bnl["rack_supply_w"]
    assert found["rack"]["nodes_now"] == bnl["rack_nodes"]
    assert found["rack"]["margin"] == bnl["rack_margin_published"]
    assert found["node"]["rated_w"] == bnl["rated_w"]
    rows = {row["rule"]: row for row in found["rows"]}
    assert (rows["nameplate"]["nodes"], rows["measured maximum"]["nodes"]) == (5, 6)
    assert round(rows["measured maximum"]["free"], 4) == 0.2731
    assert (found["recommendation"]["nodes"], found["recommendation"]["rule"]) == (6, "measured maximum")
    assert found["cost"]["response"]["source"] == "model"


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
    printed = call("plan", "rack", "train", "--supply", "40kW", "--margin", "10").stdout
    assert printed.startswith("Plan for 4 nodes: four fit at the upper end of the measured maximum")


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
    assert said.startswith("Plan for 5 nodes: five fit at the upper end of the simulated maximum")
    assert "to plan for six, as the reading of 8.4" in said
    assert "The readings are simulated (twin bnl-h100)" in said
    assert "measured maximum" not in said


def test_the_plan_file_of_the_page_is_read(call: Call, runs: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "plan-rack.md"
    (tmp_path / "plan.toml").write_text(page.read_text().partition("```toml\n")[2].partition("```")[0])
    node_run(runs, 6_000.0, gpu_w=500.0, gpus=8)
    told = json.loads(call("plan", "rack", "--plan", "plan.toml", "--json").stdout)
    assert told["title"] == "Rack 7"
    assert [limit["name"] for limit in told["limits"]] == ["breakers", "feed lost", "cooling", "height"]
    assert told["mix"]["nodes"] == 2


# Bad input

NODE = ("--rated", "10kW")
GOOD = ("--supply", "70kW", *NODE)


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (NODE, "config", "a rack without a supply"),
        (("--supply", "70kW"), "config.no-power", "the power of a node is unknown"),
        (("--supply", "-5"), "usage", "'-5' is not a power"),
        (("--supply", "0kW", *NODE), "usage", "'0kW' is not a power"),
        (("--supply", "nankW", *NODE), "usage", "'nankW' is not a power"),
        (("--supply", "lots"), "usage", "'lots' is not a power"),
        (("--supply", "70kVA", *NODE), "usage", "'70kVA' is not a power"),
        (("--supply", "70", *NODE), "usage", "'70' has no unit; write 70W or 70kW"),
        (("--supply", "70kW", "--rated", "10.2"), "usage", "'10.2' has no unit; write 10.2W or 10.2kW"),
        (("--supply", "70kW", "--max", "8480"), "usage", "'8480' has no unit"),
        ((*GOOD, "--gpus", "8", "--gpu-power", "700"), "usage", "'700' has no unit"),
        ((*GOOD, "--gpus", "8", "--gpu-power", "700W", "--cap", "500"), "usage", "'500' has no unit"),
        ((*GOOD, "--gpus", "0"), "usage", "0 is not in the range"),
        ((*GOOD, "--nodes", "-1"), "usage", "-1 is not in the range"),
        ((*GOOD, "--nodes", "five"), "usage", "'five' is not a valid integer"),
        ((*GOOD, "--margin", "100%"), "config", "margin is 1"),
        ((*GOOD, "--margin", "x"), "usage", "'x' is not a share"),
        ((*GOOD, "--percentile", "100"), "config", "percentiles is [100.0]"),
        ((*GOOD, "--percentile", "10"), "config", "percentiles is [10.0]"),
        ((*GOOD, "--confidence", "30%"), "config", "confidence is 0.3"),
        ((*GOOD, "--picture", "a.gif"), "usage", "a.gif is not a picture"),
        (("--supply", "70MW", "--rated", "10W"), "config", "more than 1,000 nodes of 10 W would fit"),
        (("no-such-run", *GOOD), "not-a-run", "no-such-run"),
        (("--plan", "none.toml"), "config", "there is no such plan file"),
    ],
)
def test_a_wrong_option_is_refused_with_a_next_step(call: Call, words: tuple[str, ...], code: str, part: str) -> None:
    check_refusal(["plan", "rack", *words], code, part)


PDU = "{ volts = 208, amps = 50 }"
BARE = "[rack]\nsupply_w = 7e4\n[nodes.a]\nrated_w = 1e4\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("title = 'x'", "the plan file has no [rack]"),
        ("rack = 7", "rack is 7"),
        ("[rak]\nsupply_w = 1", "unknown key 'rak'"),
        ("[rack\n", "not a TOML file"),
        ("[rack]\nmargin = 0.2", "a rack without a supply"),
        ("[rack]\nfeeds = []", "a rack without a supply"),
        ("[rack]\nsupply_w = -5", "plan.toml:2: supply_w is -5"),
        ("[rack]\nsupply_w = '70kW'", "supply_w is '70kW'"),
        ("[rack]\nsupply_w = 7e4\nmargin = 1.0", "plan.toml:3: margin is 1"),
        ("[rack]\nsupply_w = 7e4\nmargin = -0.1", "margin is -0.1"),
        ("[rack]\nsupply_w = 7e4\nothers_w = -1", "others_w is -1"),
        ("[rack]\nsupply_w = 1000\nothers_w = 1000", "no power is left for nodes"),
        ("[rack]\nsupply_w = 1000\nsuply_w = 3", "unknown key 'suply_w'"),
        (f"[rack]\nfeeds = [{PDU}]\nredundancy = 'A/B'", "A/B needs two feeds (there is one)"),
        ("[rack]\nsupply_w = 7e4\nredundancy = 'A/B'", "A/B needs two feeds (there are none)"),
        (f"[rack]\nfeeds = [{PDU}]\nredundancy = '2N'", "redundancy is '2N'"),
        (f"[rack]\nsupply_w = 30000\nfeeds = [{PDU}]", "the feeds cannot supply 30,000 W"),
        ("[rack]\nfeeds = [{ volts = 208 }]", "has no amps"),
        ("[rack]\nfeeds = [{ volts = 0, amps = 50 }]", "volts is 0"),
        ("[rack]\nfeeds = [{ volts = 208, amps = 50, phases = 2 }]", "phases is 2"),
        ("[rack]\nfeeds = 7", "feeds is 7"),
        (f"[rack]\nfeeds = [{PDU}]\ncontinuous = 1.2", "continuous is 1.2"),
        (f"[rack]\nfeeds = [{PDU}]\npower_factor = 0", "power_factor is 0"),
        (f"[rack]\nfeeds = [{PDU}]\nnode_phases = 4", "node_phases is 4"),
        ("[rack]\nsupply_w = 7e4\noutlets = 2.5", "outlets is 2.5"),
        ("[rack]\nsupply_w = 7e4\nnodes_now = -2", "nodes_now is -2"),
        ("[rack]\nsupply_w = 7e4\n[rack.rules]\npercentiles = ['x']", "percentiles is ['x']"),
        ("[rack]\nsupply_w = 7e4\n[rack.rules]\ncaps_w = [-500]", "caps_w is [-500]"),
        ("[rack]\nsupply_w = 7e4\n[rack.rules]\nconfidence = 0.1", "confidence is 0.1"),
        ("[rack]\nsupply_w = 7e4\nnode = 'b'\n[nodes.a]\nrated_w = 1000", "there is no [nodes.b]"),
        ("[rack]\nsupply_w = 7e4\n[nodes.a]\nrated_w = 1\n[nodes.b]\nrated_w = 2", "several kinds of node"),
        ("[rack]\nsupply_w = 7e4\n[nodes.a]\nrated_w = -1", "plan.toml:4: rated_w is -1"),
        ("[rack]\nsupply_w = 7e4\n[nodes.a]\nefficiency = 94", "efficiency is 94"),
        ("[rack]\nsupply_w = 7e4\n[nodes.a]\ngpus = 0", "gpus is 0"),
        (f"{BARE}[[mix]]\nnodes = 2\nnode = 'a'", "has no runs"),
        (f"{BARE}[[mix]]\nnodes = 2", "has no runs"),
        (f"{BARE}[[mix]]\nruns = 'r'", "has no nodes"),
        (f"{BARE}[[mix]]\nnodes = 0\nruns = 'r'", "nodes is 0"),
        (f"{BARE}[[mix]]\nnodes = 2\nruns = 'r'\nshare = 1.5", "share is 1.5"),
        (f"{BARE}[[mix]]\nnodes = 2\nruns = 'r'\nshares = 1", "unknown key 'shares'"),
        (f"{BARE}[[mix]]\nnodes = 2\nruns = 'r'\ncount = -1", "count is -1"),
        (f"{BARE}[[mix]]\nnodes = 2\nruns = 'r'\ncount = 1000000", "count is 1000000"),
    ],
)
def test_a_wrong_plan_file_is_refused_with_a_next_step(call: Call, tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    check_refusal(["plan", "rack", "--plan", "plan.toml"], "config", part)


def test_all_mistakes_of_a_file_are_listed_at_once(call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text("[rack]\nmargin = 2\nothers_w = -1\ncooling_w = 0\n")
    assert len(check_refusal(["plan", "rack", "--plan", "plan.toml"], "config", "margin is 2")["mistakes"]) == 3


def test_runs_at_the_wall_and_behind_the_supplies_are_not_mixed(call: Call, runs: Path) -> None:
    found = [node_run(runs, 6_000.0, scope=scope) for scope in ("node.ac", "node.dc")]
    check_refusal(["plan", "rack", *found, *GOOD], "config.mixed-sides", "behind the supplies (DC)")


def test_parts_of_a_node_are_not_a_node(call: Call, runs: Path) -> None:
    check_refusal(["plan", "rack", make_run(runs), *GOOD], "config", "whole node")


def test_a_supply_that_carries_no_node_is_questioned(call: Call) -> None:
    printed = flat(call("plan", "rack", "--supply", "70W", "--max", "8.48kW").stdout)
    assert printed.startswith("No node fits: one draws 8.48 kW")
    assert "Check the units" in printed
    assert (
        json.loads(call("plan", "rack", "--supply", "70W", "--max", "8.48kW", "--json").stdout)["rows"][1]["nodes"] == 0
    )
