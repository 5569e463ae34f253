from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import UNKNOWN, epochs, make_run

from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS
from joulelab.report.comparison import RunComparison, compare_runs, format_figure_values, list_devices
from joulelab.site.footprint import Site

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result


def codes(found: RunComparison) -> list[str]:
    """Return the codes of the notes below a comparison."""
    return [note.code for note in found.list_notes()]


def scale_energy(run: Result, factor: float) -> Result:
    return replace(run, groups=tuple(replace(group, energy=group.energy * factor) for group in run.groups))


@pytest.fixture(scope="module")
def gpus_only(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return load_result(make_run(tmp_path_factory.mktemp("runs"), gpu_w=300.0, cpus=0))


def test_gain_cancels_on_the_same_devices(runs: Path) -> None:
    a = load_result(make_run(runs, gpu_w=300.0))
    b = load_result(make_run(runs, gpu_w=263.0))
    found = compare_runs(a, b)
    energy = found.find_figure("energy")
    assert found.same_devices
    assert energy is not None
    assert energy.ratio is not None
    assert energy.ratio.expanded is not None
    assert a.energy is not None
    assert a.energy.expanded is not None
    # Each alone is known to 5 %, their ratio far better.
    assert a.energy.expanded / a.energy.value > 0.04
    assert energy.ratio.expanded < 0.02
    assert energy.is_different is True
    assert codes(found) == ["one-run-each", "same-devices"]


def test_what_was_measured_and_what_was_simulated_is_told_apart(gpus_only: Result) -> None:
    a, b = gpus_only, replace(gpus_only, twin="mine")
    assert codes(compare_runs(a, b))[0] == "simulated-differ"
    for same in (a, b):  # the head says it of both
        assert "simulated-differ" not in codes(compare_runs(same, same))
    assert compare_runs(a, b).to_json()["twin"] == {"a": "", "b": "mine"}


def test_on_other_devices_nothing_cancels(gpus_only: Result) -> None:
    a, b = gpus_only, scale_energy(gpus_only, 305 / 300)
    moved = replace(b, scopes=tuple(replace(s, device=f"other-{s.device}") for s in b.scopes))
    assert list_devices(a) == list_devices(b)
    found = compare_runs(a, moved)
    energy = found.find_figure("energy")
    assert not found.same_devices
    assert energy is not None
    assert energy.ratio is not None
    assert energy.ratio.expanded == pytest.approx(0.05 * 2 / 3**0.5 * 2**0.5, rel=0.2)
    assert energy.is_different is False
    assert codes(found) == ["one-run-each", "different-devices"]


def test_an_unknown_accuracy_gives_no_interval(runs: Path) -> None:
    a = load_result(make_run(runs, gpu_w=300.0, accuracy=UNKNOWN))
    energy = compare_runs(a, scale_energy(a, 4 / 3)).find_figure("energy")
    assert energy is not None
    assert energy.is_different is None
    assert energy.ratio is not None
    assert energy.ratio.expanded is None


def test_runs_without_energy_are_compared_by_time(runs: Path) -> None:
    a = load_result(make_run(runs, gpus=0, cpus=0))
    found = compare_runs(a, replace(a, end_ns=a.start_ns + 12 * NS))
    (time,) = found.lines
    assert (time.name, time.ratio and time.ratio.value) == ("time", pytest.approx(1.2))


def test_work_net_and_power_are_compared(runs: Path) -> None:
    a = load_result(make_run(runs, idle=True, marks=epochs(5, 10.0)))
    b = load_result(make_run(runs, idle=True, seconds=5.0, marks=epochs(5, 5.0)))
    lines = {line.name: line for line in compare_runs(a, b).lines}
    assert set(lines) == {"energy", "  gpu", "  cpu", "net of idle", "time", "mean power", "per sample", "samples/s"}
    assert lines["samples/s"].ratio is not None
    assert lines["samples/s"].ratio.value == pytest.approx(2.0)
    assert lines["per sample"].ratio is not None
    assert lines["per sample"].ratio.value == pytest.approx(0.5, rel=0.02)
    data = compare_runs(a, b).to_json()
    assert data["lines"][0]["ratio"]["value"] == lines["energy"].ratio.value if lines["energy"].ratio else False


def test_estimates_are_said_to_be_estimates(runs: Path) -> None:
    a = load_result(make_run(runs, gpus=0, cpus=0, estimate=True))
    site = Site(price=300.0, currency="EUR")
    a = replace(a, work={"samples": 10.0}, site=site)
    b = replace(a, groups=tuple(replace(group, estimate=False) for group in a.groups))
    for other, marks in ((scale_energy(a, 3.0), (True, True)), (b, (True, False))):
        figures = [one for one in compare_runs(a, other).lines if one.unit in ("J", "W", "EUR")]
        assert {one.name for one in figures} >= {"energy", "cost", "mean power", "per sample"}
        for one in figures:
            assert (one.estimates, one.estimate) == (marks, True)
            assert tuple(text.startswith("~") for text in format_figure_values(one)) == marks


def test_a_zero_cannot_be_divided_by(gpus_only: Result) -> None:
    energy = compare_runs(scale_energy(gpus_only, 0.0), gpus_only).find_figure("energy")
    assert energy is not None
    assert energy.ratio is None


def at_the_wall(result: Result, *names: str) -> Result:
    """Return a result of which only some families were measured, the last one counted."""
    groups = [replace(g, name=n, scopes=(n,)) for n in names for g in result.groups if g.name == "measured"]
    return replace(result, groups=(*groups, replace(groups[-1], name="measured")))


def test_the_wall_is_not_compared_with_the_inside(runs: Path) -> None:
    result = load_result(make_run(runs))
    wall, inside = at_the_wall(result, "gpu", "node.ac"), at_the_wall(result, "gpu")
    both = compare_runs(wall, inside)
    energy = both.find_figure("energy")
    assert energy is not None
    assert energy.a.value == pytest.approx(energy.b.value)
    assert codes(both)[0] == "points-differ"
    assert both.list_notes()[0].texts["families"] == "gpu"
    nodes = compare_runs(at_the_wall(result, "gpu", "node.dc", "node.ac"), at_the_wall(result, "gpu", "node.dc"))
    assert nodes.list_notes()[0].texts["families"] == "node.dc"
    nothing = compare_runs(at_the_wall(result, "node.ac"), inside)
    assert nothing.find_figure("energy") is None


def test_sensors_that_measure_part_of_the_time_resolve_650_w_from_300_w(runs: Path) -> None:
    a, b = (load_result(make_run(runs, gpus=1, cpus=0, gpu_w=watts, seen=0.25)) for watts in (650.0, 300.0))
    found = compare_runs(a, b)
    energy = found.find_figure("energy")
    assert energy is not None
    assert energy.is_different is True
    (note,) = (n for n in found.list_notes() if n.code == "in-step")
    plain = energy.to_json()["ratio"]
    assert plain["value"] == pytest.approx(300 / 650, rel=2e-3)
    assert plain["expanded"] < 0.05 < 0.3 < plain["bound"]
    assert note.numbers["share"] == pytest.approx(plain["bound"] / plain["value"], rel=0.3)
