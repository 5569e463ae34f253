"""The search over caps: on curves whose truth is known, and on what curves should not be but are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.analysis.goals import Goal
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.study.tuning.response import compute_excess, compute_objective, compute_regret, make_family
from joulelab.study.tuning.search import Choice, Search, Setting

CAPS = np.arange(100.0, 261.0, 10.0)
GOALS = ("energy", "time", "edp", "ed2p", "eds:1.5", "gain-loss", "energy@slowdown=5%", "edp@slowdown=10%")


def physical(
    caps: np.ndarray = CAPS, draw: float = 240.0, a: float = 0.035, k: float = 4.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return energy and time of a load that draws `draw` watts without a cap."""
    power = np.minimum(draw, 0.95 * caps)
    time = 100 * (1 + a * ((power / draw) ** -k - 1))
    return time * power, time


def next_cap(search: Search) -> float | None:
    setting = search.next()
    return None if setting is None else setting.cap_w


def list_tied(choice: Choice) -> list[float | None]:
    return [setting.cap_w for setting in choice.tied]


def searched(
    energy: np.ndarray,
    time: np.ndarray,
    goal: str,
    *,
    caps: np.ndarray = CAPS,
    budget: int | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> tuple[Search, Choice, list[float]]:
    rng = np.random.default_rng(seed)
    search, asked = Search(caps.tolist(), Goal.parse(goal), budget), []
    while (cap := next_cap(search)) is not None:
        at = int(np.flatnonzero(caps == cap)[0])
        t, p = np.exp(noise * rng.standard_normal(2))
        search.add_trial(cap, energy[at] * t * p, time[at] * t)
        asked.append(cap)
    return search, search.choose(), asked


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("goal", ["energy", "time", "edp", "eds:1.5", "energy@slowdown=5%"])
@pytest.mark.parametrize("draw", [110.0, 240.0])
def test_finds_a_cap_close_to_the_best_in_seven_trials(goal, draw):
    energy, time = physical(draw=draw)
    _, choice, asked = searched(energy, time, goal)
    cost = compute_regret(Goal.parse(goal), energy, time)[choice.setting.cap_w == CAPS][0]
    assert cost < 0.015
    assert len(asked) == choice.trials <= 7
    assert asked[0] == 260.0
    assert choice.setting.cap_w in asked


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("goal", ["energy", "edp", "energy@slowdown=5%"])
def test_noise_of_two_percent_costs_little_in_the_middle_and_not_much_in_the_worst_case(goal):
    energy, time = physical()
    costs = []
    for seed in range(5):
        _, choice, _ = searched(energy, time, goal, noise=0.02, seed=seed)
        costs.append(compute_regret(Goal.parse(goal), energy, time)[choice.setting.cap_w == CAPS][0])
    assert np.median(costs) < 0.01
    assert max(costs) < 0.08


def test_the_same_trials_give_the_same_caps_and_the_same_choice():
    energy, time = physical()
    first, second = (searched(energy, time, "edp", noise=0.01, seed=3) for _ in range(2))
    assert first[1:] == second[1:]


def test_asking_twice_asks_for_the_same_cap():
    search = Search([100, 150, 200], Goal.parse("energy"))
    assert search.next() == search.next() == Setting(200.0)
    search.add_trial(200.0, 1000.0, 10.0)
    assert search.next() == search.next()


def test_watts_of_a_whole_node_with_eight_devices_are_no_hindrance():
    energy, time = physical()
    energy = 8 * energy + 400 * time
    for goal in ("energy", "edp", "energy@slowdown=5%"):
        _, choice, _ = searched(energy, time, goal)
        assert compute_regret(Goal.parse(goal), energy, time)[choice.setting.cap_w == CAPS][0] < 0.02


def test_a_load_that_reaches_no_cap_ends_early_and_says_that_caps_change_nothing():
    energy, time = physical(draw=60.0)
    _, choice, asked = searched(energy, time, "energy")
    assert len(asked) <= 3
    assert choice.flat
    assert set(list_tied(choice)) == set(asked) - {choice.setting.cap_w}
    assert "no cap that was tried changes time or energy by more than the noise" in choice.why
    _, choice, _ = searched(energy, time, "energy@slowdown=5%", noise=0.02, seed=1)
    assert choice.flat


def test_a_clear_difference_is_not_called_flat_or_tied():
    energy, time = physical()
    _, choice, asked = searched(energy, time, "energy")
    assert not choice.flat
    assert 260.0 in asked
    assert 260.0 not in list_tied(choice)
    assert choice.energy_ratio == pytest.approx(energy[choice.setting.cap_w == CAPS][0] / energy[-1], rel=0.02)
    assert choice.time_ratio == pytest.approx(time[choice.setting.cap_w == CAPS][0] / time[-1], rel=0.02)
    assert "against 260 W" in choice.why


def test_two_caps_that_give_the_same_are_tied():
    search = Search([150, 160, 260], Goal.parse("energy"))
    for cap, energy, time in ((260, 1000, 4.0), (160, 800, 4.4), (150, 802, 4.5)):
        search.add_trial(cap, energy, time)
    choice = search.choose()
    assert {choice.setting.cap_w, *list_tied(choice)} == {150.0, 160.0}
    assert "no significant difference" in choice.why


def test_uncertainties_that_are_told_widen_what_is_tied():
    def tied(u: float) -> tuple[float, ...]:
        search = Search([150, 200, 260], Goal.parse("energy"))
        for cap, energy, time in ((260, 1000, 4.0), (200, 860, 4.2), (150, 780, 4.8)):
            for _ in range(3):
                search.add_trial(cap, energy, time, u * energy, u * time)
        return search.choose().tied

    assert tied(0.0) == ()
    assert len(tied(0.3)) == 2


def test_one_outlier_among_repeats_does_not_make_the_choice():
    search = Search([100, 150, 200, 250], Goal.parse("energy"))
    for cap, energy, time in ((250, 1000, 5.0), (150, 780, 5.6), (150, 782, 5.6), (200, 870, 5.2), (200, 872, 5.2)):
        search.add_trial(cap, energy, time)
    search.add_trial(200, 740, 4.4)
    assert search.choose().setting.cap_w == 150.0


def test_a_curve_that_is_not_unimodal_still_gives_the_best_cap_that_was_tried():
    caps = np.array([100.0, 125, 150, 175, 200, 225, 250, 260])
    time = np.array([1.25, 1.04, 1.17, 1.19, 1.03, 1.02, 1.04, 1.0])
    energy = np.array([0.51, 0.53, 0.71, 0.84, 0.84, 0.92, 1.02, 1.0])
    _, choice, asked = searched(energy * 240, time, "energy", caps=caps, budget=4)
    assert energy[caps == choice.setting.cap_w][0] == min(energy[caps == cap][0] for cap in asked)


def test_caps_that_are_not_honoured_are_seen_as_what_they_gave():
    energy, time = physical()
    energy, time = energy.copy(), time.copy()
    energy[CAPS < 150], time[CAPS < 150] = energy[CAPS == 150], time[CAPS == 150]
    _, choice, _ = searched(energy, time, "energy")
    assert compute_regret(Goal.parse("energy"), energy, time)[choice.setting.cap_w == CAPS][0] < 0.02


def cliff(high: float, at: float, steep: float = 1.5, a: float = 0.01) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return caps, energy and time of a load whose time jumps below a share of 300 W."""
    caps = np.arange(100.0, 301.0, 12.5)
    power = np.minimum(290.0, caps)
    time = 1 + a * ((power / 290) ** -steep - 1)
    time = np.where(caps < at * 300, high * time, time)
    return caps, power * time, time


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("goal", ["energy", "edp", "energy@slowdown=5%"])
@pytest.mark.parametrize(("high", "at"), [(2.2, 0.45), (2.2, 0.6), (1.3, 0.6), (1.3, 0.45), (1.15, 0.6)])
def test_above_a_cliff_the_best_cap_that_was_tried_is_chosen_and_is_close_to_the_best(high, at, goal):
    caps, energy, time = cliff(high, at)
    _, choice, asked = searched(energy, time, goal, caps=caps)
    cost = compute_regret(Goal.parse(goal), energy, time)
    assert cost[caps == choice.setting.cap_w][0] == min(cost[caps == cap][0] for cap in asked)
    assert cost[caps == choice.setting.cap_w][0] < 0.03


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("goal", ["edp", "energy@slowdown=5%"])
@pytest.mark.parametrize(("high", "at", "steep", "a"), [(2.2, 0.45, 1.5, 0.01), (1.3, 0.6, 2.0, 0.03)])
def test_a_cliff_with_a_little_noise_costs_little_in_the_middle(high, at, steep, a, goal):
    caps, energy, time = cliff(high, at, steep, a)
    cost, costs = compute_regret(Goal.parse(goal), energy, time), []
    for seed in range(5):
        _, choice, asked = searched(energy, time, goal, caps=caps, noise=0.005, seed=seed)
        best = min(asked, key=lambda cap: cost[caps == cap][0])
        assert best in (choice.setting.cap_w, *list_tied(choice))
        costs.append(cost[caps == choice.setting.cap_w][0])
    assert np.median(costs) < 0.03


def test_one_cap_that_no_curve_explains_is_believed_if_it_was_measured_well():
    search = Search(CAPS.tolist(), Goal.parse("energy"))
    for cap, energy, time in ((260, 1000.0, 4.0), (200, 985.0, 4.1), (180, 800.0, 5.76), (150, 990.0, 4.3)):
        search.add_trial(cap, energy, time, 0.001 * energy, 0.001 * time)
    choice = search.choose()
    assert (choice.setting.cap_w, choice.tied) == (180.0, ())
    assert (choice.energy_ratio, choice.time_ratio) == (pytest.approx(0.8), pytest.approx(1.44))


def test_one_cap_that_no_curve_explains_does_not_hide_what_the_others_gave():
    search = Search(CAPS.tolist(), Goal.parse("edp"))
    for cap, energy, time in ((260, 1000.0, 4.0), (200, 800.0, 4.1), (160, 2000.0, 12.0), (150, 640.0, 4.2)):
        search.add_trial(cap, energy, time)
    choice = search.choose()
    assert (choice.setting.cap_w, choice.tied) == (150.0, ())


def test_what_is_said_of_the_choice_is_what_was_measured():
    search = Search(CAPS.tolist(), Goal.parse("energy"))
    for cap, energy, time in (
        (260, 990.0, 4.0),
        (260, 1010.0, 4.0),
        (180, 800.0, 4.4),
        (180, 830.0, 4.4),
        (100, 1500.0, 9.0),
    ):
        search.add_trial(cap, energy, time)
    choice = search.choose()
    assert choice.setting.cap_w == 180.0
    assert (choice.energy_ratio, choice.time_ratio) == (pytest.approx(0.815), pytest.approx(1.1))
    assert "energy -18.5 %, time +10.0 % against 260 W, as measured" in choice.why


@pytest.mark.parametrize("goal", ["energy", "edp", "energy@slowdown=5%"])
def test_where_no_cap_changes_anything_the_reference_is_chosen(goal):
    energy, time = physical(draw=60.0)
    for seed in range(4):
        _, choice, _ = searched(energy, time, goal, noise=0.003, seed=seed)
        assert choice.flat
        assert choice.setting.cap_w == 260.0


def test_a_small_gain_that_was_measured_often_is_not_flat():
    search = Search([150, 200, 260], Goal.parse("energy"))
    for n in range(8):
        for cap, energy in ((260, 1000.0), (200, 985.0), (150, 970.0)):
            search.add_trial(cap, energy + (-1) ** n, 10.0)
    choice = search.choose()
    assert (choice.setting.cap_w, choice.flat) == (150.0, False)


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("goal", ["energy", "edp"])
@pytest.mark.parametrize("seed", range(4))
def test_only_caps_that_may_be_the_best_are_tried_again(goal, seed):
    caps, energy, time = cliff(2.2, 0.6)
    _, _, asked = searched(energy, time, goal, caps=caps, noise=0.025, seed=seed, budget=10)
    cost = compute_regret(Goal.parse(goal), energy, time)
    again = {cap for cap in asked if asked.count(cap) > 1}
    assert all(cost[caps == cap][0] < 0.3 for cap in again)


@pytest.mark.system  # pure, and slow
def test_the_limit_is_kept_where_there_is_no_noise():
    for a in (0.01, 0.03, 0.1, 0.3):
        energy, time = physical(a=a)
        _, choice, _ = searched(energy, time, "energy@slowdown=5%")
        assert time[choice.setting.cap_w == CAPS][0] / time[-1] < 1.06


def test_one_cap_is_tried_once_and_chosen():
    search, choice, asked = searched(np.array([500.0]), np.array([2.0]), "edp", caps=np.array([200.0]))
    assert asked == [200.0]
    assert (choice.setting.cap_w, choice.tied, choice.trials, choice.flat) == (200.0, (), 1, False)
    assert search.reference == Setting(200.0)


def test_two_caps_are_both_tried():
    _, choice, asked = searched(
        np.array([700.0, 1000.0]), np.array([4.4, 4.0]), "energy", caps=np.array([150.0, 250.0])
    )
    assert asked[:2] == [250.0, 150.0]
    assert choice.setting.cap_w == 150.0


def test_a_budget_is_kept_and_named():
    energy, time = physical()
    for budget in (1, 2, 3):
        _, choice, asked = searched(energy, time, "edp", budget=budget, noise=0.02)
        assert len(asked) == budget
        assert f"the budget of {budget} trials is used" in choice.why


def test_windows_of_one_visit_are_one_trial_and_reduce_the_noise():
    search = Search(CAPS.tolist(), Goal.parse("edp"), 4)
    energy, time = physical()
    rng, visits = np.random.default_rng(5), 0
    while (cap := next_cap(search)) is not None:
        visits += 1
        for _ in range(6):
            noise = float(np.exp(0.03 * rng.standard_normal()))
            search.add_trial(
                cap, energy[cap == CAPS][0] * noise, time[cap == CAPS][0] * noise, u_energy=1.0, u_time=0.01
            )
    choice = search.choose()
    assert choice.trials == visits <= 4
    assert compute_regret(Goal.parse("edp"), energy, time)[choice.setting.cap_w == CAPS][0] < 0.03


def test_a_cap_that_is_left_out_is_asked_for_no_more():
    energy, time = physical()
    search = Search(CAPS.tolist(), Goal.parse("energy"))
    search.add_trial(260.0, energy[-1], time[-1])
    refused = search.next()
    assert refused is not None
    search.leave_out(refused)
    while (cap := next_cap(search)) is not None:
        assert cap != refused.cap_w
        search.add_trial(cap, energy[cap == CAPS][0], time[cap == CAPS][0])
    assert search.choose().setting.cap_w != refused.cap_w


def test_without_the_reference_the_next_lower_cap_takes_its_place():
    search = Search([100, 200, 300], Goal.parse("energy"))
    search.leave_out(Setting(300.0))
    assert search.reference == search.next() == Setting(200.0)
    search.leave_out(Setting(200.0))
    with pytest.raises(ConfigError, match="no setting is left"):
        search.leave_out(Setting(100.0))


def test_the_reference_is_asked_for_even_if_another_cap_was_told_first():
    search = Search([100, 200, 300], Goal.parse("edp"))
    search.add_trial(200.0, 1000.0, 5.0)
    assert search.choose().setting.cap_w == 200.0
    assert search.next() == Setting(300.0)


@pytest.mark.parametrize(
    ("caps", "budget", "match"),
    [
        ([], None, "without settings"),
        ([0.0, 100.0], None, "without settings"),
        ([math.nan], None, "without settings"),
        ([100.0], 0, "without a trial"),
    ],
)
def test_what_cannot_be_searched_is_refused(caps, budget, match):
    with pytest.raises(ConfigError, match=match):
        Search(caps, Goal.parse("energy"), budget)


@every_row(
    "told", [(150.0, 1.0, 1.0), (100.0, 0.0, 1.0), (100.0, 1.0, math.nan), (100.0, 1.0, -1.0), (100.0, 1.0, 1.0, -1.0)]
)
def test_what_is_no_trial_is_refused(told):
    search = Search([100, 200], Goal.parse("energy"))
    with pytest.raises(ConfigError, match="cannot add a trial"):
        search.add_trial(*told)
    with pytest.raises(ConfigError, match="none was tried"):
        search.choose()


@every_row("goal", GOALS)
def test_the_objective_is_the_goals_own(goal):
    parsed = Goal.parse(goal)
    got = compute_objective(parsed, np.array([300.0]), np.array([12.0]), 400.0, 10.0)
    assert got[0] == pytest.approx(parsed.score(Quantity(0.75), Quantity(1.2)).value)


def test_regret_counts_the_excess_slowdown_beyond_the_limit():
    energy, time = np.array([60.0, 80.0, 90.0, 100.0]), np.array([12.0, 10.5, 10.2, 10.0])
    goal = Goal.parse("energy@slowdown=5%")
    assert compute_regret(goal, energy, time) == pytest.approx([0.15, 0.0, 0.125, 0.25])
    assert compute_regret(Goal.parse("energy"), energy, time) == pytest.approx([0.0, 1 / 3, 0.5, 2 / 3])
    assert compute_excess(goal, time)[0] == pytest.approx(0.15)


def test_every_curve_of_the_family_begins_at_the_reference_and_falls_in_power_and_speed():
    for power_w in (40.0, 150.0, 250.0, 2400.0):
        log_t, log_p = make_family(CAPS, np.ones(len(CAPS)), power_w, 0.8)
        assert np.allclose(log_t[:, -1], 0)
        assert np.allclose(log_p[:, -1], 0)
        assert (np.diff(log_t, axis=1) <= 1e-12).all()
        assert (np.diff(log_p, axis=1) >= -1e-12).all()


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(50, 500), min_size=1, max_size=12, unique=True).filter(
        lambda caps: min(np.diff(sorted(caps)), default=9) > 0.1
    ),
    st.sampled_from(GOALS),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_whatever_is_told_the_search_ends_with_a_cap_that_was_tried(caps, goal, budget, seed):
    rng = np.random.default_rng(seed)
    search = Search(caps, Goal.parse(goal), budget)
    asked = []
    while (cap := next_cap(search)) is not None:
        asked.append(cap)
        search.add_trial(cap, *np.exp(3 * rng.standard_normal(2)).tolist(), *(0.01 * rng.random(2)).tolist())
    choice = search.choose()
    assert 1 <= len(asked) <= budget
    assert asked[0] == max(caps)
    assert choice.setting.cap_w in asked
    assert set(list_tied(choice)) <= set(asked) - {choice.setting.cap_w}


def draw_responses(count: int) -> list[tuple[list[Setting], np.ndarray, np.ndarray]]:
    """Return settings, energy and time of loads under caps and clocks: P = s + (1 - s) f^3, a cap chooses the clock."""
    rng, made = np.random.default_rng(7), []
    for _ in range(count):
        static, bound = rng.uniform(0.1, 0.4), rng.uniform(0.2, 1.0)
        pairs = [Setting(c, f * 2e9) for f in np.linspace(0.45, 1.0, 6) for c in np.linspace(100.0, 260.0, 6)]
        caps, clocks = np.array([(pair.cap_w, (pair.clock_hz or 0) / 2e9) for pair in pairs]).T
        clock = np.minimum(clocks, np.cbrt(np.clip((caps / 230 - static) / (1 - static), 0.02, 1.0)))
        time = 100 * (1 - bound + bound / clock)
        made.append((pairs, 230 * (static + (1 - static) * clock**3) * time, time))
    return made


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("edp", 1),
        *(pytest.param(text, 4, marks=pytest.mark.campaign) for text in ("energy", "edp", "energy@slowdown=5%")),
    ],
)
def test_a_quarter_of_the_pairs_of_cap_and_clock_is_enough(text, count):
    goal, costs = Goal.parse(text), []
    for n, (pairs, energy, time) in enumerate(draw_responses(count)):
        search, rng, trials = Search(pairs, goal), np.random.default_rng(n), 0
        assert search.reference == Setting(260.0, 2e9)
        while (setting := search.next()) is not None:
            at, noise = pairs.index(setting), float(np.exp(0.01 * rng.standard_normal()))
            search.add_trial(setting, energy[at] * noise, time[at] * noise)
            trials += 1
        assert trials <= len(pairs) // 4
        costs.append(compute_regret(goal, energy, time)[pairs.index(search.choose().setting)])
    assert np.median(costs) < 0.03
    assert max(costs) < 0.08


def test_an_idle_cap_changes_nothing_in_the_family_and_clocks_alone_have_one_too():
    caps, clocks = np.array([150.0, 260.0, 150.0, 260.0]), np.array([0.5, 0.5, 1.0, 1.0])
    log_t, log_p = make_family(caps, clocks, 230.0, 1.0)
    assert np.median(np.abs(log_t[:, 0] - log_t[:, 1])) < 0.03
    assert (log_p[:, 2] < 0.02).mean() > 0.9  # of the others the stage that draws most takes much longer
    alone, power = make_family(np.full(3, np.inf), np.array([0.5, 0.8, 1.0]), 230.0, 0.8)
    assert (np.diff(alone, axis=1) <= 1e-9).all()
    assert (np.diff(power, axis=1) >= -1e-9).all()
    assert np.isfinite(alone).all()
    search = Search([Setting(None, f * 1e9) for f in (0.9, 1.2, 1.5, 1.8)], Goal.parse("edp"))
    assert search.next() == Setting(None, 1.8e9)
    search.add_trial(Setting(None, 1.8e9), 1000.0, 4.0)
    assert search.next() in (Setting(None, 0.9e9), Setting(None, 1.2e9), Setting(None, 1.5e9))
