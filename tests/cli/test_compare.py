"""What `compare` prints at 80 columns: no figure is cut off."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import epochs, make_run
from tests.report.test_facts import told

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

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
    assert "123,457" in text
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
        assert re.search(r"^No significant difference in energy: at\s+most\s+0\.\d+ %", "\n".join(lines))


def test_groups_are_chosen_by_label_name_or_run(call: Call, runs: Path) -> None:
    for _ in range(3):
        make_run(runs, gpu_w=300.0, labels={"cap": "300", "model": "m"}, name="base")
    low = [make_run(runs, gpu_w=250.0, labels={"cap": "250"}) for _ in range(2)]
    make_run(runs, gpu_w=90.0, labels={"cap": "250"}, end={"exit_code": 1})
    found = json.loads(call("compare", "cap=300,model=m", "vs", "cap=250", "--json").stdout)
    assert (found["b"]["left_out"], found["b"]["runs"]) == (1, sorted(run.name for run in low))
    assert found["lines"][0]["verdict"] == "less"
    said = call("compare", "cap=250", "vs", "base").stderr
    assert "base is the last of 3 runs of this name; name=base is all of them" in said
    words = sorted(run.name for run in (*low, low[0]))
    named = json.loads(call("compare", "name=base", "vs", *words, "--json").stdout)
    assert (named["lines"], named["b"]["runs"]) == (found["lines"], found["b"]["runs"])
    text = call("compare", "cap=300", "cap=250").output
    assert "a significant difference" in text
    assert "1 run left out" in text
    assert r"\toprule" in call("compare", "cap=300", "vs", low[0], "--format", "latex").stdout
    assert call("compare", low[0], low[1], "--format", "csv").stdout.startswith("figure,unit,a,")


def test_what_is_no_pair_of_groups_is_refused(call: Call, fail: Fail, runs: Path) -> None:
    run = make_run(runs, labels={"cap": "300"})
    failed = make_run(runs, labels={"cap": "250"}, end={"exit_code": 1})
    cases = [
        (("a", "b", "c"), "usage.no-vs"),
        (("vs", "a"), "usage.no-vs"),
        (("a", "vs", "b", "vs", "c"), "usage.no-vs"),
        (("cap=300", "vs", run.name), "usage.same-run"),
        (("cap=1", "vs", run.name), "not-a-run.label"),
        (("cap=250", "vs", run.name), "usage.no-whole-run"),
    ]
    for words, code in cases:
        assert fail("compare", *words, code=1 if code == "not-a-run.label" else 2).code == code
    assert "cap=250, cap=300" in fail("compare", "cap=1", "vs", run.name, code=1).stderr
    assert f"{failed.name} (exit 1)" in " ".join(call("compare", "cap=300", "vs", failed).output.split())
    assert f"run {run.name} is in both groups" in fail("compare", run, failed, "vs", run, code=2).stderr
