"""`joulelab cite`: a paragraph for a run, several runs or a study; only the citation without one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.report.synthetic import make_run

from joulelab.cli.group import run_commands

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_a_run_it_prints_the_citation_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["cite"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("@software{joulelab,")


def test_it_prints_a_paragraph_within_the_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = make_run(tmp_path)
    assert run_commands(["cite", str(run)]) == 0
    out = capsys.readouterr().out
    assert run.name in out
    assert "@software{joulelab," in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_facts_text_and_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_run(tmp_path), make_run(tmp_path)
    assert run_commands(["cite", str(first), str(second), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["runs"] == [first.name, second.name]
    assert "2 runs" in found["text"]
    assert found["bibtex"].startswith("@software")


def test_an_unknown_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path)
    assert run_commands(["cite", "none", "--runs", str(tmp_path)]) == 1
    assert "none" in capsys.readouterr().err
