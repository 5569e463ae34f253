"""`joulelab plan cooling`: the answer first, a table that fits, the source of the figures, and clear refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import node_run

from joulelab.plan.commands import COMMANDS
from joulelab.plan.cooling import cooling_model
from joulelab.plan.cooling.cooling_command import KINDS, command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

BMC = {"temperature_c": ("degC", 22.0), "fan1_speed_rpm": ("rpm", 8000.0)}


def test_its_kinds_and_its_help_are_those_of_the_model() -> None:
    assert KINDS == cooling_model.KINDS
    assert command.get_short_help_str(200) == COMMANDS["cooling"]


@pytest.mark.parametrize("more", [(), ("--inlet", "30"), ("--to", "direct-to-chip", "--inlet", "36")])
def test_an_answer_fits_on_a_screen(call: Call, more: tuple[str, ...]) -> None:
    lines = call("plan", "cooling", "--node", "bnl-h100", *more).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 25
    assert not any("…" in line for line in lines)


def test_the_first_sentence_states_change_share_and_source(call: Call) -> None:
    text = " ".join(call("plan", "cooling", "--node", "bnl-h100", "--inlet", "27").stdout.split())
    assert text.startswith("At 27 °C instead of 23.8 °C inlet a node draws 300 ± 200 W more for its fans (3.6 % of")
    assert "by the fan model of bnl-h100; nothing was measured at 27 °C." in text
    best = " ".join(call("plan", "cooling", "--node", "bnl-h100").stdout.split())
    assert best.startswith("With immersion instead of rear-door cooling a node draws 500 ± 300 W less for its fans")
    vague = " ".join(call("plan", "cooling", "--node", "bnl-h100", "--to", "air").stdout.split())
    assert "does not change significantly (at most 96 W)" in vague


def test_why_prints_all_notes(call: Call) -> None:
    short, long = (call("plan", "cooling", "--node", "bnl-h100", *more).stdout for more in ((), ("--why",)))
    assert short.count("note ") == 3
    assert long.count("note ") == 6
    assert "2.5 to 3" not in " ".join(short.split())
    assert "2.5 to 3" in " ".join(long.split())


def test_measured_fans_are_named_as_the_source(call: Call, runs: Path) -> None:
    run = node_run(runs, 6000.0, idle_w=6000.0, cooling=BMC)
    words = ("plan", "cooling", run.name, "--fan-max", "900W", "--fan-rpm", "12000", "--to", "direct-to-chip")
    text = " ".join(call(*words).stdout.split())
    assert "scaled from the measured fan speed" in text
    assert "imulated" not in text
    data = json.loads(call(*words, "--json").stdout)
    assert data["runs"] == [run.name]
    assert data["inlet_by"] == "measured"
    assert data["now"]["fans_w"]["value"] == pytest.approx(900 * (8 / 12) ** 3)
    assert data["options"][0]["change_w"]["expanded"] > 0
    assert data["answer"] in text


def test_a_run_of_a_twin_is_called_simulated_and_brings_its_model(call: Call, runs: Path) -> None:
    run = node_run(runs, 7000.0, idle_w=7000.0, twin={"name": "bnl-h100", "rated_w": 10200.0})
    assert "(simulated: twin bnl-h100" in " ".join(call("plan", "cooling", run.name).stdout.split())
    data = json.loads(call("plan", "cooling", run.name, "--json").stdout)
    assert (data["simulated"], data["model"]) == ("bnl-h100", "bnl-h100")


def test_a_plan_file_gives_node_efficiency_and_run(call: Call, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('[nodes.h100]\ntwin = "bnl-h100"\nefficiency = 0.95\n')
    given = call("plan", "cooling", "--plan", tmp_path / "plan.toml", "--json").stdout
    assert json.loads(given) == json.loads(
        call("plan", "cooling", "--node", "bnl-h100", "--efficiency", "95%", "--json").stdout
    )
    run = node_run(runs, 6000.0, idle_w=6000.0, cooling=BMC)
    (tmp_path / "plan.toml").write_text(f'[nodes.h100]\ntwin = "bnl-h100"\nruns = "{run.name}"\n')
    data = json.loads(call("plan", "cooling", "--plan", tmp_path / "plan.toml", "--fan-rpm", "12000", "--json").stdout)
    assert data["runs"] == [run.name]


def test_the_next_command_has_the_power_of_the_answer_rounded_up(call: Call) -> None:
    for more in ((), ("--inlet", "27")):
        words = ("plan", "cooling", "--node", "bnl-h100", *more)
        options = json.loads(call(*words, "--json").stdout)["options"]
        best = min(options, key=lambda one: one["change_w"]["value"])
        named_kw = float(call(*words).stdout.partition("--max ")[2].partition("kW")[0])
        assert 0 <= 1e3 * named_kw - best["highest_w"] < 10
