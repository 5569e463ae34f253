"""Node files: workloads, meters, cooling and sources; changes from outside; what is wrong is named; joulelab's own."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.twin import nodefile
from joulelab.twin.flaws import MountedMeter
from joulelab.twin.model import PRESETS, Cooling, Cpu, Dram, Gpu, Host, Node, Supply
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.workload_progress import RunRequest, Stage, WorkloadModel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my-node.toml"
WORKLOAD = "[workloads.a]\nparameters = {}\nepochs = 1\n[[workloads.a.stages]]\nseconds = 1\n"
NODE = (
    WORKLOAD
    + """
cpu = 0.5
[[gpu]]
model = "rtx6000"
count = 2
slowdown = [0.05, 3.0]
active_w = 50
[cooling]
kind = "rear-door"
inlet_c = 20
[meters.pdu]
family = "snmp"
ask_s = 60
flaws = { period_s = 60, window_s = 0 }
options = { vendor = "apc" }
[sources]
"gpu.idle_w" = "a data sheet"
"""
)


def test_all_tables_are_read() -> None:
    found = nodefile.parse_node('title = "two"\ncalibrated = ["x.y"]\nchosen = ["x.z"]\n' + NODE, "test")
    assert (found.title, found.calibrated, found.chosen) == ("two", ("x.y",), ("x.z",))
    assert found.sources == {"gpu.idle_w": "a data sheet"}
    assert [(gpu.slowdown, gpu.active_w) for gpu in found.node.gpus] == [((0.05, 3.0), 50.0)] * 2
    assert found.node.cooling == Cooling(kind="rear-door", inlet_c=20)
    assert found.workloads == {"a": WorkloadModel(stages=(Stage(seconds=1.0, cpu=0.5),), epochs=1, parameters={})}
    meter = found.meters["pdu"]
    assert (meter.family, meter.point, meter.ask_s, meter.options) == ("snmp", "node.ac", 60, {"vendor": "apc"})
    assert (meter.flaws.period_s, meter.flaws.window_s, meter.flaws.quantum_w) == (60, 0, 1)


@every_row(
    ("text", "says"),
    [
        ("[cooling]\nkind = 'watr'", r"here\.toml:2: kind is 'watr'; valid: air"),
        ("[cooling]\ninlet = 3", "did you mean 'inlet_c'"),
        ("[cooling]\ninlet_c = 60", "warmer than the inlet"),
        ("[[gpu]]\nslowdwn = [1, 2]", "did you mean 'slowdown'"),
        ("[[gpu]]\nslowdown = [1]", r"2: slowdown is \[1\]; give a list of 2 numbers"),
        ("[[gpu]]\nactive_w = 10", "not between idle and full load"),
        (
            "[workloads.a]\nparameters = {}",
            r"has no stages; write each as a table of its own: \[\[workloads\.a\.stages\]\]",
        ),
        ("[workloads]\na = 3", r"\[workloads\.a\]"),
        (WORKLOAD.replace("epochs", "epoch"), "did you mean 'epochs'"),
        (WORKLOAD + "busi = 1", "stage 1.*did you mean 'busy'|did you mean 'busy'"),
        (WORKLOAD + "busy = 2", "between 0 and 1"),
        (WORKLOAD + "each = 'day'", "6: each is 'day'; .*valid: run, epoch"),
        (WORKLOAD.replace("{}", "{ n = 'x' }"), "2: n is 'x'; give a number"),
        ("[meters.m]\nfamly = 'nvml'", "did you mean 'family'"),
        ("[meters.m]\nask_s = 1", "needs its family"),
        ("[meters.m]\nfamily = 'x'\npoint = 'node.acc'", r"did you mean 'node\.ac'"),
        ("[meters.m]\nfamily = 'x'\npoint = 'gpu:9'", "no point 'gpu:9'"),
        ("[meters.m]\nfamily = 'x'\nflaws = { perod_s = 1 }", "did you mean 'period_s'"),
        ("[meters.m]\nfamily = 'x'\nflaws = { period_s = -1 }", "period_s is -1, negative"),
        ("[meters.m]\nfamily = 'x'\nask_s = 'often'", "3: ask_s is 'often'; give a number"),
        ("[meters.m]\nfamily = 'x'\nask_s = 0", r"meters\.m\.ask_s is 0, not above 0"),
        (WORKLOAD.replace("seconds = 1", "seconds = inf"), r"workloads\.a\.stages 1\.seconds is inf, not a finite"),
        (WORKLOAD.replace("seconds = 1", "seconds = nan"), "seconds is nan, not a finite"),
        (WORKLOAD.replace("seconds = 1", "seconds = 1e300"), r"seconds is 1e\+300, more than 1e\+09 s"),
        (WORKLOAD.replace("seconds = 1", "seconds = -1"), "seconds is -1, negative"),
        (WORKLOAD.replace("{}", "{ images = 1e23 }"), r"parameters\.images is 1e\+23, more than 1e\+15"),
        (WORKLOAD.replace("epochs = 1", f"epochs = 1{400 * '0'}"), "epochs is inf"),
        (WORKLOAD + "epohc = { rate = 2 }", "no stage 'epohc'"),
        ("[host]\nmax_w = 1e9", r"host\.max_w is 1e\+09, more than 1e\+06 W"),
        ("[host]\nidle_w = -100", r"host\.idle_w is -100, negative"),
        ("[[gpu]]\ncount = 0", "2: count is 0; give a whole number from 1 to 64"),
        ("[[gpu]]\ncount = 100000", "count is 100000"),
        ("[[gpu]]\ncount = 40\n[[gpu]]\ncount = 40", "there are 80 GPUs in all; take at most 64"),
        ("[[gpu]]\nmodel = 'rtx600'", r"2: there is no GPU model 'rtx600'; did you mean 'rtx6000'"),
        ("calibrated = 'x.y'", "1: calibrated is 'x.y'; give a list of texts"),
        ("calibrated = [3]", "give a list of texts"),
        ("[sources]\nx = 3", "2: x is 3; give a text, in quotes"),
        ("title = 3", "1: title is 3; give a text, in quotes"),
        ("[metres.m]\nfamily = 'x'", "did you mean 'meters'"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        nodefile.parse_node(text, "here.toml")
    assert "here.toml" in str(raised.value)


def test_all_mistakes_are_told_at_once() -> None:
    text = "spred = 1\ninlet_c = 3\n[[gpu]]\nmodel = 'x'\n[[gpu]]\nidle_w = 'low'\ncount = 0\n[host]\nmax_w = -1\n"
    with pytest.raises(ConfigError) as raised:
        nodefile.parse_node(text + "[profiles]\ngpu = 'saw'\n[meters.m]\npoint = 'x'\n", "f")
    places = [str(one).partition(": ")[0] for one in raised.value.mistakes]
    assert places == ["f:1", "f:2", "f:4", "f:6", "f:7", "f:9", "f:11", "f:12"]
    assert "it belongs to [cooling]" in str(raised.value)


def test_numbers_that_may_be_negative_or_endless_are_taken() -> None:
    flaws = "flaws = { gain_error = -0.01, offset_w = -2, phase_s = -0.1, silent_at_s = 1, silent_for_s = inf }"
    found = nodefile.parse_node(f"seed = -3\n[cooling]\ninlet_c = -5\n[meters.m]\nfamily = 'x'\n{flaws}", "t")
    assert found.meters["m"].flaws.offset_w == -2
    assert found.node.cooling.inlet_c == -5


def test_a_stage_that_there_is_not_is_told_with_those_that_there_are() -> None:
    text = WORKLOAD + "name = 'epoch'"
    with pytest.raises(ConfigError, match=r"no stage 'epohc'.*did you mean 'epoch'"):
        nodefile.parse_node(text, "t", {"workloads": {"a": {"stages": {"epohc": {"seconds": 3}}}}})


def test_changes_go_into_tables_and_into_each_of_a_list() -> None:
    changes: dict[str, Any] = {"gpu": {"idle_w": 30}, "cooling": {"inlet_c": 35}, "spread": 0.5}
    changes["workloads"] = {"a": {"stages": {"seconds": 7}}}
    found, before = nodefile.parse_node(NODE, "t", changes), nodefile.parse_node(NODE, "t")
    assert [gpu.idle_w for gpu in found.node.gpus] == [30, 30]
    assert [gpu.idle_w for gpu in before.node.gpus] == [18, 18]
    assert (found.node.cooling.inlet_c, found.node.cooling.kind, found.node.spread) == (35, "rear-door", 0.5)
    assert found.workloads["a"].stages[0].seconds == 7
    with pytest.raises(ConfigError, match="did you mean 'idle_w'"):
        nodefile.parse_node(NODE, "t", {"gpu": {"idel_w": 30}})


def test_nodes_are_found_by_name_or_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(NODE)
    assert len(nodefile.find_node(str(tmp_path / "mine.toml")).node.gpus) == 2
    with pytest.raises(ConfigError, match=r"there is no node 'gdansk'.*did you mean 'gdansk-rtx6000'"):
        nodefile.find_node("gdansk")
    with pytest.raises(ConfigError, match="there is no such node file"):
        nodefile.find_node(str(tmp_path / "other.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a TOML file"):
        nodefile.find_node(str(tmp_path / "binary.toml"))


def roots(found: nodefile.Description) -> dict[str, set[str]]:
    """Return what a source may be of: tables and their keys."""
    parts = {"gpu": Gpu, "cpu": Cpu, "dram": Dram, "host": Host, "cooling": Cooling, "supply": Supply}
    told = {name: {each.name for each in fields(kind)} for name, kind in parts.items()}
    told["gpu"] |= {"model", "count"}
    return told | {"meters": set(found.meters)}


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("name", [*nodefile.list_own_nodes(), str(EXAMPLE)])
def test_a_node_that_comes_with_joulelab_says_where_its_numbers_are_from(name: str) -> None:
    found = nodefile.find_node(name)
    assert found.title
    assert found.node.name == Path(name).stem
    assert found.workloads
    assert found.meters
    known = roots(found)
    for key in found.sources:
        root, _, rest = key.partition(".")
        assert root in {*known, "workloads", "spread", "seed", "packages", "rated_w"}, key
        assert not rest or rest.partition(".")[0] in known.get(root, {rest.partition(".")[0]}), key
    for workload, model in found.workloads.items():
        for gpus in ((), tuple(range(len(found.node.gpus)))):
            if any(stage.on in ("", "gpu" if gpus else "cpu") for stage in model.stages):
                run = lay_out_run(found.node, model, RunRequest(_parameters(workload, model), gpus), RunTimes(), 1)
                assert run.energy("node.ac", run.start_ns, run.end_ns) > 0


def _parameters(workload: str, model: WorkloadModel) -> dict[str, float]:
    """Return numbers for what the stages name and the file leaves to the workload."""
    named = [getattr(stage, key) for stage in model.stages for key in ("seconds", "samples", "copies", "batch")]
    texts = [value for value in (*named, model.epochs) if isinstance(value, str)]
    return {text: 10.0 for text in texts if text not in model.parameters}


def test_every_key_is_in_the_reference() -> None:
    """A reader can describe a node from the page alone."""
    text = (ROOT / "docs" / "reference" / "twins.md").read_text()
    section = text.partition("## A node file")[2].partition("\n## ")[0]
    told = {word for line in section.splitlines() for word in _code(line)}
    hidden = {"gpus", "stages"} | {each.name for each in fields(Gpu)} - set(GPU_KEYS)
    for kind in (Node, Gpu, Cpu, Dram, Host, Cooling, Supply, WorkloadModel, Stage, MountedMeter):
        missing = {each.name for each in fields(kind)} - told - hidden
        assert not missing, f"{kind.__name__}: {missing}"
    for short in PRESETS:
        assert short in told, short


GPU_KEYS = ("idle_w", "active_w", "max_w", "min_cap_w", "default_cap_w", "max_cap_w", "slowdown", "cold", "warm_up_s")


def _code(line: str) -> list[str]:
    return [word for part in line.split("`")[1::2] for word in re.sub(r"[,\[\]]", " ", part).split()]


def test_the_example_is_whole() -> None:
    table = tomllib.loads(EXAMPLE.read_text())
    assert {"gpu", "cpu", "dram", "host", "cooling", "supply", "workloads", "meters", "sources"} <= table.keys()


def test_both_horeka_nodes_differ_by_the_mean_of_the_published_differences_as_their_files_admit() -> None:
    green, blue = (nodefile.find_node(name).node for name in ("horeka-green", "horeka-blue"))
    memory = 0.3  # load of the memory in the rows on CPUs
    drawn = [
        sum(gpu.idle_w for gpu in node.gpus) + node.host.idle_w + 2 * float(node.draws_w("dram:0", memory))
        for node in (green, blue)
    ]
    published = [644.4 - 374.1, 621.5 - 370.6, 651.7 - 392.1, 644.5 - 377.4]  # cpu-mix less cpu-only, W
    assert drawn[0] - drawn[1] == pytest.approx(262.0)
    assert sum(published) / 4 == pytest.approx(262.0, abs=0.1)
