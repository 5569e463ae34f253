"""What `ls` prints of data at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import make_run
from tests.report.test_facts import told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call


@pytest.mark.system  # pure, and slow
def test_data_fits_into_80_columns_and_can_be_told_apart(
    call: Call, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("cifar-10", "chest-xray"):
        make_run(runs, command=["python", "t" * 90], marks=[told(data=f"folder in the form of {name}")])
    text = call("ls").output
    assert max(map(len, text.splitlines())) <= 80
    assert "cifar-10" in text
    assert "xray" in text
    assert text.split()[:6] == ["run", "time", "energy", "outcome", "data", "command"]
    monkeypatch.setenv("COLUMNS", "64")
    text = call("ls").output
    assert "command" not in text
    assert max(map(len, text.splitlines())) <= 64
    monkeypatch.setenv("COLUMNS", "150")
    assert "folder in the form of cifar-10" not in call("ls").output
    assert "form of cifar-10" in call("ls").output


@pytest.mark.system  # pure, and slow
def test_what_would_move_the_cursor_is_escaped(call: Call, runs: Path) -> None:
    make_run(runs, name="\x1b[2J", marks=[told(data="\x1b]0;x\x07")])
    text = call("ls").output
    assert "\x1b" not in text
