"""What `compare` prints at 80 columns: no figure is cut off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import epochs, make_run
from tests.report.test_facts import told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call

LONG = {"flop_convention": "a multiply-add is two, " * 20, "a_name_of_more_letters_than_there_is_room": 123456.75}


@pytest.mark.system  # pure, and slow
def test_facts_cut_no_figure(call: Call, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ("cifar-10", "xray")
    a, b = (
        make_run(
            runs, idle=True, gpu_w=300.0 - k, marks=[*epochs(2, 9.0), told(data=f"folder in the form of {n}", **LONG)]
        )
        for k, n in enumerate(names)
    )
    text = call("compare", a.name, b.name).output
    lines = text.splitlines()
    table = lines[: -lines[::-1].index("") - 1]
    assert max(map(len, table)) <= 80
    assert "form of cifar-10" in text
    assert "form of xray" in text
    assert "123 457" in text
    figures = [line for line in table if " ± " in line]
    assert figures
    assert all(line.endswith(("J", "W", "%")) for line in figures)


@pytest.mark.system  # pure, and slow
def test_a_difference_that_is_not_resolved_has_a_limit_instead_of_a_number(
    call: Call, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = make_run(runs, marks=epochs(2, 9.0)), make_run(runs, marks=epochs(2, 9.0))
    for width in (62, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = call("compare", a.name, b.name).output.splitlines()
        rows = [line for line in lines if line.startswith("energy ")]
        assert len(rows) == (1 if width == 62 else 2)
        assert all(len(row) <= width for row in rows)
        assert any("not resolved" in row for row in rows)
        assert re.search(r"\nNo significant difference in energy: at\s+most\s+0\.\d+ %", "\n".join(lines))
