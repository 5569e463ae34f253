"""What is printed and drawn of a rack."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import GAIN, measured, node_run

from joulelab.analysis.result import CapResult
from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rack.decide import RackPlan, decide
from joulelab.plan.rack.limits import Feed, Rack, Rules
from joulelab.plan.rack.job_mix import MixJob
from joulelab.plan.rack.rack_output import facts, headline, lay_out_rack
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

DGX = NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0, height_u=8.0)
CLOCK = CapResult("node", "gpu:0", 1.2e9, None, "Hz", 1, "restored")


def words_of(picture: bytes) -> str:
    """Return the words of an SVG picture, whose lines are elements of their own."""
    return " ".join(re.sub(r"<!--.*?-->|<[^>]+>", " ", picture.decode(), flags=re.DOTALL).split())


def wave(second: float) -> float:
    return 7_000.0 if int(second / 5) % 2 else 6_000.0


def printed(plan: RackPlan) -> str:
    return write_blocks(lay_out_rack(plan), 80)


def given(max_w: float, nodes_now: int | None = None, **rack: float) -> RackPlan:
    return plan_rack(Rack(supply_w=70_000.0, nodes_now=nodes_now, rules=Rules(max_w=max_w), **rack), DGX)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (5, "There are 5 now: three more fit."),
        (7, "There are 7 now: one more fits."),
        (8, "There are 8 now: no more fit."),
        (9, "There are 9 now: 1 too many."),
    ],
)
def test_how_many_more_fit(now: int, said: str) -> None:
    assert headline(given(8_480.0, now))[-1] == said


def test_none_fits() -> None:
    assert headline(given(80_000.0))[0].startswith("No node fits by the measured maximum of 80.00 kW")
    assert printed(given(80_000.0))


def test_what_more_nodes_need_stands_with_its_price_and_where_it_is_from() -> None:
    said = printed(given(8_480.0, margin=0.27))
    assert re.search(r"7 +7\.300 +8\.260 +promise +348 +\+\d", said)
    assert re.search(r"\n +model +560 +\+\d+(\.\d+)? ± ", said)
    assert "what caps cost is modelled" in " ".join(said.split())


def test_risk_steps_refusals_and_a_mix_are_told(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, wave, seconds=40.0))
    rack = Rack(supply_w=70_000.0, rules=Rules(percentiles=(60.0, 99.9)))
    plan = plan_rack(rack, DGX, [run], [(MixJob("train", 4), [run])])
    told = facts(plan)
    by = {name: " ".join(text for label, text in told if label == name) for name, _ in told}
    assert "p99.9: needs 1,000 independent blocks" in by["refused"]
    assert "was never seen; with 95 % confidence at most" in by["risk"]
    assert by["draws"] == "10 nodes draw 70.00 kW at most and 64.50 kW on average of 70.00 kW for nodes"
    assert "up 10.00 kW in 1 s and down 10.00 kW in 1 s, 10.00 kW/s at most: 10 nodes moving together" in by["steps"]
    assert "1 x train on 4: 4 nodes, 26.20 kW on average, at most 28.00 kW of 70.00 kW (supply): fits" in by["mix"]
    assert "readings 1 s apart" in by["assumed"]
    said = printed(plan)
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said


def test_fewer_that_are_sure_stand_in_the_answer(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7_000.0))
    said = headline(plan_rack(Rack(supply_w=70_000.0), DGX, [run]))
    assert said[0].startswith("10 nodes fit by the measured maximum of 7.000 kW each")
    # The meter's gain of 1.15 % (k = 2), and 2 % by which nodes are assumed to differ.
    assert said[-1] == "Only 9 fit if a node draws 7.222 kW, which the readings allow."


def test_a_percentile_stands_with_its_interval(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, wave, seconds=300.0))
    plan = plan_rack(Rack(supply_w=70_000.0, rules=Rules(percentiles=(30.0,))), DGX, [run])
    assert re.search(r"measured max +7\.000 +7\.222 +10 +9 +supply +0\.00 +0 ", printed(plan))  # to the watt
    assert re.search(r"p30 +7\.000 +7\.142 +10 +9 .*\n6\.000-7\.000", printed(plan))
    told = " ".join(text for name, text in facts(plan) if name == "rule")
    assert "p30: 6.000 kW, 6.000 kW to 7.000 kW; 5 independent blocks of 60 s" in told
    assert "one run only: how much runs of the same work differ is not known" in told
    risk = next(text for name, text in facts(plan) if name == "risk")
    assert risk.endswith("that counts up to 3.2 % more than was read")


def test_what_nobody_knows_stands_beside_the_upper_end(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7_000.0, gain=None))
    plan = plan_rack(Rack(supply_w=70_000.0), DGX, [run])
    assert headline(plan)[-1] == "Nobody knows the meter's accuracy: that comes on top of 7.140 kW."
    assert re.search(r"measured max +7\.000 +7\.140\+\? +10 +9\? ", printed(plan))
    by = dict(facts(plan))
    assert by["unknown"].startswith("+? without the meter's accuracy")
    assert "without the meter's accuracy" in by["risk"]


@pytest.mark.system
def test_runs_under_caps_are_told_wherever_they_count(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from joulelab.plan.rack.rack_picture import draw_rack

    caps = ((500.0, 6_400.0, 22.0), (400.0, 5_600.0, 26.0))
    runs = [
        measured(node_run(tmp_path / f"{cap}", watts, gpu_w=cap - 10, gpus=8, cap=cap, seconds=seconds))
        for cap, watts, seconds in caps
    ]
    plan = plan_rack(Rack(supply_w=40_000.0), DGX, runs, [(MixJob("train", 6), runs)])
    said = headline(plan)
    assert said[0].startswith("6 nodes fit by the measured maximum of 6.400 kW each under caps of 500 W")
    assert "Every run was under caps: they have to stay, or nodes may draw more than was seen." in said
    text = printed(plan)
    assert "at 500 W caps" in text
    assert "to 500 W" in text  # what time and energy are against
    assert max(map(len, text.splitlines())) <= 80
    assert "Every run was under caps of 500 W." in words_of(draw_rack(plan, "svg"))
    other = measured(node_run(tmp_path / "clock", 6_000.0))
    clock = replace(other, result=replace(other.result, caps=(CLOCK,)))
    held = plan_rack(Rack(supply_w=40_000.0), DGX, [clock])
    assert headline(held)[0].startswith("6 nodes fit by the measured maximum of 6.000 kW each under a cap of 1200 MHz")
    assert "under caps" in printed(held)


@pytest.mark.parametrize(
    ("supply_w", "gain", "verdict"),
    [
        (27_000.0, GAIN, "does not fit by the sum of maxima; it may be 28.65 kW, which the readings allow"),
        (28_100.0, GAIN, "fits as it was read, not at 28.65 kW, which the readings allow"),
        (29_000.0, GAIN, "fits, also at 28.65 kW, which the readings allow"),
        (29_000.0, None, "fits, also at 28.56 kW, which the readings allow, without the meter's accuracy"),
    ],
)
def test_a_mix_fits_by_what_the_readings_allow(
    tmp_path: Path, supply_w: float, gain: float | None, verdict: str
) -> None:
    run = measured(node_run(tmp_path, wave, seconds=40.0, gain=gain))
    plan = plan_rack(Rack(supply_w=supply_w), DGX, [run], [(MixJob("train", 4), [run])])
    assert verdict in " ".join(text for name, text in facts(plan) if name == "mix")


def test_caps_that_no_gpu_takes_are_refused_once_and_by_name() -> None:
    plan = plan_rack(Rack(supply_w=11_400.0, rules=Rules(max_w=8_480.0)), replace(DGX, host_w=4_000.0))
    refused = [text for name, text in facts(plan) if name == "refused"]
    assert any(text.startswith("cap for 2 nodes: it would be") for text in refused)
    unknown = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=8_480.0)), NodeKind("x", rated_w=10_200.0))
    refused = [text for name, text in facts(unknown) if name == "refused"]
    assert not any(text.startswith("cap for") for text in refused)
    assert sum(text.startswith("what caps cost") for text in refused) == 1


def test_every_limit_is_told() -> None:
    feeds = (Feed("A", 415.0, 63.0), Feed("B", 415.0, 63.0))
    rack = Rack(feeds=feeds, redundancy="A/B", node_phases=1, cooling_w=4e4, height_u=42.0, outlets=12, others_w=600.0)
    limits = [text for name, text in facts(plan_rack(rack, DGX)) if name == "limit"]
    assert [text.partition(":")[0] for text in limits] == [
        "breakers", "feed lost", "phase", "cooling", "height", "outlets",
    ]  # fmt: skip
    assert limits[1] == "feed lost: 45284 VA of 1 feed left x 0.8 continuous x power factor 1 less 600 W for others"


@pytest.mark.system
def test_the_picture_shows_limits_rules_and_how_long_a_node_drew_how_much(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from joulelab.plan.rack.rack_picture import draw_rack

    run = measured(node_run(tmp_path, 8_000.0, seconds=20.0, step_s=1.0))
    plan = plan_rack(Rack(supply_w=70_000.0, margin=0.27), DGX, [run])
    text = words_of(draw_rack(plan, "svg"))
    for said in ("supply 70.00 kW", "supply less margin 51.10 kW", "nameplate 10.20 kW", "6 nodes may draw 8.517 kW"):
        assert said in text
    assert "share of the time at or above" in text
    assert "No answer by p99, p99.9" in text
    alone = draw_rack(given(8_480.0), "svg").decode()
    assert "share of the time" not in alone


def test_power_above_the_nameplate_is_warned_of(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7_000.0, seconds=20.0))
    told = dict(facts(plan_rack(Rack(supply_w=70_000.0), NodeKind("small", rated_w=6_000.0), [run])))
    assert "7.000 kW is above its nameplate of 6.000 kW" in told["warning"]
    assert "warning" not in dict(facts(plan_rack(Rack(supply_w=70_000.0), DGX, [run])))
