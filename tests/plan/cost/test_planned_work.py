"""Planned work: what runs used, scaled to other amounts, node counts, caps and batches, each step with its worth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.plan.measured_runs import measured, node_run

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.cap_response import find_cap_response
from joulelab.plan.cost.work import (
    LEAST_SPEED_KEPT,
    Work,
    WorkBasis,
    continue_power_law,
    count_gpus,
    plan_work,
)

if TYPE_CHECKING:
    from joulelab.plan.measured_runs import MeasuredRun

NODES = Path(__file__).parents[4] / "shared" / "data" / "h100-node-power"
HOSTS = ("n1", "n2", "n3", "n4")


def runs_of(
    folder: Path, seconds: list[float], watts: float = 4000.0, nodes: int = 1, **more: Any
) -> list[MeasuredRun]:
    """Return runs of the same 1000 samples that took so long."""
    given: dict[str, Any] = {"work": {"samples": 1000.0}, "hosts": HOSTS[:nodes]} | more
    return [measured(node_run(folder, watts, seconds=each, **given)) for each in seconds]


def work(unit: str = "samples", amount: float = 10_000.0, **more: Any) -> Work:
    return Work("planned", unit, amount, **more)


def test_more_of_what_was_measured(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, [19.8, 20.0, 20.2])
    found = plan_work(work(), runs)
    assert found.steps == ()
    assert found.time.value == pytest.approx(200.0)
    assert found.whole.value == pytest.approx(200.0 * 4000.0, rel=0.03)
    assert found.time.known
    assert 0.001 < found.time.u / 200.0 < 0.03
    assert found.notes == ()
    parts = found.split_energy([0.0, 50.0, 200.0])  # type: ignore[arg-type]
    assert [p.value for p in parts] == pytest.approx([found.whole.value / 4, 3 * found.whole.value / 4])


def test_a_single_run_is_not_taken_as_exact(tmp_path: Path) -> None:
    found = plan_work(work(), runs_of(tmp_path, [20.0]))
    assert [note.code for note in found.notes] == ["cost.single-run"]
    assert found.time.expanded == pytest.approx(0.05 * 200.0)


def test_hours_and_whole_runs_are_units(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, [20.0], nodes=2, gpu_w=300.0, gpus=2)
    by_run = plan_work(work("runs", 3.0), runs)
    assert by_run.time.value == pytest.approx(60.0)
    by_node = plan_work(work("node_hours", 10.0), runs)
    assert by_node.time.value == pytest.approx(5 * 3600.0)
    assert by_node.whole.value == pytest.approx(10 * 3600 * 4000.0, rel=0.02)
    by_gpu = plan_work(work("gpu_hours", 20.0), runs)
    assert by_gpu.time.value == pytest.approx(5 * 3600.0)
    assert count_gpus(runs[0]) == 4
    blind = runs_of(tmp_path / "blind", [20.0])
    with pytest.raises(ConfigError, match="has no number of GPUs"):
        plan_work(work("gpu_hours", 20.0), blind)
    assert plan_work(work("gpu_hours", 20.0, gpus=8), blind).time.value == pytest.approx(2.5 * 3600)


def test_work_that_no_run_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reports no tokens \(it has samples, runs"):
        plan_work(work("tokens"), runs_of(tmp_path, [20.0]))
    with pytest.raises(ConfigError, match="no run of this work"):
        plan_work(work(), [])


def test_one_node_count_gives_a_range_whose_one_end_is_ideal(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, [20.0, 20.1])
    one, four = plan_work(work(), runs), plan_work(work(nodes=4), runs)
    (step,) = four.steps
    assert step.worth == "assumed"
    ideal = one.time.value / 4
    assert four.time.value - 2 * step.time.u * one.time.value <= ideal * 1.001
    assert four.time.value == pytest.approx(ideal * (1 + LEAST_SPEED_KEPT**-2) / 2)
    assert four.whole.value > one.whole.value
    assert four.whole.value - (four.whole.expanded or 0) < one.whole.value
    assert four.nodes == 4
    fewer = plan_work(work(nodes=1), runs_of(tmp_path / "four", [20.0], nodes=4))
    assert fewer.time.value < 4 * 200.0  # less is lost on one


def test_what_is_not_known_of_spreading_is_one_thing_in_energy_and_time(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, [20.0, 20.1])
    alone = plan_work(work(), runs)
    for nodes in (2, 8):
        found = plan_work(work(nodes=nodes), runs)
        power, own = found.whole / (found.time * nodes), alone.whole / alone.time
        # Of the power of a node only what waiting nodes draw is left: it is no higher than measured, within that.
        assert power.value < own.value < power.value + 2 * power.u
        apart = math.hypot(found.whole.u / found.whole.value, found.time.u / found.time.value)
        assert power.u / power.value < 0.4 * apart
    fewer = plan_work(work(nodes=1), runs_of(tmp_path / "four", [20.0, 20.1], nodes=4))
    (step,) = fewer.steps
    assert step.time.value / 4 < step.energy.value < 1 < step.energy.value + 2 * step.energy.u


def test_node_counts_that_were_measured_are_used(tmp_path: Path) -> None:
    runs = [*runs_of(tmp_path, [40.0, 40.2]), *runs_of(tmp_path, [12.5, 12.6], nodes=4, watts=3600.0)]
    at_four = plan_work(work(nodes=4), runs)
    assert at_four.steps == ()
    assert at_four.time.value == pytest.approx(125.5)
    between = plan_work(work(nodes=2), runs)
    (step,) = between.steps
    assert (step.worth, step.axis) == ("interpolated", "nodes")
    ideal = 401.0 / 2
    assert ideal < between.time.value < ideal * 125.5 * 4 / 401.0
    further = plan_work(work(nodes=8), runs)
    assert further.steps[0].worth == "assumed"
    assert further.time.value < at_four.time.value
    assert further.time.u / further.time.value > between.time.u / between.time.value
    with pytest.raises(ConfigError, match="several values of nodes: 1, 4"):
        plan_work(work(), runs)


def test_batches_are_interpolated_and_never_beyond(tmp_path: Path) -> None:
    runs = [
        *runs_of(tmp_path, [40.0, 40.2], facts={"batch": 64}, watts=3000.0),
        *runs_of(tmp_path, [20.0, 20.1], facts={"batch": 256}, watts=5000.0),
    ]
    assert plan_work(work(batch=256.0), runs).time.value == pytest.approx(200.5)
    middle = plan_work(work(batch=128.0), runs)
    (step,) = middle.steps
    assert (step.worth, step.reason) == ("interpolated", "between runs at 64 and 256")
    assert 200.5 < middle.time.value < 401.0
    assert middle.time.expanded is not None
    assert middle.time.expanded > 0.2 * (401.0 - 200.5)
    for outside in (32.0, 512.0):
        with pytest.raises(ConfigError, match="outside the measured range"):
            plan_work(work(batch=outside), runs)
    with pytest.raises(ConfigError, match="several values of batch"):
        plan_work(work(), runs)
    with pytest.raises(ConfigError, match="no run records its batch"):
        plan_work(work(batch=128.0), runs_of(tmp_path / "none", [20.0]))


def test_caps_by_what_was_measured_or_by_the_model(tmp_path: Path) -> None:
    gpus: dict[str, Any] = {"gpu_w": 600.0, "gpus": 2}
    swept = [
        *runs_of(tmp_path, [20.0, 20.1], watts=2000.0, **gpus),
        *runs_of(tmp_path, [24.0, 24.1], watts=1500.0, cap=400.0, **gpus),
    ]
    full = plan_work(work(), swept)
    assert full.time.value == pytest.approx(200.5)  # without a cap where none is asked for
    assert plan_work(work(cap_w=400.0), swept).steps == ()
    between = plan_work(work(cap_w=500.0), swept)
    (step,) = between.steps
    assert (step.axis, step.worth) == ("cap", "interpolated")
    assert 200.5 < between.time.value < 240.5
    response = find_cap_response(swept)
    power = response.at(500.0).node_w.value / response.points[-1].node_w.value
    assert step.energy.value == pytest.approx(power * step.time.value)
    with pytest.raises(ConfigError, match="the effect of a cap of 300 W is not known"):
        plan_work(work(cap_w=300.0), swept)
    (modelled,) = plan_work(work(cap_w=500.0), swept[:2]).steps
    assert modelled.worth == "assumed"
    assert "not measured" in modelled.reason


def test_steps_multiply(tmp_path: Path) -> None:
    gpus: dict[str, Any] = {"gpu_w": 600.0, "gpus": 2}
    runs = [
        *runs_of(tmp_path, [20.0, 20.1], watts=2000.0, **gpus),
        *runs_of(tmp_path, [24.0, 24.1], watts=1500.0, cap=400.0, **gpus),
    ]
    alone = plan_work(work(cap_w=500.0), runs)
    both = plan_work(work(cap_w=500.0, nodes=2), runs)
    assert [s.axis for s in both.steps] == ["nodes", "cap"]
    spread = both.steps[0]
    assert both.whole.value == pytest.approx(alone.whole.value * spread.energy.value)
    assert both.time.value == pytest.approx(alone.time.value * spread.time.value)


def test_runs_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    other = runs_of(tmp_path, [20.0], labels={"workload": "other"})
    with pytest.raises(ConfigError, match=r"the runs differ in workload: other, python train\.py"):
        WorkBasis.from_runs([*runs_of(tmp_path, [20.0]), *other], "samples")
    cells = [
        run
        for gpus in ("1", "2")
        for run in runs_of(tmp_path, [20.0], labels={"study": "s", "workload": "t", "gpus": gpus})
    ]
    with pytest.raises(ConfigError, match="--only gpus=VALUE"):
        WorkBasis.from_runs(cells, "samples")
    inside = runs_of(tmp_path, [20.0], scope="node.dc")
    with pytest.raises(ConfigError, match="the runs differ in side"):
        WorkBasis.from_runs([*runs_of(tmp_path, [20.0]), *inside], "samples")


def test_rated_power_by_time_is_of_the_planned_time(tmp_path: Path) -> None:
    found = plan_work(work(nodes=2), runs_of(tmp_path, [20.0, 20.1]), rated_w=10_200.0)
    assert found.nameplate is not None
    assert found.nameplate.watts == 20_400.0
    assert found.nameplate.kwh == pytest.approx(20_400.0 * found.time.value / 3.6e6)
    assert found.nameplate.ratio is not None
    ratio = found.nameplate.ratio
    assert ratio.expanded is not None
    assert ratio.value > 10_200 / 4000 > ratio.value - ratio.expanded  # nodes that wait draw less, or as much
    assert found.highest_w == pytest.approx(8000.0)


def test_a_power_law_goes_on_with_all_of_its_change_unsure() -> None:
    points = [Quantity(1.0), Quantity(1.1), Quantity(1.21)]
    found = continue_power_law([1, 2, 4], points, 8, "scaling:x")
    assert found.value == pytest.approx(1.331)
    assert found.terms["scaling:x"] >= 0.121 / 3**0.5 - 1e-12


@pytest.mark.system  # pure, and slow
@pytest.mark.skipif(not NODES.is_dir(), reason=f"no {NODES}: real logs are not part of the project")
def test_eight_real_nodes_are_within_what_one_of_them_promises(tmp_path: Path) -> None:
    """Logs of MLPerf Training v4.0 (Apache-2.0): the same job on one node of 8 H100 and on eight."""
    from tests.analysis.test_real_import import imported, node_log

    from joulelab.plan.measured_runs import read_measured_run
    from joulelab.store.run_reader import open_run

    found = {}
    for name in ("1node_resnet_0", "8node_resnet_0"):
        made, _ = imported(tmp_path / name, node_log(name))
        with open_run(made.run) as run:
            found[name] = read_measured_run(run)
    eight = found.pop("8node_resnet_0")
    planned = plan_work(work("runs", 1.0, nodes=8), list(found.values()))
    assert eight.result.energy is not None
    seconds, joules = eight.result.duration_s, eight.result.energy.value
    power = planned.whole / planned.time
    for plan, real in ((planned.time, seconds), (planned.whole, joules), (power, joules / seconds)):
        assert plan.expanded is not None
        assert abs(plan.value - real) < plan.expanded
