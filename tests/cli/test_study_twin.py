"""Studies on twins from the command line: all that is printed or written says so, and twins do not mix."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest
from tests.study.virtual_study import METERS, NODE, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

pytestmark = pytest.mark.system

SAID = "simulated: twin node, virtual time"
NOTE = "Simulated (twin node, virtual time)"


def test_what_ran_on_a_twin_says_so_everywhere(call: Call, tmp_path: Path) -> None:
    write(tmp_path, repeats=1)
    words = ("study.toml", "--twin", "node.toml", "--studies", "st")
    assert SAID in call("study", "plan", *words).stderr
    first = call("study", "run", *words, "--no-figures")
    assert first.stdout.startswith(f"tiny-node · {SAID}\n")
    assert NOTE in " ".join(first.stdout.split())
    folder = tmp_path / "st" / "tiny-node"
    for name in ("results.csv", "slots.csv", "statistics.csv", "scaling.csv"):
        rows = list(csv.DictReader((folder / name).read_text().splitlines()))
        assert rows
        assert {row["twin"] for row in rows} == {"node"}, name
    report = ("study", "report", *words, "--no-figures")
    assert json.loads(call(*report, "--json").stdout)["twin"] == {"local": "node"}
    for form, head in (("markdown", SAID), ("latex", f"% {SAID}")):
        text = call(*report, "--format", form).stdout
        assert text.startswith(head)
        assert text.count(NOTE) == 1
    assert call(*report, "--format", "csv").stdout.splitlines()[1].endswith(",node")
    assert SAID in call("study", "status", *words).stdout
    assert json.loads(call("study", "status", *words, "--json").stdout)["twin"] == {"local": "node"}
    a, b = sorted(folder.glob("cells/*/r01/2*"))[:2]
    assert "simulated  twin node, virtual time" in call("show", a).stdout.splitlines()[1]
    assert json.loads(call("show", a, "--json").stdout)["twin"] == "node"
    assert call("compare", a, b).stdout.count(SAID) == 2
    assert json.loads(call("compare", a, b, "--json").stdout)["twin"] == {"a": "node", "b": "node"}
    assert json.loads(call("ls", "--runs", a.parent, "--json").stdout)[0]["twin"] == "node"
    assert "sim." in call("ls", "--runs", a.parent).stdout.splitlines()[0].split()


def test_studies_on_several_twins_do_not_mix_and_hints_name_the_twin(call: Call, fail: Fail, tmp_path: Path) -> None:
    write(tmp_path, repeats=1, caps="[150]")
    (tmp_path / "other.toml").write_text(NODE + METERS)
    words = ("--studies", "st", "--no-figures")
    call("study", "run", "study.toml", "--twin", "node.toml", *words)
    kept = {file: file.read_text() for file in (tmp_path / "st" / "tiny-node").glob("*.csv")}
    assert kept
    failure = fail("study", "report", "study.toml", "--twin", "other.toml", *words, code=1)
    assert failure.code == "store.not-run-yet"
    assert str(failure.next).endswith(f"joulelab study run {tmp_path / 'study.toml'} --twin other.toml")
    # The same twin with another number is another twin: nothing of it has run, what is there stays.
    (tmp_path / "node.toml").write_text(NODE.replace("max_w = 120", "max_w = 130") + METERS)
    again = json.loads(call("study", "report", "study.toml", "--twin", "node.toml", *words, "--json").stdout)
    assert {cell["n"] for cell in again["cells"]} == {0}
    noted = {note["code"]: note["numbers"] for note in again["messages"]}
    assert noted["other-twin"] == {"runs": len(list((tmp_path / "st").glob("*/cells/*/r*")))}
    (tmp_path / "study.toml").write_text((tmp_path / "study.toml").read_text().replace("repeats = 1", "repeats = 3"))
    planned = call("study", "plan", "study.toml", "--twin", "node.toml", "--studies", "st", "--until", "1%")
    assert "another version of the twin node" in planned.stderr
    assert "up to 20 per cell until ± 1 %" in " ".join(planned.stdout.split())
    assert {file: file.read_text() for file in kept} == kept


def test_a_study_of_reproduce_is_found_by_its_own_name(call: Call, tmp_path: Path) -> None:
    write(tmp_path, repeats=1, caps="[150]")
    words = ("--studies", "st", "--no-figures")
    call("study", "run", "study.toml", "--twin", "node.toml", *words)
    (tmp_path / "st" / "tiny-node").rename(tmp_path / "st" / "tiny-twin")
    assert "simulated" in call("study", "report", "study.toml", "--twin", "node.toml", *words).stdout
    (tmp_path / "other.toml").write_text(NODE + METERS)
    assert "tiny-other" in str(
        call("study", "plan", "study.toml", "--twin", "other.toml", "--studies", "st", "--json").stdout
    )
