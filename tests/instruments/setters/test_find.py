"""Setters are found by their module or entry point; one family never keeps another from being found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.control.fake import fails

from joulelab.control import setters

STUBS = Path(__file__).parents[2] / "stubs"
GOOD = """
from joulelab.core.setting import SettingLimits, SetterFamily

class Heater:
    device, scope, model, kind = "heater-1", "heater:0", "Heater", "power"
    def limits(self): return SettingLimits(1.0, 2.0, None, "W")

def open_setters(environ):
    return SetterFamily([Heater()], on_close=lambda: print('"closed"', flush=True))
"""


def package(folder: Path, text: str) -> Path:
    """Install a package that announces a setter `heater`."""
    folder.mkdir()
    (folder / "heater_setter.py").write_text(text)
    info = folder / "heater_setter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: heater-setter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[joulelab.setters]\nheater = heater_setter\n")
    return folder


@pytest.mark.system
def test_every_family_is_found(twin, remote, tmp_path):
    (tmp_path / "stub").write_text(json.dumps({"gpus": [{"watts": 1}]}))
    environment = twin().environment | {"AMDSMI_STUB": str(tmp_path / "stub")}
    found = remote("all", environment, STUBS, package(tmp_path / "outside", GOOD))
    families = {row[2].split("-")[0] for row in found.opened["setters"]}
    assert families == {"GPU", "powercap", "00ff74a1", "heater"}
    assert found.opened["missing"] == found.opened["absent"] == []
    assert found("heater:0", "power", "limits")["highest"] == 2


@pytest.mark.system
@pytest.mark.parametrize("text", ["import no_such_module_here", "def open_setters(environ): 1 / 0"])
def test_a_broken_package_is_told_and_others_are_found(remote, tmp_path, text):
    environment = {"JOULELAB_POWERCAP": str(tmp_path / "none"), "LD_LIBRARY_PATH": ""}
    found = remote("all", environment, package(tmp_path / "outside", text))
    ((name, why),) = found.opened["missing"]
    assert (name, "its package is broken" in why) == ("heater", True)
    assert "rapl" in {name for name, _ in found.opened["absent"]}


def test_kinds_are_chosen(tmp_path):
    with setters.open_all_setters({"JOULELAB_POWERCAP": str(tmp_path)}, kinds=("clocks",)) as found:
        assert all(setter.kind == "clocks" for setter in found.setters)


def test_there_is_no_such_family():
    with fails("missing-dependency.broken-package"):
        setters.load_family("heaters")


@pytest.mark.system
def test_what_was_found_is_closed_when_finding_ends_early(tmp_path, remote):
    text = GOOD.replace("return SetterFamily", "import os; os.environ.get('STOP') and exit(3)\n    return SetterFamily")
    outside = package(tmp_path / "outside", text)
    with pytest.raises(AssertionError, match="the process ended: 3"):
        remote("all", {"JOULELAB_POWERCAP": str(tmp_path), "STOP": "1"}, outside)
