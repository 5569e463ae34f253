"""The printed answer of a rack: one sentence first, at most 25 lines; reasons behind --why; the picture."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import measured, node_run

from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rack.cap_guarantee import CapGuarantee
from joulelab.plan.rack.job_mix import MixJob
from joulelab.plan.rack.limits import Feed, Rack, Rules
from joulelab.plan.rack.rack_output import lay_out_rack, list_notes, list_reasons, list_sentences
from joulelab.plan.rack.rack_plan import plan_rack
from joulelab.report.terminal import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.rack.rack_plan import RackPlan

DGX = NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0, height_u=8.0)
FEEDS = (Feed(415.0, 63.0), Feed(415.0, 63.0))


def wave(second: float) -> float:
    return 7_000.0 if int(second / 5) % 2 else 6_000.0


def plan_given(max_w: float, nodes_now: int | None = None, supply_w: float = 70_000.0, margin: float = 0.0) -> RackPlan:
    rack = Rack(supply_w=supply_w, margin=margin, nodes_now=nodes_now, rules=Rules(max_w=max_w))
    return plan_rack(rack, NodeKind("x", rated_w=10_200.0))


def print_plan(plan: RackPlan, *, is_explained: bool = False) -> str:
    return write_blocks(lay_out_rack(plan, is_explained=is_explained), 80)


def swept(folder: Path, *, has_free: bool = True) -> list[MeasuredRun]:
    """Return runs at several caps."""
    cases = [(None, 8_000.0, 200.0)] * has_free + [(500.0, 6_400.0, 220.0), (400.0, 5_600.0, 260.0)]
    return [
        measured(node_run(folder / f"{cap}", watts, gpu_w=(cap or 700.0) - 10, gpus=8, cap=cap, seconds=seconds))
        for cap, watts, seconds in cases
    ]


def test_the_recommendation_is_one_sentence_with_its_rule_and_what_would_change_it(tmp_path: Path) -> None:
    assert list_sentences(plan_given(8_480.0, margin=0.27)) == [
        (
            "Plan for 6 nodes: six fit by the measured maximum of 8.48 kW, leaving 27.3 % of 70 kW free (27 % "
            "required), and five by nameplate; a seventh would exceed the supply."
        )
    ]
    run = measured(node_run(tmp_path, wave, seconds=60.0))
    assert list_sentences(plan_rack(Rack(supply_w=70_000.0), NodeKind("x"), [run])) == [
        (
            "Plan for 9 nodes: nine fit at the upper end of the measured maximum (7.222 kW), leaving 7.1 % of 70 kW "
            "free; to plan for ten, as the reading of 7 kW allows, measure the same work on three nodes."
        )
    ]


def test_a_cap_for_one_more_stands_in_the_sentence_with_its_cost(tmp_path: Path) -> None:
    runs = swept(tmp_path)
    plan = plan_rack(Rack(supply_w=34_500.0), replace(DGX, rated_w=None), runs)
    option = plan.recommendation.option
    assert option is not None
    assert isinstance(plan.guarantee, CapGuarantee)
    assert (
        plan.guarantee.bound_node(option.cap_w or 0.0)
        <= 34_500 / 5
        < plan.guarantee.bound_node((option.cap_w or 0.0) + 1)
    )
    expected = f"; a fifth would need a cap of {option.cap_w:g} W on each GPU (about 8.5 % slower)."
    assert list_sentences(plan)[0].endswith(expected)
    modelled = plan_rack(Rack(supply_w=70_000.0, margin=0.27, rules=Rules(max_w=8_480.0)), DGX)
    assert (
        "a seventh would need a cap of 525 W on each GPU (13 ± 10 % slower, by a model)" in list_sentences(modelled)[0]
    )
    given = replace(DGX, host_w=2_000.0, efficiency=0.95)  # the cap is guaranteed, its cost is from the model
    guaranteed = plan_rack(Rack(supply_w=70_000.0, margin=0.27, rules=Rules(max_w=8_480.0)), given)
    assert guaranteed.recommendation.option_source == "guarantee"
    assert re.search(r"a cap of 616 W on each GPU \([^)]* slower, by a model\)", list_sentences(guaranteed)[0])


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (1, "There is 1 now: seven more fit."),
        (7, "There are 7 now: one more fits."),
        (8, "There are 8 now: no more fit."),
        (9, "There are 9 now: 1 too many."),
    ],
)
def test_how_many_more_fit(now: int, sentence: str) -> None:
    assert list_sentences(plan_given(8_480.0, now))[1] == sentence


def test_a_supply_that_carries_no_node_is_an_answer_without_a_table() -> None:
    text = print_plan(plan_given(8_480.0, supply_w=70.0))
    assert " ".join(text.split()).startswith("No node fits: one draws 8.48 kW by the measured maximum, and the supply")
    assert "Check the units" in text
    assert "rule" not in text
    assert list_notes(plan_given(8_480.0, supply_w=70.0))[0].code == "rack.no-node"


@pytest.mark.system
def test_every_answer_has_at_most_25_lines_of_80_columns(tmp_path: Path) -> None:
    runs, other = swept(tmp_path), measured(node_run(tmp_path / "wave", wave, seconds=300.0, gain=None))
    rules = Rules(max_w=8_100.0, percentiles=(50.0, 60.0, 70.0, 99.0, 99.9), caps_w=(600.0, 500.0, 450.0, 400.0))
    rack = Rack(
        feeds=FEEDS, redundancy="A/B", node_phases=2, margin=0.1, others_w=600.0, cooling_w=4e4, height_u=42.0,
        nodes_now=2, rules=rules,
    )  # fmt: skip
    jobs = [(MixJob("a job with a long name", 2, count=2), runs), (MixJob("single", 1), [other])]
    for plan in (
        plan_rack(rack, DGX, [*runs, other], jobs, title="Rack 7"),
        plan_rack(rack, DGX, swept(tmp_path / "capped", has_free=False), jobs[1:]),
        plan_rack(Rack(supply_w=1_234_567.0, rules=rules), DGX, [other]),
        plan_given(8_480.0),
    ):
        lines = print_plan(plan).splitlines()
        assert len(lines) <= 25, "\n".join(lines)
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("Plan for ")
        assert any(line.startswith("note") for line in lines)
        assert max(map(len, print_plan(plan, is_explained=True).splitlines())) <= 80


def test_notes_come_in_the_order_of_their_importance(tmp_path: Path) -> None:
    small = NodeKind("small", rated_w=6_000.0)
    runs = swept(tmp_path, has_free=False)
    codes = [note.code for note in list_notes(plan_rack(Rack(supply_w=70_000.0, height_u=42.0), small, runs))]
    assert codes[:3] == ["rack.above-nameplate", "rack.runs-capped", "rack.percentiles-refused"]
    assert {"rack.height-unknown", "rack.other-work", "rack.runs-left-out"} < set(codes)


def test_reasons_name_limits_rules_errors_and_refusals(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, wave, hosts=("n1", "n2"), seconds=40.0))
    rack = Rack(feeds=FEEDS, redundancy="A/B", node_phases=1, cooling_w=4e4, height_u=42.0, outlets=12, others_w=600.0)
    plan = plan_rack(rack, DGX, [run], [(MixJob("train", 4), [run])])
    reasons = list_reasons(plan)
    limits = [label for label, note in reasons if note.code == "rack.limit"]
    assert limits == ["breakers", "feed lost", "phase", "cooling", "height", "outlets"]
    codes = {note.code for _, note in reasons}
    assert {"rack.why-together", "rack.why-spread", "rack.percentile-refused", "rack.why-mix", "rack.why-cost"} <= codes
    text = " ".join(print_plan(plan, is_explained=True).split())
    assert "feed lost 35.6 kW for nodes, from 45.3 kW x 80 % load, 600 W for other devices." in text
    assert "height room for 5 nodes." in text
    assert "p99.9 needs 1,000 independent blocks; there are 1 of 40 s" in text


@pytest.mark.parametrize(
    ("supply_w", "verdict"),
    [
        (27_000.0, "does not fit: up to 28 kW (28.65 kW with errors) of 27 kW, above it in"),
        (28_100.0, "fits by the readings, but not with errors: up to 28 kW (28.65 kW with errors) of 28.1 kW."),
        (29_000.0, "fits: up to 28 kW (28.65 kW with errors) of 29 kW."),
    ],
)
def test_a_mix_has_a_sentence(tmp_path: Path, supply_w: float, verdict: str) -> None:
    run = measured(node_run(tmp_path, wave, seconds=40.0))
    plan = plan_rack(Rack(supply_w=supply_w), DGX, [run], [(MixJob("train", 4), [run])])
    assert f"The mix (1 x train on 4) {verdict}" in list_sentences(plan)[-1]


@pytest.mark.system
def test_the_picture_shows_limits_rules_and_the_recommendation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from joulelab.plan.rack.rack_picture import draw_rack

    run = measured(node_run(tmp_path, 8_000.0, seconds=20.0))
    svg = draw_rack(plan_rack(Rack(supply_w=70_000.0, margin=0.27), DGX, [run]), "svg").decode()
    words = " ".join(re.sub(r"<!--.*?-->|<[^>]+>", " ", svg, flags=re.DOTALL).split())
    for part in ("supply 70 kW", "supply less margin 51.1 kW", "nameplate", "Plan for 6 nodes"):
        assert part in words


def list_codes(plan: RackPlan) -> list[str]:
    return [note.code for note in list_notes(plan)]


def test_a_cap_that_gpus_do_not_take_and_assumed_feeds_are_noted() -> None:
    refused = plan_rack(Rack(supply_w=70_000.0, rules=Rules(max_w=8_000.0, caps_w=(100.0,))), DGX)
    assert list_codes(refused)[0] == "rack.cap-not-taken"
    text = " ".join(print_plan(plan_rack(Rack(feeds=FEEDS), DGX)).split())
    assert "The capacity of the feeds assumes a power factor of 1 and nodes on all three phases." in text
    stated = Rack(feeds=FEEDS, power_factor=0.98, node_phases=3)
    assert "rack.feeds-assumed" not in list_codes(plan_rack(stated, DGX))


def test_an_overload_that_no_row_knows_has_no_column(tmp_path: Path) -> None:
    short, long = (measured(node_run(tmp_path / f"{s}", wave, seconds=s)) for s in (60.0, 1_800.0))
    plans = [plan_rack(Rack(supply_w=70_000.0), DGX, [run]) for run in (short, long)]
    assert ["overload" in print_plan(plan) for plan in plans] == [False, True]


def test_only_errors_that_are_unknown_have_advice(tmp_path: Path) -> None:
    fast, slow = (measured(node_run(tmp_path / f"{s}", gain=None, step_s=s, seconds=600.0)) for s in (1.0, 100.0))
    texts = [" ".join(print_plan(plan_rack(Rack(supply_w=70_000.0), DGX, [run])).split()) for run in (fast, slow)]
    assert "accuracy of the meter. State gain and reference of the meter." in texts[0]
    assert "hidden peaks. Read it every 2 s, and state gain and reference of the meter." in texts[1]


def test_many_nodes_are_worded_without_an_ordinal() -> None:
    assert "; an eighth would exceed" in list_sentences(plan_given(9_900.0))[0]
    plan = plan_rack(Rack(supply_w=70_000.0), NodeKind("x", rated_w=4_000.0))
    expected = "Plan for 17 nodes: 17 fit by the nameplate of 4 kW, leaving 2.9 % of 70 kW free; one more would exceed"
    assert list_sentences(plan)[0].startswith(expected)
