"""The whole answer for a rack: from numbers alone, from runs, from runs under caps, from a mix of jobs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.measured_runs import measured, node_run
from tests.plan.rack.draws import only_accounted

from joulelab.core.errors import ConfigError
from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rack import mix
from joulelab.plan.rack.rack_plan import plan_rack
from joulelab.plan.rack.limits import Rack, Rules
from joulelab.plan.rack.cap_guarantee import ACCURACY, FOLLOW
from joulelab.plan.rack.job_mix import MixJob
from joulelab.plan.rack.peaks import ASSUMED_SPREAD

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

BNL = Rack(supply_w=70_000.0, margin=0.27, nodes_now=5, rules=Rules(max_w=8_480.0))
DGX = NodeKind("dgx", rated_w=10_200.0)
GAIN, GPU_ERROR = (2 * share / math.sqrt(3) for share in (0.01, 0.05))  # k = 2 of what `node_run` states


def wave(second: float) -> float:
    return 7_000.0 if int(second / 5) % 2 else 6_000.0


def test_the_published_case_from_numbers_alone():
    plan = plan_rack(BNL, DGX)
    nameplate, maximum, caps = plan.rows
    assert (nameplate.nodes, maximum.nodes) == (5, 6)
    assert maximum.free == pytest.approx(0.2731, abs=5e-5)
    assert nameplate.free == pytest.approx(0.2714, abs=5e-5)
    assert nameplate.stranded_w == pytest.approx(8_700)
    assert maximum.sure is None  # nobody says how it was measured
    assert "gpus" in caps.refused
    assert plan.best is maximum
    assert [t.nodes for t in plan.targets] == [6, 7]
    assert plan.targets[1].short_w == pytest.approx(7 * 8_480 - 51_100)
    assert not plan.twins


def test_a_rack_without_nodes_is_refused():
    with pytest.raises(ConfigError, match="a rack without nodes"):
        plan_rack(Rack(supply_w=70_000.0), NodeKind("node"))


def test_from_runs_every_rule_answers_or_says_why(tmp_path: Path):
    run = measured(node_run(tmp_path, wave, seconds=300.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=Rules(percentiles=(30.0, 60.0, 99.9))), DGX, [run])
    rows = {row.rule: row for row in plan.rows}
    assert list(rows) == ["nameplate", "measured maximum", "p30", "p60", "p99.9", "caps"]
    top = rows["measured maximum"]
    assert top.node_w == pytest.approx(7_000)
    assert top.nodes == 10
    assert top.upper_w is not None
    assert top.upper_w > 7_000
    assert top.sure == 9  # 7.0 kW just fits ten times; with the meter's gain it does not
    assert top.exceed is not None
    assert top.exceed.share == 0
    assert 0 < top.exceed.high < 1
    assert "measure" in rows["p99.9"].refused
    # By the upper end of its interval, not by the estimate: 6 kW would be eleven nodes.
    assert (rows["p30"].value_w, rows["p30"].high_w) == (pytest.approx(6_000), pytest.approx(7_000))
    assert rows["p30"].nodes == rows["p60"].nodes == 10
    assert rows["p30"].node_w == rows["p30"].high_w
    assert rows["p30"].low_w == pytest.approx(6_000)
    assert plan.steps is not None
    assert plan.steps.fall is not None
    assert plan.steps.fall.watts == pytest.approx(-10 * 1_000)
    assert plan.curve is not None
    shares, watts = plan.curve
    assert watts[0] == pytest.approx(7_000)
    assert shares[-1] == pytest.approx(100)
    json.dumps(plan.to_json(), allow_nan=False)


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
    assert capped.stranded_w == pytest.approx(70_000 - capped.nodes * capped.node_w)


def test_runs_under_caps_say_what_caps_cost_and_nothing_else(tmp_path: Path):
    runs = [
        measured(node_run(tmp_path / "free", 8_000.0, gpu_w=690.0, gpus=8, seconds=20.0)),
        measured(node_run(tmp_path / "500", 6_400.0, gpu_w=490.0, gpus=8, cap=500.0, seconds=22.0)),
        measured(node_run(tmp_path / "400", 5_600.0, gpu_w=390.0, gpus=8, cap=400.0, seconds=26.0)),
    ]
    kind = NodeKind("dgx", gpu_w=700.0, gpus=8, efficiency=0.95)
    plan = plan_rack(Rack(supply_w=40_000.0), kind, runs)
    assert plan.best.node_w == pytest.approx(8_000)
    assert plan.response is not None
    assert plan.response.source == "measured"
    assert plan.response.caps_w == (400.0, 500.0, 700.0)
    six = next(t for t in plan.targets if t.nodes == 6)  # 6.67 kW each
    assert six.measured is not None
    assert six.measured.cap_w == 500.0
    assert six.measured.slowdown is not None
    assert six.measured.slowdown.value == pytest.approx(1.1, rel=0.01)
    assert six.measured.energy is not None
    assert six.measured.energy.value == pytest.approx(22 * 6_400 / (20 * 8_000), rel=0.01)
    assert any("2 runs under caps are left out" in text for text in plan.assumed)


def test_power_behind_the_supplies_is_taken_to_the_wall(tmp_path: Path):
    run = measured(node_run(tmp_path, 6_000.0, scope="node.dc"))
    given = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", efficiency=0.96), [run])
    assert given.best.node_w == pytest.approx(6_000 / 0.96, rel=1e-3)
    assumed = plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [run])
    assert assumed.best.node_w == pytest.approx(6_000 / 0.90, rel=1e-3)
    assert any("nobody gave it" in text for text in assumed.assumed)


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
    assert five.measured is not None
    assert five.measured.cap_w == 400.0


def test_steps_behind_the_supplies_are_those_at_the_wall(tmp_path: Path):
    run = measured(node_run(tmp_path, wave, scope="node.dc", seconds=30.0))
    plan = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", efficiency=0.8), [run])
    assert plan.steps is not None
    assert plan.steps.rise is not None
    assert plan.steps.nodes == 8
    assert plan.steps.rise.watts == pytest.approx(8 * 1_000 / 0.8)


def capped_pair(folder: Path) -> list[MeasuredRun]:
    """Return two runs, both under caps."""
    return [
        measured(node_run(folder / "500", 6_400.0, gpu_w=490.0, gpus=8, cap=500.0, seconds=22.0)),
        measured(node_run(folder / "400", 5_600.0, gpu_w=390.0, gpus=8, cap=400.0, seconds=26.0)),
    ]


def test_where_every_run_was_under_caps_that_is_said_of_each_row(tmp_path: Path):
    rack = Rack(supply_w=40_000.0, rules=Rules(max_w=6_500.0, caps_w=(600.0, 500.0, 450.0)))
    plan = plan_rack(rack, NodeKind("dgx", rated_w=10_200.0, gpu_w=700.0), capped_pair(tmp_path))
    assert plan.held is not None
    assert (plan.held.said, plan.held.cap_w) == ("caps of 500 W", 500.0)
    rows = {row.rule: row for row in plan.rows}
    top = rows["measured maximum"]
    assert (top.node_w, top.held, top.cap_w) == (pytest.approx(6_400), "caps of 500 W", 500.0)
    assert top.exceed is not None
    # What was drawn under 500 W says nothing of nodes without caps, nor under higher ones.
    for rule in ("nameplate", "maximum as given", "caps 700 W", "caps 600 W"):
        assert (rows[rule].exceed, rows[rule].stranded_w, rows[rule].held) == (None, None, "")
    assert rows["caps 500 W"].exceed is not None
    assert rows["caps 450 W"].exceed is None
    assert rows["caps 450 W"].stranded_w is not None
    assert any("one run under lower caps is left out" in text for text in plan.assumed)
    json.dumps(plan.to_json(), allow_nan=False)


def test_a_price_against_a_cap_says_so_and_the_cap_has_to_be_set(tmp_path: Path):
    plan = plan_rack(Rack(supply_w=60_000.0), NodeKind("dgx", gpu_w=700.0), capped_pair(tmp_path))
    assert plan.priced.against_w == 500.0
    nine = plan.targets[0]
    assert nine.measured is not None
    assert nine.measured.is_needed
    assert nine.measured.cap_w == 500.0
    assert plan.to_json()["response"]["against_cap_w"] == 500.0


@pytest.mark.parametrize("cap", [700.0, None])
def test_a_cap_at_the_limit_of_the_gpus_is_none(tmp_path: Path, cap: float | None):
    run = measured(node_run(tmp_path, 6_400.0, gpu_w=490.0, gpus=8, cap=cap))
    plan = plan_rack(Rack(supply_w=40_000.0), DGX, [run])
    assert plan.held is None
    assert plan.best.held == ""


def test_what_was_only_accounted_for_is_left_out_or_refused(tmp_path: Path):
    job, run = only_accounted(tmp_path / "job"), measured(node_run(tmp_path / "run", 6_000.0))
    assert not job.draws
    plan = plan_rack(Rack(supply_w=70_000.0), DGX, [job, run])
    assert plan.best.node_w == pytest.approx(6_000)
    assert any("was only accounted for" in text for text in plan.assumed)
    with pytest.raises(ConfigError, match=r"only accounted for.*name runs whose nodes were read"):
        plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [job])
    with pytest.raises(ConfigError, match=r"what train of \[\[mix\]\] draws is not known"):
        plan_rack(Rack(supply_w=70_000.0), DGX, [run], [(MixJob("train", 2), [job])])


def test_gpus_that_nobody_read_are_modelled_from_what_is_given(tmp_path: Path):
    run = measured(node_run(tmp_path, 8_000.0, seconds=30.0))
    priced = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", gpus=8, gpu_w=700.0), [run]).priced
    assert priced.response is not None
    assert priced.response.source == "model"
    assert priced.response.points[-1].highest_w == pytest.approx(8_000)
    assert "no GPU was measured" in plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [run]).priced.why
    capped = measured(node_run(tmp_path / "capped", 8_000.0, cap=500.0))
    assert plan_rack(Rack(supply_w=7e4), NodeKind("x", gpus=8, gpu_w=700.0), [capped]).priced.response is None
    numbers = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", rated_w=10_200.0, gpus=8, gpu_w=700.0))
    assert numbers.priced.why == "nobody says what a node draws; name runs, or give --max"


def test_parts_of_a_node_are_not_a_node(tmp_path: Path):
    from tests.report.synthetic import make_run

    with pytest.raises(ConfigError, match="whole nodes"):
        plan_rack(Rack(supply_w=70_000.0), DGX, [measured(make_run(tmp_path))])


def test_an_unknown_accuracy_is_told_and_not_in_the_upper_end(tmp_path: Path):
    plan = plan_rack(Rack(supply_w=70_000.0), DGX, [measured(node_run(tmp_path, 6_000.0, gain=None))])
    top = plan.row("maximum")
    assert top is not None
    assert top.upper_w == pytest.approx(6_000 * (1 + ASSUMED_SPREAD))  # other nodes are known of
    assert top.sure == 11
    assert top.lacks == (ACCURACY,)


def test_readings_once_a_minute_widen_the_answer(tmp_path: Path):
    slow = plan_rack(Rack(supply_w=7e4), DGX, [measured(node_run(tmp_path / "a", wave, seconds=1200.0, step_s=60.0))])
    fast = plan_rack(Rack(supply_w=7e4), DGX, [measured(node_run(tmp_path / "b", wave, seconds=60.0))])
    assert slow.best.upper_w is not None
    assert slow.best.node_w is not None
    assert fast.best.upper_w is not None
    assert fast.best.node_w is not None
    assert slow.best.upper_w / slow.best.node_w == pytest.approx(fast.best.upper_w / fast.best.node_w * 1.03, rel=1e-3)
    assert any("1.030 times" in text for text in slow.assumed)


def test_hosts_of_one_run_say_how_far_they_peak_together(tmp_path: Path):
    run = measured(node_run(tmp_path, wave, hosts=("n1", "n2"), seconds=30.0))
    plan = plan_rack(Rack(supply_w=70_000.0), DGX, [run])
    assert plan.together[0].ratio == pytest.approx(1.0)


def test_a_mix_of_jobs_is_held_against_the_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mix, "RESAMPLES", 100)
    run = measured(node_run(tmp_path, wave, seconds=120.0))
    jobs = [(MixJob("train", 4), [run]), (MixJob("single", 1, count=2), [run])]
    rack = Rack(supply_w=41_800.0, rules=Rules(percentiles=(90.0,)))
    mixed = plan_rack(rack, DGX, [run], jobs).mixed
    assert mixed is not None
    assert mixed.nodes == 6
    assert mixed.maximum_w == pytest.approx(42_000, rel=1e-3)
    assert mixed.allowed_w == pytest.approx(41_800)
    # Above 41.8 kW only where all three jobs are high at once: an eighth of the time.
    assert mixed.exceed.share == pytest.approx(0.125, rel=0.05)
    assert not mixed.fits_as_read
    assert mixed.upper_w == pytest.approx(42_000 * (1 + np.hypot(GAIN, ASSUMED_SPREAD)), rel=1e-3)
    assert mixed.exceed.wider == pytest.approx(mixed.upper_w / mixed.maximum_w)
    json.dumps(mixed.to_json(), allow_nan=False)


def test_a_mix_that_fits_as_read_may_not_fit_at_what_the_readings_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mix, "RESAMPLES", 100)
    run = measured(node_run(tmp_path / "known", wave, seconds=120.0))
    mixed = plan_rack(Rack(supply_w=42_500.0), DGX, [run], [(MixJob("train", 6), [run])]).mixed
    assert mixed is not None
    assert mixed.fits_as_read
    assert not mixed.fits
    assert mixed.lacks == ()
    unknown = measured(node_run(tmp_path / "unknown", wave, seconds=120.0, gain=None))
    mixed = plan_rack(Rack(supply_w=43_000.0), DGX, [run], [(MixJob("train", 6), [unknown])]).mixed
    assert mixed is not None
    assert mixed.fits
    assert mixed.lacks == (ACCURACY,)


def test_a_job_of_a_mix_whose_runs_were_under_caps_says_so(tmp_path: Path):
    run = measured(node_run(tmp_path, 6_400.0, gpu_w=490.0, gpus=8, cap=500.0))
    mixed = plan_rack(Rack(supply_w=42_500.0), DGX, [run], [(MixJob("train", 6), [run])]).mixed
    assert mixed is not None
    assert mixed.names == ("1 x train under caps of 500 W on 6",)


def test_room_that_is_not_there_helps_no_cap():
    plan = plan_rack(Rack(supply_w=70_000.0, height_u=42.0, rules=Rules(max_w=5_000.0)), NodeKind("x", height_u=8.0))
    assert plan.best.nodes == 5
    assert plan.best.binding == "height"
    assert not plan.targets[-1].room


def test_a_higher_figure_that_was_given_goes_before_what_was_read(tmp_path: Path):
    one = measured(node_run(tmp_path, wave, seconds=30.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=9_000.0)), DGX, [one])
    assert plan.best.rule == "maximum as given"
    assert plan.best.nodes == 7
    lower = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=5_000.0)), DGX, [one])
    assert lower.best.rule == "measured maximum"


def test_caps_that_gpus_do_not_take_have_no_row():
    rules = Rules(max_w=8_480.0, caps_w=(10.0, 500.0, 900.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=rules), NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0))
    rows = {row.rule: row for row in plan.rows if row.kind == "caps"}
    assert [rows[f"caps {cap:g} W"].nodes is None for cap in (10, 500, 700, 900)] == [True, False, False, True]
    assert "take caps from 175 W" in rows["caps 10 W"].refused


def test_a_height_that_cannot_be_asked_is_said():
    rack = Rack(supply_w=70_000.0, height_u=42.0)
    assert any("height is not looked at" in text for text in plan_rack(rack, DGX).assumed)
    known = plan_rack(rack, NodeKind("dgx", rated_w=10_200.0, height_u=8.0))
    assert not any("height is not looked at" in text for text in known.assumed)


def test_a_models_cap_is_no_lower_than_one_that_is_promised(tmp_path: Path):
    def bursts(second: float) -> float:
        return 8_000.0 if second % 20 < 1 else 3_000.0

    one = measured(node_run(tmp_path, bursts, seconds=60.0, gpu_w=300.0, gpus=8))
    kind = NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0, host_w=2_000.0, efficiency=0.95)
    plan = plan_rack(Rack(supply_w=70_000.0), kind, [one])
    assert plan.response is not None
    assert plan.response.source == "model"
    for target in plan.targets:
        if target.guarantee is not None and target.guarantee.cap_w and target.measured and target.measured.is_needed:
            assert target.measured.cap_w is not None
            assert target.measured.cap_w >= target.guarantee.cap_w
