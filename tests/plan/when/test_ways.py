"""The ways to run a job side by side: what each costs, that none beats one that may do more, and their intervals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.measured_runs import measured, node_run
from tests.plan.when.brute import cheapest
from tests.plan.when.problems import HOUR_S, MONDAY_S, daily, job, slots

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps
from joulelab.plan.when.baselines import Terms, best_of, gain, idling, saved, ways_of
from joulelab.plan.when.blocks import Restart
from joulelab.plan.when.job import IDLE_SHARE, Mode, Wanted, job_of
from joulelab.plan.when.slots import slots_of
from joulelab.plan.when.stretches import stretches_of

if TYPE_CHECKING:
    from pathlib import Path

CAPS: dict[str, Any] = {"gpus": 8, "gpu_w": 700.0}


def hourly(values: list[float]) -> Steps:
    """Return prices of hours from Monday on."""
    times = MONDAY_S + HOUR_S * np.arange(len(values))
    return Steps(Label("price", "EUR/kWh", "x"), times, np.array(values, dtype=float), times[-1] + HOUR_S)


@pytest.mark.system  # pure, and slow
@given(st.integers(1, 10_000), st.floats(1.0, 40.0), st.booleans(), st.booleans())
@settings(max_examples=8, deadline=None)
def test_who_may_do_more_never_pays_more(seed: int, hours: float, waits: bool, paid: bool) -> None:
    at = slots(daily(3, noise=60.0, seed=seed), 48.0)
    one = job(duration_s=hours * HOUR_S, **CAPS)
    terms = Terms(Restart(600.0, 1e5) if paid else Restart(), waits, 1.2)
    cost = {way.name: way.cost.value for way in ways_of(one, at, terms)}
    slack = 1 + 1e-6
    assert cost["start"] <= cost["now"] * slack
    assert cost["now-cap"] <= cost["now"] * slack
    assert cost["pauses-off"] <= cost["pauses-idle"] * slack
    if not paid:
        assert cost["pauses-idle"] <= cost["start"] * slack
        assert cost["caps-idle"] <= min(cost["pauses-idle"], cost["now-cap"]) * slack
        assert cost["caps-off"] <= min(cost["caps-idle"], cost["pauses-off"]) * slack


@given(st.integers(1, 10_000), st.booleans())
@settings(max_examples=4, deadline=None)
def test_energies_by_slot_make_the_cost_and_the_work_is_done(seed: int, paid: bool) -> None:
    at = slots(daily(3, noise=60.0, seed=seed), 40.3)
    one = job(**CAPS)
    terms = Terms(Restart(600.0, 1e5) if paid else Restart(), pue=1.3)
    for way in ways_of(one, at, terms):
        assert way.energy_j @ at.values / 3.6e6 * 1.3 == pytest.approx(way.cost.value, rel=1e-9)
        assert way.energy_j.sum() == pytest.approx(way.energy.value, rel=1e-9)
        speeds = np.array([1 / mode.slowdown.value for mode in one.modes])
        again = way.restarts * terms.restart.time_s
        assert (way.modes_s @ speeds).sum() - again == pytest.approx(one.work_s, rel=1e-6)
        assert MONDAY_S <= way.start_s < way.end_s <= at.deadline_s + 1e-6
        told = stretches_of(way, one, at)
        ran = sum(s.until_s - s.since_s for s in told if s.does == "run")
        assert ran == pytest.approx(way.running_s.sum(), abs=30.0)
        assert (told[0].since_s, told[-1].until_s) == pytest.approx((way.start_s, way.end_s), abs=2.0)


@pytest.mark.system  # pure, and slow
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.floats(0.1, 0.9), st.sampled_from((300.0, 2200.0)))
@settings(max_examples=30, deadline=None)
def test_caps_without_pauses_count_a_node_that_waits(values: list[int], share: float, idle_w: float) -> None:
    """The start is the cheapest with the waiting in it: against trying everything."""
    rate = hourly([v / 10 for v in values])
    one = job(duration_s=share * HOUR_S * len(values), idle_w=idle_w, caps_w=(450.0,), **CAPS)
    at = slots_of(rate, MONDAY_S, MONDAY_S + len(values) * HOUR_S, HOUR_S)
    way = next(way for way in ways_of(one, at, Terms(Restart(600.0), waits=True)) if way.name == "caps")
    modes = [(1 / mode.slowdown.value, mode.power.value) for mode in one.modes]
    truth = cheapest(at.per_j.tolist(), at.lengths_s.tolist(), one.work_s, modes, None, wait_w=idle_w)
    assert way.cost.value == pytest.approx(truth, rel=1e-5)
    assert way.paused_s.sum() == pytest.approx(way.start_s - at.start_s, abs=1e-3)
    assert way.energy.value == pytest.approx(way.energy_j.sum(), rel=1e-9)


def test_a_node_that_waits_is_in_caps_without_pauses_as_by_hand() -> None:
    """From 21:00 of a price of 107.2, 26.9, 110.5 EUR/MWh: an hour of 700 W before, then the job at its cap."""
    at = slots_of(hourly([0.1072, 0.0269, 0.1105]), MONDAY_S, MONDAY_S + 3 * HOUR_S, HOUR_S)
    one = job(duration_s=1800.0, power_w=6900.0, idle_w=700.0, **CAPS)
    by = {way.name: way for way in ways_of(one, at, Terms(Restart(600.0), waits=True))}
    free = {way.name: way for way in ways_of(one, at, Terms(waits=True))}
    assert by["caps"].energy.value / 3.6e6 == pytest.approx(3.742, abs=5e-4)
    assert by["caps"].cost.value == pytest.approx(0.1569, abs=5e-5)
    assert by["caps"].cost.value == pytest.approx(free["caps-idle"].cost.value)
    assert by["caps"].start_s == MONDAY_S + HOUR_S


def test_where_pauses_are_free_there_is_none_for_nothing() -> None:
    """Before the dear hour and after it, or only after it: that costs the same."""
    by = {way.name: way for way in ways_of(job(duration_s=3 * HOUR_S, **CAPS), slots(hourly([1, 2, 1, 1, 1, 1]), 6.0))}
    for name in ("pauses-off", "caps-off"):
        assert by[name].restarts == 0, name
        assert by[name].start_s == MONDAY_S + 2 * HOUR_S
    assert by["pauses-off"].cost.value == pytest.approx(21.0)
    needed = {way.name: way for way in ways_of(job(duration_s=3 * HOUR_S), slots(hourly([1, 2, 1, 2, 1]), 5.0))}
    assert needed["pauses-off"].restarts == 2


def test_a_job_follows_its_own_course() -> None:
    """A course that is high at first: its start is put where the rate is low, not its middle."""
    values = np.array([9.0, 9.0, 1.0, 9.0, 9.0, 9.0])
    rate = Steps(Label("average", "g/kWh", "x"), MONDAY_S + HOUR_S * np.arange(6), values, MONDAY_S + 6 * HOUR_S)
    kwh = 3.6e6
    one = replace(job(duration_s=2 * HOUR_S, power_w=1000.0), course_j=(1.9 * kwh, 0.1 * kwh))
    start = next(way for way in ways_of(one, slots(rate, 6.0)) if way.name == "start")
    assert start.start_s == MONDAY_S + 2 * HOUR_S
    assert start.cost.value == pytest.approx(1.9 * 1.0 + 0.1 * 9.0)
    late = replace(one, course_j=(0.1 * kwh, 1.9 * kwh))
    ways = ways_of(late, slots(rate, 6.0))
    start = next(way for way in ways if way.name == "start")
    assert start.start_s == MONDAY_S + HOUR_S
    share = gain(start, ways[0])
    assert share is not None
    assert share.expanded == 0  # the course is another, the meter is the same


def test_of_ways_that_save_the_same_the_plainest_is_the_plan() -> None:
    one = job(duration_s=HOUR_S)
    flat = ways_of(one, slots(daily(2, deep=0.0), 24.0))
    assert best_of(flat, one).name == "now"
    assert best_of(ways_of(one, slots(daily(2), 24.0)), one).name == "start"
    assert best_of(flat, one, "pauses-off").name == "pauses-off"


def test_an_idle_node_eats_what_pauses_save() -> None:
    """With the idle power of the real H100 logs, 31 % of that at work, pauses over a day's swing do not pay."""
    at = slots(daily(7), 168.0)
    one = job(duration_s=40 * HOUR_S, idle_w=IDLE_SHARE * 7000.0)
    by = {way.name: way for way in ways_of(one, at)}
    off, idle, start = by["pauses-off"], by["pauses-idle"], by["start"]
    assert gain(off, by["now"]).value > 0.4  # type: ignore[union-attr]
    assert not idle.paused_s.any()
    assert idle.cost.value == pytest.approx(start.cost.value)
    assert off.cost.value + idling(off, one, at, Terms()) > by["now"].cost.value


def test_of_two_that_cost_the_same_the_earlier_is_taken() -> None:
    at = slots(daily(7), 168.0)
    for terms in (Terms(), Terms(Restart(600.0))):
        by = {way.name: way for way in ways_of(job(), at, terms)}
        assert by["start"].start_s < MONDAY_S + 24 * HOUR_S
        assert by["pauses-idle"].start_s == pytest.approx(by["start"].start_s)


def test_negative_prices_pay() -> None:
    values = np.array([0.3, 0.3, -0.1, 0.3])
    rate = Steps(Label("price", "EUR/kWh", "x"), MONDAY_S + HOUR_S * np.arange(4), values, MONDAY_S + 4 * HOUR_S)
    by = {way.name: way for way in ways_of(job(duration_s=HOUR_S, **CAPS), slots(rate, 4.0))}
    assert by["pauses-idle"].cost.value == pytest.approx(-0.7)
    assert by["caps-off"].cost.value <= -0.7
    assert saved(by["start"], by["now"], job()).value == pytest.approx(2.8)
    assert gain(by["now"], by["start"]) is None  # a share of what is earned says nothing
    assert gain(by["start"], by["now"]) is None  # nor does a share that is more than all


def test_a_node_is_not_held_after_its_job_to_be_paid_for_idling() -> None:
    values = np.array([0.3, -0.2, -0.1, -0.1, 0.3])
    rate = Steps(Label("price", "EUR/kWh", "x"), MONDAY_S + HOUR_S * np.arange(5), values, MONDAY_S + 5 * HOUR_S)
    for waits in (False, True):
        for way in ways_of(job(duration_s=HOUR_S, **CAPS), slots(rate, 5.0), Terms(waits=waits)):
            edges = MONDAY_S + 900.0 * np.arange(20)
            assert not way.paused_s[edges >= way.end_s].any(), way.name
            assert waits or not way.paused_s[edges + 900.0 <= way.start_s].any(), way.name


def test_what_is_not_known_of_the_pue_is_in_costs_and_not_in_gains() -> None:
    at, one = slots(daily(2), 48.0), job()
    by = {way.name: way for way in ways_of(one, at, Terms(pue=1.25, pue_u=0.05))}
    exact = {way.name: way for way in ways_of(one, at, Terms(pue=1.25))}
    for name, way in by.items():
        assert way.cost.value == exact[name].cost.value
        assert way.cost.u == pytest.approx(np.hypot(exact[name].cost.u, 0.04 * way.cost.value))
        assert way.energy == exact[name].energy
    share = gain(by["start"], by["now"])
    assert share is not None
    assert share.expanded == 0
    less = by["now"].cost - by["start"].cost
    assert less.u == pytest.approx(0.04 * less.value)


def test_a_node_that_waits_is_off_as_its_idle_power_is() -> None:
    """The wait has the terms of idle power, the job those of its own: none is taken for the other."""
    at, one = slots(daily(2), 48.0), job(duration_s=HOUR_S)
    one = replace(one, idle=Quantity(2000.0, {"idle": 100.0}))
    one = replace(one, modes=(replace(one.full, power=Quantity(7000.0, {"work": 70.0})),), course_j=(2e7, 5.2e6))
    start = next(way for way in ways_of(one, at, Terms(waits=True, pue=1.1)) if way.name == "pauses-idle")
    late = next(way for way in ways_of(one, at, Terms(waits=True, pue=1.1)) if way.name == "start")
    for way in (start, late):
        rest = float(way.paused_s @ at.per_j) * 1.1
        assert way.cost.terms.get("idle", 0.0) == pytest.approx(100.0 * rest)
        assert way.cost.terms["work"] == pytest.approx(0.01 * (way.cost.value - 2000.0 * rest))
        assert way.energy.terms["work"] == pytest.approx(0.01 * (way.energy.value - 2000.0 * way.paused_s.sum()))


def test_costs_of_given_power_have_no_interval_and_shifts_of_it_need_none() -> None:
    one = job()
    by = {way.name: way for way in ways_of(one, slots(daily(2), 48.0))}
    assert saved(by["start"], by["now"], one).expanded is None
    share = gain(by["start"], by["now"])
    assert share is not None
    assert share.expanded == 0


def test_what_a_meter_has_wrong_cancels_in_gains_and_what_a_model_has_does_not(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7000.0, seconds=60.0, gpu_w=600.0, gpus=8))
    one = job_of([run], Wanted(duration_s=10 * HOUR_S))
    assert (one.caps_from, one.sure, one.idle_from) == ("model", True, "measured")
    by = {way.name: way for way in ways_of(one, slots(daily(2), 48.0))}
    now = by["now"]
    assert now.cost.expanded is not None
    assert now.cost.expanded > 0.005 * now.cost.value
    shift, capped = gain(by["start"], now), gain(by["now-cap"], now)
    assert shift is not None
    assert capped is not None
    assert shift.expanded == pytest.approx(0.0, abs=1e-9)
    assert capped.expanded is not None
    assert 0.01 < capped.expanded < 0.5
    assert best_of(tuple(by.values()), one).name in ("start", "pauses-idle")  # never by a model unless asked


def test_runs_at_several_caps_are_the_modes(tmp_path: Path) -> None:
    paths = [
        node_run(tmp_path, watts, seconds=seconds, cap=cap, gpu_w=400.0)
        for watts, seconds, cap in ((7000.0, 60.0, None), (5000.0, 66.0, 500.0), (3800.0, 90.0, 300.0))
    ]
    one = job_of([measured(path) for path in paths], Wanted(nodes=2))
    assert [mode.cap_w for mode in one.modes] == [300.0, 500.0, None]
    assert [mode.slowdown.value for mode in one.modes] == pytest.approx([1.5, 1.1, 1.0], rel=1e-6)
    assert one.modes[1].power.value == pytest.approx(2 * 5000.0, rel=0.02)
    assert one.caps_from == "measured"
    assert one.idle.value == pytest.approx(4000.0, rel=0.02)
    assert sum(one.course_j) == pytest.approx(2 * 7000.0 * 60.0, rel=0.02)
    longer = job_of([measured(path) for path in paths], Wanted(duration_s=10 * HOUR_S))
    flat = {way.name: way for way in ways_of(longer, slots(daily(2, deep=0.0), 48.0))}
    assert flat["now-cap"].cap_w == 500.0  # 0.786 of the energy; 300 W: 0.814
    by = {way.name: way for way in ways_of(longer, slots(daily(2), 48.0))}
    assert best_of(tuple(by.values()), one).name == "caps-idle"
    with pytest.raises(ConfigError, match="nothing is known of a cap"):
        job_of([measured(path) for path in paths], Wanted(caps_w=(200.0,)))


def test_an_idle_power_that_nobody_measured_is_said_to_be_assumed() -> None:
    one = job(idle_w=None)
    assert one.idle_from == "assumed"
    assert one.idle.value == pytest.approx(0.31 * 7000.0)
    assert not one.idle.known
    assert any("assumed" in note for note in one.notes)


def test_bad_jobs_are_refused() -> None:
    with pytest.raises(ConfigError, match="no job to plan"):
        job(power_w=None)
    with pytest.raises(ConfigError, match="what caps do is not known"):
        job(caps_w=(300.0,))
    with pytest.raises(ConfigError, match="the deadline is too early"):
        ways_of(job(), slots(daily(1), 9.0))
    ways = ways_of(job(), slots(daily(1), 12.0))
    with pytest.raises(ConfigError, match="there is no way 'caps-idle'"):
        best_of(ways, job(), "caps-idle")


def test_a_product_carries_both_terms() -> None:
    found = Quantity(2.0, {"a": 0.1}) * Quantity(3.0, {"a": 0.1, "b": 0.2})
    assert (found.value, found.terms) == (6.0, {"a": pytest.approx(0.5), "b": pytest.approx(0.4)})


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("name", ["now-cap", "caps-idle", "caps-off"])
@pytest.mark.parametrize("what", ["slowdown", "power", "idle"])
def test_terms_are_what_a_change_of_power_or_speed_does(name: str, what: str) -> None:
    """To first order: the job planned anew with a mode a little slower, or with more power."""
    at, step = slots(daily(2, noise=30.0), 30.0), 1e-5

    def cost(change: float) -> Quantity:
        by = {"slowdown": 1.0, "power": 1000.0, "idle": 1000.0}[what]
        slow, power, idle = Quantity(1.25), Quantity(4200.0), Quantity(500.0)
        made = {"slowdown": slow, "power": power, "idle": idle}
        made[what] = Quantity(made[what].value + by * change, {"x": by})
        one = replace(job(), idle=made["idle"], caps_from="measured")
        one = replace(one, modes=(Mode(400.0, made["slowdown"], made["power"]), one.full))
        return next(way for way in ways_of(one, at, Terms(pue=1.1)) if way.name == name).cost

    found = (cost(step).value - cost(-step).value) / (2 * step)
    assert cost(0.0).terms.get("x", 0.0) == pytest.approx(found, rel=2e-3, abs=1e-3)


def test_a_cap_that_misses_the_deadline_is_none() -> None:
    one = job(**CAPS)
    for hours in (10.0, 10.5, 20.0):
        at = slots(daily(2, deep=0.0), hours)
        by = {way.name: way for way in ways_of(one, at)}
        assert all(way.end_s <= at.deadline_s + 1e-6 for way in by.values())
        least = min(mode.slowdown.value for mode in one.modes if mode.cap_w == by["now-cap"].cap_w)
        assert least * one.work_s <= hours * HOUR_S
        assert by["now-cap"].modes_s.sum() == pytest.approx(least * one.work_s)


def test_what_goes_on_goes_on_first() -> None:
    """A slot in two modes begins with that of the slot before, and ends with the pause."""
    one, at = job(**CAPS), slots(daily(1), 0.75)
    modes = np.zeros((3, len(one.modes)))
    modes[0, 0], modes[1, 0], modes[1, -1], modes[2, -1] = 900.0, 600.0, 200.0, 900.0
    way = replace(ways_of(job(duration_s=600.0), at)[0], modes_s=modes, start_s=MONDAY_S, end_s=at.deadline_s)
    told = [(s.since_s - MONDAY_S, s.until_s - MONDAY_S, s.does, s.cap_w) for s in stretches_of(way, one, at)]
    lowest = one.modes[0].cap_w
    assert told == [
        (0, 1500, "run", lowest), (1500, 1700, "run", None), (1700, 1800, "pause", None), (1800, 2700, "run", None),
    ]  # fmt: skip
