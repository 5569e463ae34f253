"""Bad inputs that the commands of `joulelab plan` share: each is refused clearly, and the same with --json.

Plan files, names and kinds of runs, units, pictures, labels and cooling; each command has a table of its own beside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.plan.bad_inputs import check_refusal
from tests.plan.measured_runs import node_run
from tests.report.synthetic import make_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Call

BMC = {"temperature_c": ("degC", 22.0), "fan1_speed_rpm": ("rpm", 8000.0)}
TWIN = {"name": "bnl-h100", "rated_w": 10200.0}
SUPPLY = ("--supply", "70kW")
QUEUE = ("--nodes", "4", "--budget", "40kW")


def make_damaged_run(runs: Path) -> Path:
    run = node_run(runs)
    journal = next(run.glob("*/pdu.power.0.journal"))
    journal.write_bytes(journal.read_bytes()[:-700])
    return run


MADE_RUNS: dict[str, Callable[[Path], Path]] = {
    "WALL": node_run,
    "DC": lambda runs: node_run(runs, scope="node.dc"),
    "GPU": lambda runs: node_run(runs, scope="gpu:0"),
    "RACK": lambda runs: node_run(runs, scope="rack"),
    "FANS": lambda runs: node_run(runs, 6000.0, idle_w=6000.0, cooling=BMC),
    "TWIN": lambda runs: node_run(runs, twin=TWIN),
    "LABEL": lambda runs: node_run(runs, labels={"gpus": "2"}),
    "NEGATIVE": lambda runs: node_run(runs, lambda s: -50.0 if 7.0 < s <= 8.0 else 5000.0),
    "DAMAGED": make_damaged_run,
    "LIVE": lambda runs: make_run(runs, state="live"),
    "ESTIMATE": lambda runs: make_run(runs, gpus=0, cpus=0, estimate=True),
    "UNMEASURED": lambda runs: make_run(runs, gpus=0, cpus=0),
}

# Arguments after `joulelab plan`, code, words of the text. Words in capitals are runs that MADE_RUNS makes.
BAD_RUNS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no such run": (("rack", "nosuchrun", *SUPPLY), "not-a-run", "nosuchrun"),
    "no run at all": (("cost", "last", "--tariff", "0.3EUR"), "not-a-run", "no run"),
    "a run named twice and one that is none": (
        ("cost", "WALL", "WALL", "nope", "--tariff", "0.3EUR"),
        "not-a-run",
        "nope",
    ),
    "a damaged run": (("rack", "DAMAGED", *SUPPLY), "config.damaged", "has changed since it was recorded"),
    "a damaged run, its cost": (("cost", "DAMAGED", "--tariff", "0.3EUR"), "config.damaged", "cannot be planned with"),
    "a live run": (("rack", "LIVE", *SUPPLY), "config.live-run", "it is still running"),
    "a live run, its cost": (("cost", "LIVE", "--tariff", "0.3EUR"), "config.live-run", "wait for its end"),
    "an estimate only": (("rack", "ESTIMATE", *SUPPLY), "config.no-power", "only estimated"),
    "no power": (("cost", "UNMEASURED", "--tariff", "0.3EUR"), "config.no-power", "no power was measured"),
    "impossible power": (("rack", "NEGATIVE", *SUPPLY), "config.impossible-power", "falls to -50 W"),
    "AC and DC": (("rack", "WALL", "DC", *SUPPLY), "config", "DC"),
    "parts of a node": (("rack", "GPU", *SUPPLY), "config", "gpu:0"),
    "a whole rack for a node": (("rack", "RACK", *SUPPLY), "config", "measured only rack"),
    "parts of a node in a queue": (("queue", "GPU", *QUEUE), "config.no-whole-node", "measured only node1 gpu:0"),
    "AC and DC in a queue": (("queue", "WALL", "DC", *QUEUE), "config.mixed-sides", "the same side"),
    "simulated and measured": (("rack", "WALL", "TWIN", *SUPPLY), "config.simulated", "simulated"),
    "simulated and measured, their cost": (("cost", "TWIN", "WALL", "--tariff", "0.3EUR"), "config.simulated", "twin"),
    "a label that no run has": (("rack", "LABEL", *SUPPLY, "--only", "gpus=8"), "config.no-such-label", "gpus is 2"),
    "a label without a value": (("rack", "LABEL", *SUPPLY, "--only", "gpus"), "usage", "gpus"),
    "a picture of another format": (("rack", "WALL", *SUPPLY, "--picture", "rack.gif"), "usage", ".pdf, .svg or .png"),
    "a picture over another file": (("rack", "WALL", *SUPPLY, "--picture", "mine.png"), "config", "mine.png"),
}

BAD_UNITS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a power without a unit": (("rack", "--supply", "70", "--max", "8kW"), "usage", "write 70W or 70kW"),
    "a power of zero": (("rack", "--supply", "0W", "--max", "8kW"), "usage", "is not a power"),
    "a negative power": (("rack", "--supply=-70kW", "--max", "8kW"), "usage", "is not a power"),
    "an infinite power": (("rack", "--supply", "1e999W", "--max", "8kW"), "usage", "not a finite power"),
    "another unit": (("rack", "--supply", "70kVA", "--max", "8kW"), "usage", "write it as 70kW"),
    "a decimal comma": (("rack", "--supply", "70,5kW", "--max", "8kW"), "usage", "is not a power"),
    "a share above 100 %": (("rack", *SUPPLY, "--max", "8kW", "--margin", "127%"), "usage", "more than 100 %"),
    "a share of 1": (("rack", *SUPPLY, "--max", "8kW", "--margin", "1"), "usage", "1 % or 100 %"),
    "a share in words": (("rack", *SUPPLY, "--max", "8kW", "--margin", "some"), "usage", "is not a share"),
    "an unknown option": (("rack", *SUPPLY, "--max", "8kW", "--marign", "5%"), "usage", "--marign"),
    "an unknown command": (("racks",), "usage", "racks"),
}

BAD_COOLING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "no node": ((), "config", "name a run, or name the model of the node"),
    "no such model": (("--node", "bnl-h10"), "config", "did you mean 'bnl-h100'?"),
    "a power without fans": (("--power", "7kW"), "config", "the fans of the node are not known"),
    "a power beside a run": (("WALL", "--node", "bnl-h100", "--power", "7kW"), "config", "leave out --power"),
    "a power of another node": (("--node", "bnl-h100", "--power", "20kW"), "config", "is not a bnl-h100"),
    "an inlet as warm as the exhaust": (("--node", "bnl-h100", "--inlet", "44"), "config", "too warm"),
    "an inlet in words": (("--node", "bnl-h100", "--inlet", "warm"), "usage", "not a valid number"),
    "an inlet that is not finite": (("--node", "bnl-h100", "--inlet", "nan"), "usage", "not a finite number"),
    "an inlet in Fahrenheit": (("--node", "bnl-h100", "--inlet", "75"), "usage", "not in the range"),
    "an unknown cooling": (("--node", "bnl-h100", "--to", "water"), "usage", "is not one of"),
    "an immersed node": (("--node", "bnl-h100", "--now", "immersion"), "config", "no fans to start from"),
    "nothing to compare": (("--node", "bnl-h100", "--to", "rear-door"), "config", "nothing to compare"),
    "an efficiency of 10 %": (("--node", "bnl-h100", "--efficiency", "10%"), "config", "50 to 100 %"),
    "several runs": (("WALL", "DC", "--node", "bnl-h100"), "config.several-runs", "name one with a typical load"),
    "parts of a node": (("GPU", "--node", "bnl-h100"), "config.no-whole-node", "measured only node1 gpu:0"),
    "no fan": (("WALL", "--inlet-now", "22"), "config", "no fan was measured"),
    "no inlet": (("WALL",), "config", "--inlet-now 22"),
    "a speed without a power": (("FANS",), "config", "--fan-max"),
    "a speed without its full speed": (("FANS", "--fan-max", "900W"), "config", "--fan-rpm"),
    "a full speed that is too low": (("FANS", "--fan-max", "900W", "--fan-rpm", "4000"), "config", "turn faster"),
    "an option that was removed": (("--node", "bnl-h100", "--supply", "70kW"), "usage", "--supply"),
}  # fmt: skip

RACK = "[rack]\nsupply_w = 70000\n"
NODES = "[nodes.h100]\nrated_w = 10200\n"

# The text of a plan file, code, words of the text.
BAD_PLAN_FILES: dict[str, tuple[str, str, str]] = {
    "not TOML": ("[rack\n", "config.not-toml", "plan.toml:1"),
    "not text": ("\udcff", "config.not-toml", "UTF-8"),
    "an unknown table": (f"{RACK}[racks]\n", "config.unknown-key", "did you mean 'rack'?"),
    "an unknown key": (f"{RACK}suply_w = 3\n{NODES}", "config.unknown-key", "plan.toml:3: unknown key 'suply_w'"),
    "a key of another table": (f"supply_w = 3\n{RACK}{NODES}", "config.misplaced-key", "it belongs to [rack]"),
    "an unknown key of a node": (f"{RACK}{NODES}effciency = 0.9\n", "config.unknown-key", "did you mean 'efficiency'?"),
    "the name of a node inside": (f'{RACK}{NODES}name = "a"\n', "config.unknown-key", "unknown key 'name'"),
    "a node that is no table": (f"{RACK}[nodes]\nh100 = 3\n", "config.wrong-value", "as a table: [nodes.h100]"),
    "nodes that are a list": (f"{RACK}[[nodes]]\nrated_w = 3\n", "config.wrong-value", "write it as a table: [nodes]"),
    "a rack that is no table": ("rack = 3\n", "config.wrong-value", "write it as a table: [rack]"),
    "a text for a number": (f'[rack]\nsupply_w = "70kW"\n{NODES}', "config.wrong-value", "give a number above 0"),
    "a negative number": (f"{RACK}[nodes.h100]\nrated_w = -1\n", "config.wrong-value", "rated_w is -1"),
    "a number that is not finite": (f"{RACK}[nodes.h100]\nrated_w = inf\n", "config.wrong-value", "rated_w is inf"),
    "an efficiency in percent": (f"{RACK}{NODES}efficiency = 94\n", "config.wrong-value", "at most 1: 0.94"),
    "half a GPU": (f"{RACK}{NODES}gpus = 0.5\n", "config.wrong-value", "give a whole number of at least 1"),
    "an empty name of a run": (f'{RACK}{NODES}runs = [""]\n', "config.wrong-value", "none of them empty"),
    "an empty title": (f'title = ""\n{RACK}{NODES}', "config.wrong-value", "not empty"),
    "no rack": (NODES, "config.no-rack", "the plan file has no [rack]"),
    "several nodes": (f"{RACK}{NODES}[nodes.a100]\nrated_w = 6500\n", "config.several-nodes", 'node = "h100"'),
    "a node that is not there": (f'{RACK}node = "h10"\n{NODES}', "config.unknown-node", "did you mean 'h100'?"),
    "both names of the queue": (f"{RACK}{NODES}[queue]\nnodes = 3\n[schedule]\nnodes = 3\n", "config", "old name"),
    "a mistake in a table of another command": (f"{RACK}{NODES}[queue]\nnode = 3\n", "config.unknown-key", "'nodes'"),
}  # fmt: skip


def fill_runs(words: tuple[str, ...], runs: Path) -> list[str]:
    """Make the runs that words in capitals stand for, each once."""
    made: dict[str, str] = {}
    for word in words:
        if word in MADE_RUNS and word not in made:
            made[word] = MADE_RUNS[word](runs).name
    return [made.get(word, word) for word in words]


@pytest.mark.parametrize("kind", [*BAD_RUNS, *BAD_UNITS])
def test_a_bad_run_or_unit_is_refused(call: Call, runs: Path, tmp_path: Path, kind: str) -> None:
    words, code, text = {**BAD_RUNS, **BAD_UNITS}[kind]
    (tmp_path / "mine.png").write_bytes(b"another program's")
    check_refusal(["plan", *fill_runs(words, runs)], code, text)
    assert (tmp_path / "mine.png").read_bytes() == b"another program's"
    assert not (tmp_path / "rack.gif").exists()


@pytest.mark.parametrize("kind", BAD_COOLING)
def test_a_bad_input_of_cooling_is_refused(call: Call, runs: Path, kind: str) -> None:
    words, code, text = BAD_COOLING[kind]
    check_refusal(["plan", "cooling", *fill_runs(words, runs)], code, text)


@pytest.mark.parametrize("kind", BAD_PLAN_FILES)
def test_a_bad_plan_file_is_refused(call: Call, tmp_path: Path, kind: str) -> None:
    text, code, words = BAD_PLAN_FILES[kind]
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    check_refusal(["plan", "rack", "--plan", tmp_path / "plan.toml"], code, words)


def test_a_plan_file_that_is_not_there_is_refused(call: Call) -> None:
    check_refusal(["plan", "rack", "--plan", "none.toml"], "config", "none.toml")


def test_all_mistakes_of_a_plan_file_are_listed_with_their_lines(call: Call, tmp_path: Path) -> None:
    text = "titel = 'x'\n[rack]\nsupply_w = -1\n[nodes.a]\nrated_w = 0\n[queue]\nnode = 3\n"
    (tmp_path / "plan.toml").write_text(text)
    for command in ("rack", "cost", "queue", "cooling"):
        error = check_refusal(["plan", command, "--plan", tmp_path / "plan.toml"], "config.several", "plan.toml:1")
        assert [str(one["where"]).rpartition(":")[2] for one in error["mistakes"]] == ["1", "3", "5", "7"]


@pytest.mark.parametrize(("old", "new"), [("schedule", "queue"), ("carbon", "cost")])
def test_an_old_command_is_a_hidden_alias(call: Call, old: str, new: str) -> None:
    assert f"  {old} " not in call("plan", "--help").stdout
    pages = [call("plan", name, "--help").stdout.split("\n", 1)[1] for name in (old, new)]
    assert pages[0] == pages[1]


def test_an_old_plan_file_with_schedule_opens(call: Call, tmp_path: Path) -> None:
    from joulelab.plan.plan_file import read_plan_file

    found: list[Any] = []
    for name in ("schedule", "queue"):
        (tmp_path / "plan.toml").write_text(f"[{name}]\nnodes = 20\nbudget_w = 100000\n")
        found.append(read_plan_file(tmp_path / "plan.toml", need="queue").queue)
    assert found[0] == found[1]
    assert found[0].nodes == 20
