"""The units of systemd are right: systemd itself verifies them, and their commands are ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from joulelab.cli.group import commands

PACKAGING = Path(__file__).parents[2] / "packaging"


@pytest.mark.system
def test_systemd_verifies_all_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt install systemd")
    names = sorted(path.name for path in PACKAGING.glob("*.service"))
    assert names == ["joulelab-agent.service", "joulelab-capd.service"]
    for name in names:
        unit = (PACKAGING / name).read_text()
        started = re.search(r"^ExecStart=(\S+) (\w+) ?(.*)$", unit, re.MULTILINE)
        assert started is not None, name
        (tmp_path / name).write_text(unit.replace(started[1], "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", tmp_path / name], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
        command = commands.get_command(None, started[2])  # type: ignore[arg-type]
        assert command is not None, name
        command.make_context(started[2], started[3].split())  # its options are those of the command
