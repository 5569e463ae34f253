"""The solution of HiGHS against trying everything, and what must hold of any."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.plan.when.brute import find_least_cost, find_least_cost_with_restarts
from tests.rows import every_row

from joulelab.core.errors import ConfigError, MissingDependency
from joulelab.plan.when.when_program import JobModes, RestartCost, find_cheapest_slots

pytest.importorskip("highspy")
CLOSE = 1e-4  # of the largest cost: what the preference for earlier slots and the solver's tolerance may add


def check_random_problem(seed: int) -> None:
    """Solve a random problem of up to four slots: idle power, waiting, caps, restarts, negative rates."""
    draw = np.random.default_rng(seed)
    count, has_restart = int(draw.integers(1, 5)), bool(draw.integers(0, 2))
    rates = draw.integers(-3 if draw.random() < 0.5 else 0, 10, count).astype(float)
    lengths = draw.choice([2.0, 3.0], count)
    slower = zip(draw.choice([0.25, 0.5, 0.8, 0.9], 2), draw.integers(2, 10, 2).astype(float), strict=True)
    modes = [*sorted(list(dict(slower).items())[: int(draw.integers(0, 2 if has_restart else 3))]), (1.0, 10.0)]
    pause_w = float(draw.choice([0.0, 1.0, 3.0]))
    wait_w = float(draw.choice([0.0, pause_w]))
    work = float(draw.uniform(0.05, 1.0) * lengths.sum())
    restart = RestartCost(float(draw.choice([0.25, 1.0, 2.5])), float(draw.choice([0.0, 5.0])))
    restart = restart if has_restart else RestartCost()
    if has_restart:
        truth = find_least_cost_with_restarts(
            rates.tolist(), lengths.tolist(), work, modes, pause_w, wait_w=wait_w, again_s=restart.time_s,
            again_j=restart.energy_j,
        )  # fmt: skip
    else:
        truth = find_least_cost(rates.tolist(), lengths.tolist(), work, modes, pause_w, wait_w=wait_w)
    speeds, powers = np.array([m[0] for m in modes]), np.array([m[1] for m in modes])
    found = find_cheapest_slots(
        rates, lengths, work, JobModes(speeds, powers), pause_w, wait_w=wait_w, restart=restart, gap=0.0
    )
    largest = float(np.abs(rates).max() * 10.0 * lengths.sum())
    assert found.cost == pytest.approx(truth, abs=CLOSE * max(largest, 1.0)), seed
    done = float((found.seconds @ speeds).sum()) - restart.time_s * int(found.restarts.sum())
    assert done == pytest.approx(work, rel=1e-4), seed
    assert (found.seconds.sum(axis=1) <= lengths * (1 + 1e-6)).all(), seed
    assert found.gap <= CLOSE, seed


@every_row("seed", range(25))
def test_it_is_the_optimum(seed: int) -> None:
    check_random_problem(seed)


@pytest.mark.campaign
@pytest.mark.parametrize("hundred", range(4))
def test_it_is_the_optimum_of_four_hundred(hundred: int) -> None:
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        check_random_problem(seed)


def test_an_idle_node_makes_pauses_dear() -> None:
    rates, lengths, modes = np.array([2.0, 9.0, 9.0, 9.0, 1.0]), np.full(5, 1.0), JobModes(np.ones(1), np.array([10.0]))
    off, idle = (find_cheapest_slots(rates, lengths, 2.0, modes, watts) for watts in (0.0, 3.1))
    assert off.cost == pytest.approx(30.0, rel=1e-4)
    assert off.seconds[:, 0] == pytest.approx([1, 0, 0, 0, 1], abs=1e-6)
    assert idle.cost == pytest.approx(100.0, rel=1e-4)  # 30 + 27 x 3.1 would be more than to run through 3 and 4
    assert idle.seconds[:, 0] == pytest.approx([0, 0, 0, 1, 1], abs=1e-6)


def test_waiting_is_paid_until_the_first_run_also_before_a_pause() -> None:
    """A start that goes to pause at once, without work, must not make the wait in its slot free."""
    rates, lengths, modes = np.array([5.0, 5.0, 1.0, 1.0]), np.ones(4), JobModes(np.ones(1), np.array([10.0]))
    found = find_cheapest_slots(rates, lengths, 2.0, modes, 3.0, wait_w=3.0, restart=RestartCost(0.1, 0.0))
    assert found.restarts.sum() == 0
    assert found.cost == pytest.approx(2 * 5 * 3 + 2 * 10, rel=1e-4)


def test_dear_restarts_make_few_blocks() -> None:
    rates, lengths = np.tile([1.0, 1.0, 4.0, 4.0], 6), np.full(24, 900.0)
    modes = JobModes(np.ones(1), np.array([10.0]))
    restarts = [
        int(find_cheapest_slots(rates, lengths, 9000.0, modes, 0.0, restart=RestartCost(t, 1.0)).restarts.sum())
        for t in (300.0, 900.0)
    ]
    assert restarts[0] > restarts[1]


def test_the_price_is_that_of_a_second_more() -> None:
    rates, lengths = np.random.default_rng(2).uniform(1, 9, 12), np.full(12, 5.0)
    modes = JobModes(np.array([0.5, 0.8, 1.0]), np.array([4.0, 6.5, 10.0]))
    one, more = (find_cheapest_slots(rates, lengths, work, modes, 2.0, gap=0.0) for work in (23.3, 23.4))
    assert (more.cost - one.cost) / 0.1 == pytest.approx(one.price, rel=1e-3)


def test_too_much_work_and_a_missing_solver_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = JobModes(np.ones(1), np.array([10.0]))
    with pytest.raises(ConfigError, match="the deadline is too early"):
        find_cheapest_slots(np.ones(3), np.ones(3), 3.1, modes, 1.0)
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingDependency, match="HiGHS is not installed") as caught:
        find_cheapest_slots(np.ones(3), np.ones(3), 2.0, modes, 1.0)
    assert caught.value.next == 'python -m pip install "joulelab[plan]"'
