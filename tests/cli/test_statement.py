"""`joulelab statement`: four forms of one statement; what is required and unknown is an error with its option."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import STARTED, make_run
from tests.rows import every_row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

BOAMPS = ("--stage", "training", "--family", "x", "--model", "y", "--data", "input:text", "--infra", "other")


@pytest.fixture
def run(runs: Path) -> Path:
    return make_run(runs)


def test_the_text_fits_and_begins_with_the_energy(call: Call, run: Path) -> None:
    lines = call("statement", run).stdout.splitlines()
    assert lines[0].startswith("energy     6.9")
    assert max(map(len, lines)) <= 80
    assert any("EU AI Act, Annex XI" in line for line in lines)
    lines = call("statement", run, "--format", "sci").stdout.splitlines()
    assert lines[0] == "SCI        not known: the carbon intensity I is missing"
    assert max(map(len, lines)) <= 80


def test_the_site_of_now_is_used_for_runs_without_one(call: Call, run: Path) -> None:
    call("site", "--intensity", "400", "--source", "ours", "--year", "2025")
    found = json.loads(call("statement", "--format", "hf", "--json").stdout)["co2_eq_emissions"]
    assert found["emissions"] == pytest.approx(6900 / 3.6e6 * 400, rel=0.05)
    assert call("statement", "--format", "hf").stdout.startswith("---\nco2_eq_emissions:\n  emissions: 0.7")


def test_energies_of_several_runs_are_added(call: Call, run: Path, runs: Path) -> None:
    other = make_run(runs, started={**STARTED, "utc_ns": STARTED["utc_ns"] + 60 * 10**9})
    found = json.loads(call("statement", run, other, "--json").stdout)
    assert found["energy_kwh"]["value"] == pytest.approx(2 * 6900 / 3.6e6, rel=0.02)
    report = json.loads(call("statement", run, other, "--format", "boamps", *BOAMPS).stdout)
    assert len(report["measures"]) == 2


def test_runs_that_overlap_are_refused(fail: Fail, run: Path, runs: Path) -> None:
    failure = fail("statement", run, make_run(runs), code=1)
    assert failure.code == "store.overlapping-runs"
    assert failure.next


@every_row(
    ("words", "status", "code"),
    [
        (("--format", "hf"), 2, "config.no-intensity"),
        (("--format", "boamps"), 2, "config.missing-field"),
        (("--format", "boamps", *BOAMPS, "--data", "text"), 2, "config.wrong-field"),
        (("--format", "sci", "--per", "tokens"), 2, "config.no-work"),
        (("--format", "pdf"), 2, "usage"),
        (("--format", "sci", "--lifetime", "0"), 2, "usage"),
        (("nothing",), 1, "not-a-run.unknown"),
    ],
)
def test_what_is_missing_is_an_error_that_names_its_option(
    words: tuple[str, ...], status: int, code: str, fail: Fail, run: Path
) -> None:
    failure = fail("statement", *words, code=status)
    assert failure.code == code
    assert failure.next
