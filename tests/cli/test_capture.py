"""`joulelab doctor --capture` and `joulelab twin --replay`: what they write, print and refuse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from joulelab.instruments.capture import parse_capture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

WALK = '.1.3.6.1.2.1.1.1.0 = STRING: "a PDU, SN: ZA1234567890"\n.1.3.6.1.2.1.1.2.0 = OID: .1.3.6.1.4.1.99999.1\n'


def write_tree(folder: Path) -> Path:
    folder.mkdir()
    for name, content in {"energy": "12044825101 J 1 us", "power": "724 W 1 us", "freshness": "1"}.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def test_a_capture_is_written_and_its_removals_are_counted(call: Call, tmp_path: Path) -> None:
    root = write_tree(tmp_path / "secret-folder")
    (tmp_path / "joulelab.toml").write_text(f'[meters.cray]\nmeter = "cray"\nroot = "{root}"\n')
    output = call("doctor", "cray", "--capture", "cray.txt").output
    assert "Read it before you send it." in output
    assert "Removed: nothing." in output
    text = (tmp_path / "cray.txt").read_text()
    assert "secret-folder" not in text
    assert [str(v) for v in parse_capture(text).values] == ["node.dc energy_j 12044825101.0", "node.dc power_w 724.0"]


def test_a_walk_becomes_a_capture(call: Call, tmp_path: Path) -> None:
    (tmp_path / "walk.txt").write_text(WALK)
    told = json.loads(call("doctor", "--capture", "pdu.txt", "--from", "walk.txt", "--json").stdout)
    assert told["removed"] == {"serial number": 1}
    assert told["answers"] == 2
    assert told["values"][0].startswith("refused ")
    assert "ZA1234567890" not in (tmp_path / "pdu.txt").read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["doctor", "--capture", "x.txt"], "usage.one-meter"),
        (["doctor", "hwmon", "rapl", "--capture", "x.txt"], "usage.one-meter"),
        (["doctor", "hwmon", "--capture", "x.txt", "--from", "walk.txt"], "usage.one-meter"),
        (["doctor", "--from", "walk.txt"], "usage.needs-capture"),
        (["doctor", "nvml", "--capture", "x.txt"], "refused.capture"),
        (["doctor", "hwmom", "--capture", "x.txt"], "config.unknown-meter"),
        (["doctor", "hwmon", "--capture", "walk.txt"], "config.file-exists"),
        (["doctor", "--capture", "x.txt", "--from", "empty.txt"], "config.no-recording"),
        (["doctor", "--capture", "no/x.txt", "--from", "walk.txt"], "config.write"),
    ],
)
def test_what_cannot_be_captured_is_refused(fail: Fail, tmp_path: Path, words: list[str], code: str) -> None:
    (tmp_path / "walk.txt").write_text(WALK)
    (tmp_path / "empty.txt").write_text("")
    assert fail(*words).code == code
    assert not (tmp_path / "x.txt").exists()


def test_what_is_no_capture_is_not_served(call: Call, tmp_path: Path) -> None:
    (tmp_path / "walk.txt").write_text(WALK)
    assert "it is not a capture" in call("twin", "--replay", "walk.txt", code=2).output
    assert "cannot be read" in call("twin", "--replay", "nothing.txt", code=2).output
    other = "joulelab-capture: 1\nfamily: nvml\n[exchanges]\na\tb\n"
    (tmp_path / "walk.txt").write_text(other)
    assert "captures of nvml are not supported" in call("twin", "--replay", "walk.txt", code=2).output
