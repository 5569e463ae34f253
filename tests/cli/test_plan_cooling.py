"""`joulelab plan cooling`: a table that fits, where each figure is from, plain data, and errors that say what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import node_run

from joulelab.plan.commands import COMMANDS
from joulelab.plan.cooling import fans
from joulelab.plan.cooling.cooling_command import KINDS, command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

BMC = {"temperature_c": ("degC", 22.0), "fan1_speed_rpm": ("rpm", 8000.0)}


def test_its_kinds_and_its_help_are_those_of_the_planner() -> None:
    assert KINDS == fans.KINDS
    assert command.get_short_help_str(200) == COMMANDS["cooling"]


@pytest.mark.parametrize("more", [(), ("--supply", "70kW", "--margin", "27%", "--pue", "direct-to-chip=1.1")])
def test_a_model_alone_is_marked_as_one_in_a_table_that_fits(call: Call, more: tuple[str, ...]) -> None:
    text = call("plan", "cooling", "--node", "bnl-h100", *more).output
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    rows = [line for line in text.splitlines() if line.startswith("direct-to-chip")]
    assert len(rows) == 2
    assert "model" in rows[0]
    assert "± ?" in rows[0]
    assert "by a model" in text
    assert "10.20 kW x 8766 h" in text  # the nameplate beside it
    if more:
        assert rows[1].split()[2:4] == ["8110", "8110"]  # highest, and at most
        assert rows[1].split()[7] == "6"
        assert "32        8820        8820  77.32 ± ?    5 !" in text
        assert "compare the facility's energies" in " ".join(text.split())


def test_measured_fans_are_marked_as_measured(call: Call, runs: Path) -> None:
    run = node_run(runs, 6000.0, idle_w=6000.0, cooling=BMC)
    words = ("plan", "cooling", run.name, "--fan-max", "900W", "--fan-rpm", "12000", "--to", "direct-to-chip")
    text = call(*words).output
    assert "the inlet is at 22 °C now: measured" in text
    assert "simulated" not in text
    told = json.loads(call(*words, "--json").output)
    assert told["runs"] == [run.name]
    assert [o["fans_by"] for o in told["options"]] == ["speed"]
    assert told["now"]["fans_w"]["value"] == pytest.approx(900 * (8 / 12) ** 3)
    assert told["options"][0]["change_w"]["expanded"] > 0


def test_fans_far_beyond_what_was_seen_are_marked_with_the_nodes_they_cost(call: Call, runs: Path) -> None:
    run = node_run(runs, 6000.0, idle_w=6000.0, fan_w=480.0)
    words = ("plan", "cooling", run.name, "--inlet", "27", "--inlet", "32", "--supply", "60kW")
    text = call(*words).output
    mild, warm = ([line for line in text.splitlines() if line.split()[:2] == ["air", c]] for c in ("27", "32"))
    assert [line.count("~") for line in (*mild, *warm)] == [0, 0, 1, 1]
    assert "~ by the law of fans, over 1.5 times what was seen of them" in " ".join(text.split())
    assert "~" not in call(*words, "--fan-max", "1900W").output


def test_a_run_of_a_twin_is_called_simulated_and_brings_its_model(call: Call, runs: Path) -> None:
    run = node_run(runs, 7000.0, idle_w=7000.0, twin={"name": "bnl-h100", "rated_w": 10200.0})
    text = call("plan", "cooling", run.name).output
    assert "(simulated)" in text
    assert "twin bnl-h100, virtual time" in text
    told = json.loads(call("plan", "cooling", run.name, "--json").output)
    assert (told["simulated"], told["model"]) == ("bnl-h100", "bnl-h100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a run, or a model: --node bnl-h100"),
        (("--node", "bnl-h10"), "bnl-h100"),
        (("--node", "bnl-h100", "--inlet", "50"), "too warm"),
        (("--node", "bnl-h100", "--pue", "water=1.1"), "kinds are air"),
        (("--node", "bnl-h100", "--pue", "air=0.9"), "a PUE is at least 1"),
        (("--node", "bnl-h100", "--margin", "100%"), "--margin"),
        (("--node", "bnl-h100", "--to", "water"), "'water' is not one of"),
        (("--power", "7kW"), "no fan was measured"),
        (("--node", "bnl-h100", "--inlet", "nan"), "is not a finite number"),
        (("--node", "bnl-h100", "--fan-rpm", "inf"), "is not a finite number"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(call: Call, words: tuple[str, ...], said: str) -> None:
    result = call("plan", "cooling", *words, code=2)
    assert said in result.output


def test_a_run_without_fans_names_a_model_to_give(call: Call, runs: Path) -> None:
    run = node_run(runs)
    assert "--node" in call("plan", "cooling", run.name, code=2).output


def test_a_plan_file_says_what_was_not_typed(call: Call, tmp_path: Path) -> None:
    rack = "[rack]\nsupply_w = 70000\nmargin = 0.27\n"
    (tmp_path / "plan.toml").write_text(f'{rack}[nodes.h100]\ntwin = "bnl-h100"\nuse = 0.5\n')
    typed = ("--node", "bnl-h100", "--supply", "70kW", "--margin", "27%", "--use", "50%")
    told = json.loads(call("plan", "cooling", "--plan", tmp_path / "plan.toml", "--json").stdout)
    assert told == json.loads(call("plan", "cooling", *typed, "--json").stdout)
    other = json.loads(call("plan", "cooling", "--plan", tmp_path / "plan.toml", "--use", "100%", "--json").stdout)
    assert other != told


def test_only_runs_of_a_label_count(call: Call, runs: Path) -> None:
    node_run(runs, 6000.0, labels={"gpus": "2"})
    said = call("plan", "cooling", "last", "--node", "bnl-h100", "--only", "gpus=8", "--runs", runs, code=2).stderr
    assert "no run has the label gpus=8 (gpus is 2)" in said
    assert call("plan", "cooling", "last", "--node", "bnl-h100", "--only", "gpus=2", "--runs", runs).stdout
