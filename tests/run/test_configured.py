"""measure() reads configured meters, and measures with what is right where the configuration is wrong."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.run.config.conftest import INSTRUMENT
from tests.run.config.instrument import RIGHT
from tests.waiting import until

import joulelab
from joulelab.run.child_process import start_recorder
from joulelab.store.run_folder import read_meta

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

ENTRY = f'[meters.pdu1]\nmeter = "{INSTRUMENT}"\naddress = "here"\npassword = {{ env = "PW" }}\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", "JOULELAB_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JOULELAB_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PW", RIGHT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "joulelab.toml"


def block(**options: Any) -> joulelab.Measurement:
    with joulelab.measure("x", **options) as m:
        time.sleep(0.2)
    return m


def test_configured_meters_are_read(config: Path) -> None:
    config.write_text(ENTRY + "[run]\nperiod_s = 0.03\n")
    m = block(meters=["pdu1"])
    assert m.scopes["node.ac"].value == pytest.approx(100 * m.duration_s, rel=0.05)
    assert m.run is not None
    options = read_meta(m.run)["options"]
    assert [c["name"] for c in options["configured"]] == ["pdu1"]
    assert options["period_s"] == 0.03
    for path in (p for p in m.run.rglob("*") if p.is_file()):
        assert RIGHT.encode() not in path.read_bytes()


def test_a_wrong_entry_is_told_and_the_right_one_is_read(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = ENTRY.replace("pdu1", "pdu2") + 'adress = "x"\n' + ENTRY.replace("pdu1", "pdu3").replace("PW", "NONE")
    config.write_text(ENTRY + wrong + "[meters.nvml]\nenabled = false\n")
    with caplog.at_level(logging.WARNING):
        m = block()
    assert "did you mean 'address'" in caplog.text
    assert "the variable NONE is not set" in caplog.text
    assert "node.ac" in m.scopes
    assert m.result is not None
    assert {lost["meter"] for lost in m.result.missing if lost["status"] == "failed"} == {"pdu2", "pdu3"}


def test_a_broken_file_and_an_unknown_name_stop_nothing(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    config.write_text("a = ")
    with caplog.at_level(logging.WARNING):
        m = block(meters=["pdu9", {"meter": INSTRUMENT, "config": {"address": "here", "password": RIGHT}}])
    assert "not a TOML file" in caplog.text
    assert caplog.text.count("not a TOML file") == 1
    assert "meter pdu9 is not read" in caplog.text
    assert "node.ac" in m.scopes


def test_the_plan_of_hundreds_of_meters_reaches_the_recorder(tmp_path: Path) -> None:
    meters = [{"meter": INSTRUMENT, "config": {"address": "here", "password": RIGHT, "reference": "x" * 400}}] * 300
    plan = {"host_dir": str(tmp_path), "host": "h", "owner_pid": os.getpid(), "meters": meters, "ready_s": 120.0}
    recorder = start_recorder(os.environ, log=tmp_path / "log")
    recorder.send(plan, within_s=60.0)
    try:
        said = until(recorder.read_messages)
        assert [m["status"] for m in said[0]["meters"]] == ["open"] * 300
    finally:
        recorder.kill()
        recorder.close()
