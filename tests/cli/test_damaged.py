"""A run that lacks a file: a failed check everywhere, and no smaller number."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.analysis.results_file import load_result
from joulelab.dashboard.run_entries import Place, load_entry, read_entry
from joulelab.report.comparison import compare_runs
from joulelab.report.page.run_page import make_run_report
from joulelab.study.results import make_trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Call, Fail

pytestmark = pytest.mark.system  # pure, and slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "runs" / "20261118-015240-beb3"
POWER = Path("vm/nvml.power.parquet")


def truncate(path: Path) -> None:
    os.truncate(path, 2000)


def scribble(path: Path) -> None:
    """Overwrite samples; the end of the file, which says what is in it, stays whole."""
    data = bytearray(path.read_bytes())
    data[4:3000] = b"\xff" * 2996
    path.write_bytes(data)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: list[Callable[[Path], None]] = [truncate, Path.unlink, scribble, fifo, folder]


@pytest.fixture
def run(runs: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, runs / EXAMPLE.name))


def damaged_checks(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [check for check in told["checks"] if check["code"].partition(".")[0] == "damaged"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_run_that_lacks_a_file_of_energy_shows_no_total(
    call: Call, run: Path, damage: Callable[[Path], None]
) -> None:
    assert "35 ± 2 kJ" in call("show", run).output
    damage(run / POWER)
    shown = call("show", run).output
    assert "3.72" not in shown
    assert "measured" not in shown
    told = json.loads(call("show", run, "--json").output)
    assert told["energy"] is None
    assert told["groups"] == []
    (check,) = damaged_checks(told)
    assert check["status"] == "failed"
    assert check["message"].startswith("vm/nvml")
    assert check["message"] in " ".join(shown.split())
    assert not any(phase["energy"] for phase in told["phases"])


@pytest.mark.parametrize("damage", DAMAGE)
def test_lists_call_such_a_run_damaged(call: Call, run: Path, damage: Callable[[Path], None]) -> None:
    damage(run / POWER)
    listed = call("ls").output
    assert "damaged" in listed
    assert "kJ" not in listed
    (row,) = json.loads(call("ls", "--json").output)
    assert row["energy"] is None
    assert row["problem"].startswith("vm/nvml")
    _, total = call("query", "SELECT sum(energy_j) FILTER (counted) AS total FROM energies", "--csv").stdout.split()[:2]
    assert total == '""'


@pytest.mark.parametrize("damage", DAMAGE)
def test_pages_and_the_dashboard_show_what_failed(run: Path, damage: Callable[[Path], None]) -> None:
    damage(run / POWER)
    page = str(make_run_report(load_result(run), run, None).make_page())
    assert re.search(r"damaged: vm/nvml", page)
    assert "3.72" not in page
    place = Place(run.name, run, run.parent)
    for entry in (load_entry(place), read_entry(place)):
        assert entry.status == "broken"
        assert entry.problem.startswith("vm/nvml")
        assert entry.energy is None


def test_files_without_energy_cost_a_failed_check_and_no_total(call: Call, run: Path) -> None:
    truncate(run / "vm" / "host.machine.parquet")
    truncate(run / "vm" / "nvml.state.parquet")
    mark = next((run / "vm" / "marks").iterdir())
    fifo(mark)
    shown = call("show", run).output
    assert "35 ± 2 kJ" in shown
    for name in ("host.machine.parquet", "nvml.state.parquet", mark.name):
        assert name in shown


def tear(path: Path) -> None:
    """Cut the end of the last line."""
    os.truncate(path, path.stat().st_size - 3)


def scribble_lines(path: Path) -> None:
    path.write_text(path.read_text() + "{broken}\n")


@pytest.mark.parametrize("damage", [tear, scribble_lines, fifo])
def test_a_run_whose_marks_are_damaged_shows_no_energy_per_work(
    call: Call, run: Path, damage: Callable[[Path], None]
) -> None:
    assert "J/product" in call("show", run).output
    damage(next((run / "vm" / "marks").iterdir()))
    shown = call("show", run).output
    assert "35 ± 2 kJ" in shown
    assert "J/product" not in shown
    told = json.loads(call("show", run, "--json").output)
    assert all("marks/" in check["message"] for check in damaged_checks(told))
    assert damaged_checks(told)
    assert told["work"] == {}
    assert not any(phase["work"] for phase in told["phases"])


def test_events_that_cannot_be_read_could_have_named_more_meters(call: Call, run: Path) -> None:
    fifo(run / "vm" / "events.0.jsonl")
    told = json.loads(call("show", run, "--json").output)
    assert told["energy"] is None
    assert any("events.0.jsonl" in check["message"] for check in damaged_checks(told))


def test_events_that_name_no_meter_could_have_named_more(call: Call, run: Path) -> None:
    (run / "vm" / "events.0.jsonl").write_text("")
    (run / "vm" / "nvml.power.parquet").unlink()
    assert json.loads(call("show", run, "--json").stdout)["energy"] is None


def test_no_plan_is_made_with_such_a_run(fail: Fail, run: Path) -> None:
    (run / "vm" / "nvml.power.parquet").unlink()
    failure = fail("plan", "cost", run, "--tariff", "0.32EUR")
    assert failure.kind == "config"
    assert run.name in failure.stderr


def test_such_a_run_is_compared_with_nothing(run: Path, runs: Path) -> None:
    whole = load_result(Path(shutil.copytree(EXAMPLE, runs / "whole")))
    truncate(run / POWER)
    told = compare_runs(whole, load_result(run))
    assert told.find_figure("energy") is None
    assert make_trial(load_result(run)).get_energy() is None  # a slot of a study


def test_samples_that_are_left_out_of_a_query_are_named(call: Call, run: Path) -> None:
    truncate(run / POWER)
    (run / "vm" / "rapl.state.parquet").write_bytes(b"")
    told = call("query", "SELECT count(*) FROM rapl_energy")
    assert "warning" not in told.stderr
    copy = Path(shutil.copytree(EXAMPLE, run.with_name("20261115-232047-0000")))
    told = call("query", "SELECT DISTINCT run FROM nvml_power")
    assert copy.name in told.stdout
    assert f"the readings of {run / POWER} are missing: it" in told.stderr


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("kind", ["power", "energy"])
def test_pictures_of_such_a_run_say_so(call: Call, run: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    truncate(run / POWER)
    picture = run.parent / "p.svg"
    call("figure", kind, run, "-o", picture)
    assert run.name in picture.read_text()


@pytest.mark.parametrize("view", ["energies", "phases"])
@pytest.mark.parametrize(("name", "damage"), [(POWER, truncate), ("end.json", fifo)])
def test_damaged_runs_are_named_by_a_query_of_results(
    call: Call, run: Path, view: str, name: str | Path, damage: Callable[[Path], None]
) -> None:
    copy = Path(shutil.copytree(EXAMPLE, run.with_name("20261115-232047-0000")))
    damage(run / name)
    told = call("query", f"SELECT DISTINCT run FROM {view}")
    assert copy.name in told.stdout
    assert f"figures of run {run.name} are missing: " in told.stderr
    assert str(name) in told.stderr
    assert f"run {copy.name}" not in told.stderr
    assert "warning" not in call("query", "SELECT run FROM runs").stderr


@pytest.mark.parametrize("name", ["run.json", "end.json", "results.json", "head.json"])
def test_a_fifo_in_place_of_a_document_is_not_waited_for(call: Call, fail: Fail, run: Path, name: str) -> None:
    call("show", run)
    fifo(run / name)
    (row,) = json.loads(call("ls", "--json").output)
    if name in ("run.json", "end.json"):
        assert name in row["problem"]
        failure = fail("show", run, code=1)
        assert (failure.kind, "FIFO" in str(failure.why)) == ("store", True), failure
    else:
        assert row["energy"]["value"] == pytest.approx(34.78e3, rel=0.01)
