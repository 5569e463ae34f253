from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import ASSUMED, UNKNOWN, epochs, make_run

from joulelab.report.cache import result_of
from joulelab.report.comparison import ONE_RUN_EACH, compare, devices

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.analysis.result import Result


def test_gain_cancels_on_the_same_devices(runs: Path) -> None:
    a = result_of(make_run(runs, gpu_w=300.0))
    b = result_of(make_run(runs, gpu_w=263.0))
    found = compare(a, b)
    energy = found.line("energy")
    assert found.same_devices
    assert energy is not None
    assert energy.ratio is not None
    assert energy.ratio.expanded is not None
    assert a.energy is not None
    assert a.energy.expanded is not None
    # Each alone is known to 5 %, their ratio far better.
    assert a.energy.expanded / a.energy.value > 0.04
    assert energy.ratio.expanded < 0.02
    assert energy.difference is True
    assert "B uses" in found.verdict()
    assert "less ±" in found.verdict()
    assert ONE_RUN_EACH in found.notes()


def test_what_was_measured_and_what_was_simulated_is_told_apart(runs: Path) -> None:
    a = result_of(make_run(runs, gpu_w=300.0))
    b = replace(a, twin="mine")
    assert not any("simulated" in note for note in compare(a, a).notes())
    assert compare(a, b).notes()[0] == "! Not alike: A measured; B simulated: twin mine, virtual time."
    assert not any("simulated" in note for note in compare(b, b).notes())  # the head says it of both
    assert compare(a, b).to_json()["twin"] == {"a": "", "b": "mine"}


def test_on_other_devices_nothing_cancels(runs: Path) -> None:
    a = result_of(make_run(runs, gpu_w=300.0, cpus=0))
    b = result_of(make_run(runs, gpu_w=305.0, cpus=0))
    moved = replace(b, scopes=tuple(replace(s, device=f"other-{s.device}") for s in b.scopes))
    assert devices(a) == devices(b)
    found = compare(a, moved)
    energy = found.line("energy")
    assert not found.same_devices
    assert energy is not None
    assert energy.ratio is not None
    assert energy.ratio.expanded == pytest.approx(0.05 * 2 / 3**0.5 * 2**0.5, rel=0.2)
    assert energy.difference is False
    assert energy.verdict() == "no significant difference"
    assert "No significant difference in energy" in found.verdict()
    assert "nothing cancels" in found.notes()[0]


def test_an_unknown_accuracy_gives_no_interval(runs: Path) -> None:
    a = result_of(make_run(runs, gpu_w=300.0, accuracy=UNKNOWN))
    b = result_of(make_run(runs, gpu_w=400.0, accuracy=UNKNOWN))
    energy = compare(a, b).line("energy")
    assert energy is not None
    assert energy.difference is None
    assert energy.verdict().endswith("more, accuracy unknown")
    assert "the accuracy is unknown" in compare(a, b).verdict()


def test_runs_without_energy_are_compared_by_time(runs: Path) -> None:
    a = result_of(make_run(runs, gpus=0, cpus=0))
    b = result_of(make_run(runs, gpus=0, cpus=0, seconds=12.0))
    found = compare(a, b)
    assert [line.name for line in found.lines] == ["time"]
    assert (
        found.verdict() == "The energies cannot be compared: no power meter was read in A and B; it takes 20.0 % longer"
    )


def test_work_net_and_power_are_compared(runs: Path) -> None:
    a = result_of(make_run(runs, idle=True, marks=epochs(5, 10.0)))
    b = result_of(make_run(runs, idle=True, seconds=5.0, marks=epochs(5, 5.0)))
    lines = {line.name: line for line in compare(a, b).lines}
    assert set(lines) == {"energy", "  gpu", "  cpu", "net of idle", "time", "mean power", "per sample", "samples/s"}
    assert lines["samples/s"].ratio is not None
    assert lines["samples/s"].ratio.value == pytest.approx(2.0)
    assert lines["per sample"].ratio is not None
    assert lines["per sample"].ratio.value == pytest.approx(0.5, rel=0.02)
    data = compare(a, b).to_json()
    assert data["lines"][0]["ratio"]["value"] == lines["energy"].ratio.value if lines["energy"].ratio else False


def test_estimates_are_said_to_be_estimates(runs: Path) -> None:
    a = result_of(make_run(runs, gpus=0, cpus=0, estimate=True))
    b = result_of(make_run(runs, gpus=0, cpus=0, estimate=True, seconds=30.0))
    assert "(an estimate)" in compare(a, b).verdict()


def test_a_zero_cannot_be_divided_by(runs: Path) -> None:
    a = result_of(make_run(runs, gpu_w=0.0, idle_w=0.0, cpus=0, accuracy=ASSUMED))
    b = result_of(make_run(runs, cpus=0))
    energy = compare(a, b).line("energy")
    assert energy is not None
    assert energy.ratio is None
    assert energy.verdict() == "cannot be compared"


def at_the_wall(result: Result, *names: str) -> Result:
    """Return a result of which only some families were measured, the last one counted."""
    groups = [replace(g, name=n, scopes=(n,)) for n in names for g in result.groups if g.name == "measured"]
    return replace(result, groups=(*groups, replace(groups[-1], name="measured")))


def test_the_wall_is_not_compared_with_the_inside(runs: Path) -> None:
    result = result_of(make_run(runs))
    wall, inside = at_the_wall(result, "gpu", "node.ac"), at_the_wall(result, "gpu")
    both = compare(wall, inside)
    energy = both.line("energy")
    assert energy is not None
    assert energy.a.value == pytest.approx(energy.b.value)
    assert both.notes()[0] == "A and B were not measured at the same points; compared is what both have: gpu."
    nodes = compare(at_the_wall(result, "gpu", "node.dc", "node.ac"), at_the_wall(result, "gpu", "node.dc"))
    assert "compared is what both have: node.dc." in nodes.notes()[0]
    nothing = compare(at_the_wall(result, "node.ac"), inside)
    assert nothing.line("energy") is None
    assert "nothing was measured in both" in nothing.verdict()


def test_sensors_that_measure_part_of_the_time_resolve_650_w_from_300_w(runs: Path) -> None:
    a, b = (result_of(make_run(runs, gpus=1, cpus=0, gpu_w=watts, seen=0.25)) for watts in (650.0, 300.0))
    found = compare(a, b)
    energy = found.line("energy")
    assert energy is not None
    assert energy.difference is True
    assert found.verdict().startswith("B uses 53.8")
    (note,) = (n for n in found.notes() if "in step" in n)
    assert note.startswith("If a load repeats exactly in step with the sensors, B / A can be off by up to ")
    plain = energy.to_json()["ratio"]
    assert plain["expanded"] < 0.05 < 0.3 < plain["bound"]
