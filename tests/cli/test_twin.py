"""`joulelab twin` with the meters of the node: which are served, with what flaws, and what is announced."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.twin import nodefile, twin_server
from joulelab.twin.commands import _choose_meters, _split_words

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail


def test_a_node_is_told_from_a_command() -> None:
    assert _split_words(("8xh100", "sleep", "1"), None) == (("sleep", "1"), "8xh100")
    assert _split_words(("2xRTX3090",), None) == ((), "2xRTX3090")
    assert _split_words(("my/node.toml",), None) == ((), "my/node.toml")
    assert _split_words(("sleep", "8xh100"), None) == (("sleep", "8xh100"), None)
    assert _split_words((), "x.toml") == ((), "x.toml")
    assert _split_words(("bnl-h100", "sleep"), None) == (("sleep",), "bnl-h100")
    assert _split_words(("bnl-h100", "sleep"), "8xh100") == (("bnl-h100", "sleep"), "8xh100")
    for wrong, nearest in (("bnl-h10", "bnl-h100"), ("gdansk", "gdansk-rtx6000"), ("bnl", "bnl-h100")):
        with pytest.raises(ConfigError) as raised:
            _split_words((wrong, "sleep"), None)
        assert f"'{nearest}'" in str(raised.value.next)


def test_flaws_are_of_the_kind_that_the_server_takes() -> None:
    assert _choose_meters(False, None, ()) == {}
    assert set(_choose_meters(True, None, ())) == set(twin_server.list_servers())
    found = _choose_meters(False, "modbus, pdu", ("modbus.period_s=60", "modbus.drop_share=0.1"))
    assert found == {"modbus": {"period_s": 60.0, "drop_share": 0.1}, "pdu": {}}
    assert _choose_meters(False, None, ("modbus.period_s=60",)) == {"modbus": {"period_s": 60.0}}


@every_row(
    ("text", "named"),
    [
        ("modbus.perod_s=60", "'period_s'"),
        ("modbuss.period_s=60", "'modbus'"),
        ("modbus.period_s=x", "`float`"),
        ("period_s=60", "pdu.period_s=60"),
        ("modbus.period_s", "pdu.period_s=60"),
    ],
)
def test_wrong_flaws_are_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _choose_meters(False, None, (text,))
    assert named in str(raised.value)


@pytest.mark.system
def test_what_is_served_is_announced(call: Call, fail: Fail) -> None:
    told = call("twin", "--gpus", "0", "--serve", "modbus", "--for", "0", "--json").stdout
    data = json.loads(told)
    assert data["not_served"].keys() <= {"nvml"}
    (entry,) = data["entries"].values()
    assert entry["meter"] == "modbus"
    (port,) = data["ports"]["modbus"].values()
    assert entry["address"].endswith(f":{port}")
    assert "JOULELAB_CONFIG" in data["environment"]
    text = call("twin", "--gpus", "0", "--serve", "modbus", "--for", "0").output
    assert "# modbus: " in text
    assert "export JOULELAB_CONFIG=" in text
    assert "'modbus'" in str(fail("twin", "--serve", "modbuss").next)
    assert "--node" in fail("twin", "a.toml", "--node", "b.toml").what


@pytest.mark.system
def test_an_idle_twin_takes_jobs(call: Call, fail: Fail, tmp_path: Path) -> None:
    job = [sys.executable, "-m", "joulelab.twin.job", "--work", "2", "--gpus", "2"]
    out = tmp_path / "out"
    call("twin", "--gpus", "2", "--idle", "--", "sh", "-c", f"{shlex.join(job)} > {out}")
    assert "finished 2 steps" in out.read_text()
    call("twin", "--gpus", "1", "--", "sh", "-c", f"{shlex.join(job)} 2> {out}", code=2)
    assert "finished" not in out.read_text()
    assert "--load, --idle" in fail("twin", "--idle", "--load", "--", "true").what


@pytest.mark.system
def test_a_command_finds_the_entries_of_the_twin(call: Call, tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    call("twin", "--gpus", "0", "--serve", "modbus", "--", "sh", "-c", f'cp "$JOULELAB_CONFIG" {copy}')
    (entry,) = tomllib.loads(copy.read_text())["meters"].values()
    assert entry["meter"] == "modbus"


NODE = """
title = "a desk"
packages = 1
calibrated = ["desk.idle_w"]
[[gpu]]
model = "rtx3090"
idle_w = 31
[[gpu]]
model = "a100"
count = 2
[workloads.birds]
parameters = { epochs = 2, images = 100 }
time_scatter = 0.02
[[workloads.birds.stages]]
name = "set-up"
seconds = 10
[[workloads.birds.stages]]
name = "epoch"
part = "loaders"
each = "epoch"
seconds = 1
[[workloads.birds.stages]]
name = "epoch"
each = "epoch"
samples = "images"
rate = 10
busy = 1
intensity = 1
[[workloads.birds.stages]]
each = "epoch"
on = "gpu"
seconds = 1
[[workloads.birds.stages]]
name = "save"
seconds = 1
[meters.pdu]
family = "snmp"
gain_sd = 0.01
flaws = { period_s = 60, window_s = 0 }
[sources]
"gpu.idle_w" = "read off a plug"
"workloads.birds.rate" = "guessed"
"""


def test_a_node_is_shown_with_its_sources(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "desk.toml"
    path.write_text(NODE)
    text = call("twin", "--show", str(path)).stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == f"{path}: a desk"
    assert "gpu:0.idle_w 31 W read off a plug" in lines
    assert "gpu:1,2.count 2" in lines
    assert "gpu:1,2.max_w 400 W" in lines
    assert "desk.idle_w" in lines
    assert "birds: set-up, [epoch: loaders, epoch, (no phase) on gpu], save; epochs=2, images=100; " in " ".join(lines)
    (pdu,) = (line for line in lines if line.startswith("pdu: snmp at node.ac"))
    assert all(number in pdu for number in ("1 s", "60 s", "1 W", "1.00%"))
    assert "workloads.birds.rate: guessed" in lines
    assert f"joulelab twin {path} --idle -- joulelab run -- python -m joulelab.twin.job --workload birds" in text
    told = json.loads(call("twin", "--show", str(path), "--json").stdout)
    assert told["parameters"]["gpu:0.idle_w"] == 31
    assert told["sources"]["gpu.idle_w"] == "read off a plug"
    assert (told["calibrated"], told["title"]) == (["desk.idle_w"], "a desk")
    assert told["workloads"]["birds"]["stages"][2]["samples"] == "images"
    assert told["meters"]["pdu"]["flaws"]["period_s"] == 60


def test_own_nodes_are_listed_and_unknown_ones_refused(call: Call, fail: Fail) -> None:
    listed = call("twin", "--list").stdout.strip().split("\n\n")[0].splitlines()
    rows = json.loads(call("twin", "--list", "--json").stdout)
    assert [row["node"] for row in rows] == nodefile.list_own_nodes()
    assert [line.split()[0] for line in listed if line[0] != " "] == nodefile.list_own_nodes()
    assert all(row["title"] for row in rows)
    assert "'bnl-h100'" in str(fail("twin", "--show", "bnl-h10").next)
    assert "'gdansk-rtx6000'" in str(fail("twin", "gdansk", "--for", "0").next)
    assert "RTX 3090" in call("twin", "--show", "2xrtx3090").stdout


@pytest.mark.system
def test_a_workload_of_an_own_node_runs_in_real_time(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = f"{sys.executable} -m joulelab.twin.job --workload xception-birds --scale 0.002 --set epochs=1 --gpus 8"
    call("twin", "gdansk-rtx6000", "--serve", "", "--idle", "--", "sh", "-c", f"{job} > {out}")
    assert "epoch 1 samples: 10000" in out.read_text()
