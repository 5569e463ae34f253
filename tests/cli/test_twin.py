"""`joulelab twin` with the meters of the node: which are served, with what flaws, and what is announced."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from joulelab.cli.twin import _node, _wall
from joulelab.core.errors import ConfigError
from joulelab.twins import wall

if TYPE_CHECKING:
    from tests.cli.conftest import Call


def test_a_node_is_told_from_a_command() -> None:
    assert _node(("8xh100", "sleep", "1"), None) == (("sleep", "1"), None, (8, "h100"))
    assert _node(("2xRTX3090",), None) == ((), None, (2, "rtx3090"))
    assert _node(("my/node.toml",), None) == ((), Path("my/node.toml"), None)
    assert _node(("sleep", "8xh100"), None) == (("sleep", "8xh100"), None, None)
    assert _node((), Path("x.toml")) == ((), Path("x.toml"), None)


def test_flaws_are_of_the_kind_that_the_server_takes() -> None:
    assert _wall(False, None, ()) == {}
    assert set(_wall(True, None, ())) == set(wall.names())
    found = _wall(False, "modbus, pdu", ("modbus.period_s=60", "modbus.drop_share=0.1"))
    assert found == {"modbus": {"period_s": 60.0, "drop_share": 0.1}, "pdu": {}}
    assert _wall(False, None, ("modbus.period_s=60",)) == {"modbus": {"period_s": 60.0}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modbus.perod_s=60", "did you mean 'period_s'?"),
        ("modbuss.period_s=60", "did you mean 'modbus'?"),
        ("modbus.period_s=x", "of the wrong kind"),
        ("period_s=60", "pdu.period_s=60"),
        ("modbus.period_s", "pdu.period_s=60"),
    ],
)
def test_wrong_flaws_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _wall(False, None, (text,))
    assert said in str(raised.value)


def test_what_is_served_is_announced(call: Call) -> None:
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
    assert "did you mean 'modbus'" in call("twin", "--serve", "modbuss", code=2).output
    assert "given twice" in call("twin", "a.toml", "--node", "b.toml", code=2).output


def test_an_idle_twin_takes_jobs(call: Call, tmp_path: Path) -> None:
    job = [sys.executable, "-m", "joulelab.twins.job", "--work", "2", "--gpus", "2"]
    out = tmp_path / "out"
    call("twin", "--gpus", "2", "--idle", "--", "sh", "-c", f"{shlex.join(job)} > {out}")
    assert "finished 2 steps" in out.read_text()
    call("twin", "--gpus", "1", "--", "sh", "-c", f"{shlex.join(job)} 2> {out}", code=2)
    assert "takes no jobs" in out.read_text() or "are visible" in out.read_text()
    assert "exclude each other" in call("twin", "--idle", "--load", "--", "true", code=2).output


def test_a_command_finds_the_entries_of_the_twin(call: Call, tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    call("twin", "--gpus", "0", "--serve", "modbus", "--", "sh", "-c", f'cp "$JOULELAB_CONFIG" {copy}')
    (entry,) = tomllib.loads(copy.read_text())["meters"].values()
    assert entry["meter"] == "modbus"
