"""The whole answer for a rack: from numbers alone, from runs, from runs under caps, from a mix of jobs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.measured_runs import measured, node_run, only_accounted

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rack.cap_guarantee import ACCURACY, FOLLOW
from joulelab.plan.rack.job_mix import MixJob
from joulelab.plan.rack.limits import Rack, Rules
from joulelab.plan.rack.peaks import ASSUMED_SPREAD
from joulelab.plan.rack.rack_output import write_json
from joulelab.plan.rack.rack_plan import plan_rack

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

BNL = Rack(supply_w=70_000.0, margin=0.27, nodes_now=5, rules=Rules(max_w=8_480.0))
DGX = NodeKind("dgx", rated_w=10_200.0)
GAIN, GPU_ERROR = (2 * share / math.sqrt(3) for share in (0.01, 0.05))  # k = 2 of what `node_run` states


def wave(second: float) -> float:
    return 7_000.0 if int(second / 5) % 2 else 6_000.0


def test_caps_promise_less_than_nodes_draw_without(tmp_path: Path):
    run = measured(node_run(tmp_path, 7_000.0, gpu_w=600.0, gpus=8))
    rack = Rack(supply_w=70_000.0, rules=Rules(caps_w=(400.0,)))
    rows = {row.rule: row for row in plan_rack(rack, NodeKind("x", efficiency=0.96), [run]).rows if row.kind == "caps"}
    assert list(rows) == ["caps 700 W", "caps 400 W"]  # the boards' own limit, and what was asked
    free, capped = rows.values()
    assert free.node_w is not None
    assert capped.node_w is not None
    # Fans follow above the 600 W that were seen; below, GPUs that read low come down by less than they say.
    assert free.node_w - capped.node_w == pytest.approx(8 * (100 * FOLLOW + 200 * (1 - GPU_ERROR) / 0.96), rel=1e-3)
    assert free.exceed is not None
    assert capped.exceed is None  # what nodes drew without caps says nothing of it
    assert free.sure == free.nodes  # what is known of all meters is in the promise already
    assert capped.nodes is not None


def test_runs_under_caps_say_what_caps_cost_and_nothing_else(tmp_path: Path):
    runs = [
        measured(node_run(tmp_path / "free", 8_000.0, gpu_w=690.0, gpus=8, seconds=20.0)),
        measured(node_run(tmp_path / "500", 6_400.0, gpu_w=490.0, gpus=8, cap=500.0, seconds=22.0)),
        measured(node_run(tmp_path / "400", 5_600.0, gpu_w=390.0, gpus=8, cap=400.0, seconds=26.0)),
    ]
    kind = NodeKind("dgx", gpu_w=700.0, gpus=8, efficiency=0.95)
    plan = plan_rack(Rack(supply_w=40_000.0), kind, runs)
    assert plan.recommendation.row.node_w == pytest.approx(8_000)
    assert plan.cost.response is not None
    assert plan.cost.response.source == "measured"
    assert plan.cost.response.caps_w == (400.0, 500.0, 700.0)
    six = next(t for t in plan.targets if t.nodes == 6)  # 6.67 kW each
    assert six.by_response is not None
    assert six.by_response.cap_w == 500.0
    assert six.by_response.slowdown is not None
    assert six.by_response.slowdown.value == pytest.approx(1.1, rel=0.01)
    assert six.by_response.energy is not None
    assert six.by_response.energy.value == pytest.approx(22 * 6_400 / (20 * 8_000), rel=0.01)
    assert plan.left_out == 2


@pytest.mark.system  # pure, and slow
def test_caps_of_nodes_read_behind_the_supplies_hold_at_the_wall(tmp_path: Path):
    runs = [
        measured(node_run(tmp_path / "free", 8_000.0, gpu_w=690.0, gpus=8, scope="node.dc")),
        measured(node_run(tmp_path / "500", 6_400.0, gpu_w=490.0, gpus=8, cap=500.0, scope="node.dc", seconds=22.0)),
        measured(node_run(tmp_path / "400", 5_600.0, gpu_w=390.0, gpus=8, cap=400.0, scope="node.dc", seconds=26.0)),
    ]
    plan = plan_rack(Rack(supply_w=34_000.0), NodeKind("dgx", gpu_w=700.0, efficiency=0.95), runs)
    # 6.8 kW each; 6.4 kW are 6.81 kW at the wall, with the meter's gain.
    five = next(t for t in plan.targets if t.nodes == 5)
    assert five.by_response is not None
    assert five.by_response.cap_w == 400.0


def capped_pair(folder: Path) -> list[MeasuredRun]:
    """Return two runs, both under caps."""
    return [
        measured(node_run(folder / "500", 6_400.0, gpu_w=490.0, gpus=8, cap=500.0, seconds=22.0)),
        measured(node_run(folder / "400", 5_600.0, gpu_w=390.0, gpus=8, cap=400.0, seconds=26.0)),
    ]


def test_parts_of_a_node_are_not_a_node(tmp_path: Path):
    from tests.report.synthetic import make_run

    with pytest.raises(ConfigError, match="whole nodes"):
        plan_rack(Rack(supply_w=70_000.0), DGX, [measured(make_run(tmp_path))])


def test_a_mix_of_jobs_is_held_against_the_rack(tmp_path: Path):
    run = measured(node_run(tmp_path, wave, seconds=120.0))
    jobs = [(MixJob("train", 4), [run]), (MixJob("single", 1, count=2), [run])]
    rack = Rack(supply_w=41_800.0, rules=Rules(percentiles=(90.0,)))
    plan = plan_rack(rack, DGX, [run], jobs)
    mix = plan.mix
    assert mix is not None
    assert mix.nodes == 6
    assert mix.maximum_w == pytest.approx(42_000, rel=1e-3)
    assert mix.allowed_w == pytest.approx(41_800)
    # Above 41.8 kW only where all three jobs are high at once: an eighth of the time.
    assert mix.exceed.share == pytest.approx(0.125, rel=0.05)
    assert not mix.fits_as_read
    assert mix.upper_w == pytest.approx(42_000 * (1 + np.hypot(GAIN, ASSUMED_SPREAD)), rel=1e-3)
    assert mix.exceed.wider == pytest.approx(mix.upper_w / mix.maximum_w)
    json.dumps(write_json(plan), allow_nan=False)


def test_a_models_cap_is_no_lower_than_one_that_is_promised(tmp_path: Path):
    def bursts(second: float) -> float:
        return 8_000.0 if second % 20 < 1 else 3_000.0

    one = measured(node_run(tmp_path, bursts, seconds=60.0, gpu_w=300.0, gpus=8))
    kind = NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0, host_w=2_000.0, efficiency=0.95)
    plan = plan_rack(Rack(supply_w=70_000.0), kind, [one])
    assert plan.cost.response is not None
    assert plan.cost.response.source == "model"
    for target in plan.targets:
        if (
            target.by_guarantee is not None
            and target.by_guarantee.cap_w
            and target.by_response
            and target.by_response.is_needed
        ):
            assert target.by_response.cap_w is not None
            assert target.by_response.cap_w >= target.by_guarantee.cap_w


# Numbers alone


def test_the_published_case_from_numbers_alone():
    plan = plan_rack(BNL, DGX)
    nameplate, maximum, caps = plan.rows
    assert (nameplate.nodes, maximum.nodes) == (5, 6)
    assert maximum.free == pytest.approx(0.2731, abs=5e-5)
    assert nameplate.free == pytest.approx(0.2714, abs=5e-5)
    assert maximum.sure is None  # nothing is known of the meter
    assert caps.refusal == Note("rack.gpus-unknown")
    best = plan.recommendation
    assert (best.nodes, best.row.rule, best.is_upper, best.binding) == (6, "measured maximum", False, "supply")
    assert [t.nodes for t in plan.targets] == [7]
    assert plan.targets[0].short_w == pytest.approx(7 * 8_480 - 51_100)
    json.dumps(write_json(plan), allow_nan=False)


@pytest.mark.parametrize(
    ("rack", "kind", "nodes", "rule"),
    [
        (Rack(supply_w=70_000.0), DGX, 6, "nameplate"),  # nothing was measured
        (Rack(supply_w=70_000.0, rules=Rules(max_w=80_000.0)), DGX, 0, "measured maximum"),
        (Rack(supply_w=70_000.0), NodeKind("x", gpus=8, gpu_w=700.0, host_w=2e3, efficiency=0.95), 8, "caps 700 W"),
    ],
)
def test_the_rule_of_the_recommendation_without_runs(rack: Rack, kind: NodeKind, nodes: int, rule: str):
    best = plan_rack(rack, kind).recommendation
    assert (best.nodes, best.row.rule) == (nodes, rule)


def test_room_that_is_missing_helps_no_cap():
    plan = plan_rack(Rack(supply_w=70_000.0, height_u=42.0, rules=Rules(max_w=5_000.0)), NodeKind("x", height_u=8.0))
    assert (plan.recommendation.nodes, plan.recommendation.binding) == (5, "height")
    assert not plan.targets[-1].has_room


def test_caps_that_gpus_do_not_take_have_no_row():
    rules = Rules(max_w=8_480.0, caps_w=(10.0, 500.0, 900.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=rules), NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0))
    rows = {row.rule: row for row in plan.rows if row.kind == "caps"}
    assert [rows[f"caps {cap} W"].nodes is None for cap in (10, 500, 700, 900)] == [True, False, False, True]
    assert rows["caps 10 W"].refusal == Note("rack.cap-not-taken", {"gpu_w": 700.0, "lowest_w": 200.0})


# Runs


def test_from_runs_every_rule_answers_or_is_refused(tmp_path: Path):
    run = measured(node_run(tmp_path, wave, seconds=300.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=Rules(percentiles=(30.0, 60.0, 99.9))), DGX, [run])
    rows = {row.rule: row for row in plan.rows}
    assert list(rows) == ["nameplate", "measured maximum", "p30", "p60", "p99.9", "caps"]
    top, p30 = rows["measured maximum"], rows["p30"]
    # 7.0 kW just fits ten times; with the meter's gain and other nodes it does not.
    assert (top.node_w, top.nodes, top.sure) == (pytest.approx(7_000), 10, 9)
    assert top.exceed is not None
    assert top.exceed.share == 0 < top.exceed.high < 1
    assert rows["p99.9"].refusal is not None
    # By the upper end of its interval, not by the estimate: 6 kW would be eleven nodes.
    assert p30.percentile is not None
    assert (p30.percentile.value_w, p30.node_w) == (pytest.approx(6_000), pytest.approx(7_000))
    assert (p30.nodes, rows["p60"].nodes) == (10, 10)
    best = plan.recommendation
    assert (best.nodes, best.is_upper, best.by_reading, best.decider) == (9, True, 10, "nodes")
    assert best.free == pytest.approx(1 - 9 * (top.upper_w or 0.0) / 70_000)
    json.dumps(write_json(plan), allow_nan=False)


def test_a_nameplate_below_the_upper_end_allows_its_nodes(tmp_path: Path):
    run = measured(node_run(tmp_path, 7_000.0))
    best = plan_rack(Rack(supply_w=70_700.0), NodeKind("x", rated_w=7_050.0), [run]).recommendation
    assert (best.nodes, best.row.rule) == (10, "nameplate")
    above = plan_rack(Rack(supply_w=70_700.0), NodeKind("x", rated_w=6_000.0), [run]).recommendation
    assert (above.nodes, above.row.rule) == (9, "measured maximum")  # a nameplate that was exceeded bounds nothing


def test_a_given_maximum_counts_beside_the_runs(tmp_path: Path):
    one = measured(node_run(tmp_path, wave, seconds=30.0))
    best = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=9_000.0)), DGX, [one]).recommendation
    assert (best.nodes, best.row.rule) == (7, "maximum as given")
    lower = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=5_000.0)), DGX, [one]).recommendation
    assert lower.row.rule == "measured maximum"


def test_unknown_errors_are_named(tmp_path: Path):
    plan = plan_rack(Rack(supply_w=70_000.0), DGX, [measured(node_run(tmp_path, 6_000.0, gain=None))])
    row = plan.recommendation.row
    assert row.upper_w == pytest.approx(6_000 * (1 + ASSUMED_SPREAD))  # the spread of nodes is known
    assert (row.sure, row.lacks) == (11, (ACCURACY,))


def test_readings_once_a_minute_raise_the_upper_end(tmp_path: Path):
    slow = plan_rack(Rack(supply_w=7e4), DGX, [measured(node_run(tmp_path / "a", wave, seconds=1200.0, step_s=60.0))])
    fast = plan_rack(Rack(supply_w=7e4), DGX, [measured(node_run(tmp_path / "b", wave, seconds=60.0))])
    ratios = [(p.recommendation.row.upper_w or 0.0) / (p.recommendation.row.node_w or 1.0) for p in (slow, fast)]
    assert ratios[0] == pytest.approx(ratios[1] * 1.03, rel=1e-3)


def test_power_behind_the_supplies_is_taken_to_the_wall(tmp_path: Path):
    run = measured(node_run(tmp_path, 6_000.0, scope="node.dc"))
    given = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", efficiency=0.96), [run])
    assert given.recommendation.row.node_w == pytest.approx(6_000 / 0.96, rel=1e-3)
    assumed = plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [run])
    assert assumed.recommendation.row.node_w == pytest.approx(6_000 / 0.90, rel=1e-3)


def test_power_at_the_wall_beside_power_behind_the_supplies_is_refused_without_an_efficiency(tmp_path: Path):
    runs = [measured(node_run(tmp_path / scope, 6_000.0, scope=scope)) for scope in ("node.ac", "node.dc")]
    with pytest.raises(ConfigError, match=r"at the wall \(AC\) are mixed with runs measured behind") as error:
        plan_rack(Rack(supply_w=70_000.0), DGX, runs)
    assert error.value.code == "config.mixed-sides"
    with pytest.raises(ConfigError, match=r"\(AC\) are mixed"):  # a job of the mix counts, too
        plan_rack(Rack(supply_w=70_000.0), DGX, runs[:1], [(MixJob("train", 2), runs[1:])])
    given = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", efficiency=0.9), runs)
    assert given.recommendation.row.node_w == pytest.approx(6_000 / 0.9, rel=1e-3)


def test_runs_without_readings_over_time_are_left_out_or_refused(tmp_path: Path):
    job, run = only_accounted(tmp_path / "job"), measured(node_run(tmp_path / "run", 6_000.0))
    assert plan_rack(Rack(supply_w=70_000.0), DGX, [job, run]).unread == (job.result.run,)
    with pytest.raises(ConfigError, match=r"power of a node is unknown.*no readings over time"):
        plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [job])
    with pytest.raises(ConfigError, match=r"the power of train of \[\[mix\]\] is unknown"):
        plan_rack(Rack(supply_w=70_000.0), DGX, [run], [(MixJob("train", 2), [job])])


def test_runs_that_were_all_under_caps_are_marked(tmp_path: Path):
    rack = Rack(supply_w=40_000.0, rules=Rules(max_w=6_500.0, caps_w=(600.0, 500.0, 450.0)))
    runs = capped_pair(tmp_path)
    plan = plan_rack(rack, NodeKind("dgx", rated_w=10_200.0, gpu_w=700.0), runs, [(MixJob("train", 6), runs)])
    assert plan.run_cap is not None
    assert (plan.run_cap.cap_w, plan.left_out) == (500.0, 1)
    rows = {row.rule: row for row in plan.rows}
    assert rows["measured maximum"].node_w == pytest.approx(6_400)
    # The power under 500 W shows nothing of nodes without caps, nor under other ones.
    exceeded = {rule for rule, row in rows.items() if row.exceed is not None}
    assert exceeded == {"measured maximum", "caps 500 W"}
    assert plan.cost.against_w == 500.0
    assert plan.mix is not None
    assert plan.mix.names == ("1 x train under caps on 6",)
    json.dumps(write_json(plan), allow_nan=False)


@pytest.mark.parametrize("cap", [700.0, None])
def test_a_cap_at_the_limit_of_the_gpus_is_none(tmp_path: Path, cap: float | None):
    run = measured(node_run(tmp_path, 6_400.0, gpu_w=490.0, gpus=8, cap=cap))
    assert plan_rack(Rack(supply_w=40_000.0), DGX, [run]).run_cap is None


def test_gpus_that_were_not_read_are_modelled_from_given_figures(tmp_path: Path):
    run = measured(node_run(tmp_path, 8_000.0, seconds=30.0))
    response = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", gpus=8, gpu_w=700.0), [run]).cost.response
    assert response is not None
    assert (response.source, response.points[-1].highest_w) == ("model", pytest.approx(8_000))
    assert plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [run]).cost.refusal == Note("rack.gpus-unknown")
    capped = measured(node_run(tmp_path / "capped", 8_000.0, cap=500.0))
    assert plan_rack(Rack(supply_w=7e4), NodeKind("x", gpus=8, gpu_w=700.0), [capped]).cost.response is None


@pytest.mark.parametrize(
    ("supply_w", "gain", "fits", "fits_as_read"),
    [(41_800.0, 0.01, False, False), (42_500.0, 0.01, False, True), (43_000.0, None, True, True)],
)
def test_a_mix_fits_as_read_or_with_errors(
    tmp_path: Path, supply_w: float, gain: float | None, fits: bool, fits_as_read: bool
):
    run = measured(node_run(tmp_path, wave, seconds=120.0, gain=gain))
    mix = plan_rack(Rack(supply_w=supply_w), DGX, [run], [(MixJob("train", 6), [run])]).mix
    assert mix is not None
    assert (mix.fits, mix.fits_as_read, mix.has_unknown_error) == (fits, fits_as_read, gain is None)


def sweep_cool_work(folder: Path) -> list[MeasuredRun]:
    """Return runs at several caps of work that hardly notices them."""
    cases = [(None, 5_000.0, 300.0), (400.0, 5_000.0, 300.0), (250.0, 4_500.0, 240.0)]
    return [
        measured(node_run(folder / f"{cap}", watts, gpu_w=gpu_w, gpus=8, cap=cap, labels={"workload": "cool"}))
        for cap, watts, gpu_w in cases
    ]


def test_caps_on_cooler_work_do_not_count_for_the_hottest(tmp_path: Path):
    """Two nodes of 7.5 kW each: the cool work fits without a cap and would be no slower, the hot one draws 9 kW."""
    hot = measured(node_run(tmp_path / "hot", 9_000.0, gpu_w=650.0, gpus=8, labels={"workload": "hot"}))
    plan = plan_rack(Rack(supply_w=15_000.0), NodeKind("x", gpus=8, gpu_w=700.0), [hot, *sweep_cool_work(tmp_path)])
    option = plan.targets[0].by_response
    assert (plan.cost.response and plan.cost.response.source, plan.targets[0].nodes) == ("model", 2)
    assert option is not None
    assert option.is_needed
    assert option.cap_w is not None
    assert 9_000 - 8 * (650 - option.cap_w) < 7_500
    assert option.slowdown is not None
    assert option.slowdown.value > 1.1


def test_caps_on_runs_below_a_given_maximum_have_no_cost(tmp_path: Path):
    rack = Rack(supply_w=15_000.0, rules=Rules(max_w=9_000.0))
    plan = plan_rack(rack, NodeKind("x", gpus=8, gpu_w=700.0), sweep_cool_work(tmp_path))
    assert plan.cost.refusal == Note("rack.cost-of-maximum", {"max_w": 9_000.0})
    assert plan.recommendation.option is not None
    assert plan.recommendation.option.slowdown is None


def test_a_modelled_cap_counts_gpus_at_their_cap_not_at_their_mean():
    """Seven nodes of 7.3 kW: 8 GPUs from 700 to 560 W take off 1120 W, so 8.48 kW do not fit; to 525 W they do."""
    target = plan_rack(BNL, NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0)).targets[0]
    assert target.by_response is not None
    assert (target.nodes, target.by_response.cap_w) == (7, 525.0)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(NodeKind("x", gpus=4), "config.gpu-count"), (NodeKind("x", gpu_w=400.0), "config.gpu-power")],
)
def test_fewer_or_smaller_gpus_than_were_measured_are_refused(tmp_path: Path, kind: NodeKind, code: str):
    run = measured(node_run(tmp_path, 6_000.0, gpu_w=500.0, gpus=8))
    with pytest.raises(ConfigError) as caught:
        plan_rack(Rack(supply_w=70_000.0), kind, [run])
    assert caught.value.code == code


def test_simulated_jobs_are_not_mixed_with_measured_nodes_and_are_called_simulated(tmp_path: Path):
    real = measured(node_run(tmp_path / "real", 6_000.0))
    twin = measured(node_run(tmp_path / "twin", 6_000.0, twin={"name": "bnl-h100"}))
    with pytest.raises(ConfigError) as caught:
        plan_rack(Rack(supply_w=70_000.0), DGX, [real], [(MixJob("train", 2), [twin])])
    assert caught.value.code == "config.simulated"
    assert plan_rack(Rack(supply_w=70_000.0), DGX, [], [(MixJob("train", 2), [twin])]).twins == ("bnl-h100",)
