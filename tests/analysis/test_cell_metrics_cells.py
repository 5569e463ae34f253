"""Test the mean of repeats: what stays, what shrinks, what the spread adds."""

from __future__ import annotations

import math
import random

import pytest
from tests.analysis.studies import cell, trial
from tests.rows import every_row

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.statistics import compute_correlation, compute_deviation, t_975
from joulelab.analysis.study_cells import Cell, Trial, compute_means, divide_energies, divide_times
from joulelab.core.quantity import Quantity


def _energy(made: Cell) -> Quantity:
    found = compute_means(made)
    assert found is not None
    assert found.energy is not None
    return found.energy


def _t_cumulative(t: float, freedom: int) -> float:
    """Integrate Student's density from -t to t by Simpson's rule."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    steps = 20_000
    total = 0.0
    for k in range(steps + 1):
        x = t * k / steps
        total += (1 if k in (0, steps) else 4 if k % 2 else 2) * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    return 2 * scale * total * t / steps / 3


@every_row("freedom", [1, 2, 3, 5, 9, 11, 12, 15, 29, 100])
def test_student_s_quantile_holds_95_percent(freedom: int) -> None:
    assert _t_cumulative(t_975(freedom), freedom) == pytest.approx(0.95, abs=2e-6)


def test_a_spread_needs_two_repeats() -> None:
    with pytest.raises(ValueError, match="two repeats"):
        t_975(0)
    assert compute_deviation([3.0]) is None


def test_gain_and_offset_stay_and_what_is_the_run_s_own_shrinks() -> None:
    made = cell("a", [trial(100.0, 10.0, gain=2.0, offset=0.5, edge=4.0)] * 4)
    q = _energy(made)
    assert q.budget() == pytest.approx({"gain": 2.0, "edge": 2.0, "offset": 0.5})
    assert "gain:m" in q.terms


def test_a_lag_stays_in_a_cell_but_does_not_cancel_between_cells() -> None:
    a, b = (compute_means(cell(key, [trial(100.0, 10.0, lag=2.0)] * 4)) for key in "ab")
    assert a is not None
    assert b is not None
    assert a.energy is not None
    assert a.energy.u == pytest.approx(2.0)
    ratio = divide_energies(a, b)
    assert ratio is not None
    assert ratio.u == pytest.approx(0.02 * math.sqrt(2))


def test_what_a_sensor_cannot_see_stays_until_three_repeats() -> None:
    for n, expected in ((1, 5.0), (2, 5.0), (3, 0.0)):
        found = _energy(cell("a", [trial(100.0, 10.0, unseen=5.0)] * n))
        assert found.u == 0.0
        assert found.bound == pytest.approx(2 * expected)


def test_evidence_for_a_load_in_step_counts_until_three_repeats() -> None:
    for n, expected in ((1, 5.0), (2, 5.0), (3, 0.0)):
        assert _energy(cell("a", [trial(100.0, 10.0, **{"in-step": 5.0})] * n)).u == pytest.approx(expected)


def test_the_spread_counts_where_it_is_larger_than_the_runs_own_terms() -> None:
    values = (98.0, 100.0, 102.0)
    u_spread = 4.302653 * 2.0 / math.sqrt(3) / 2
    wide = _energy(cell("a", [trial(v, 10.0, edge=0.1) for v in values]))
    assert wide.u == pytest.approx(u_spread)
    assert wide.expanded == pytest.approx(4.302653 * 2.0 / math.sqrt(3))
    assert set(wide.budget()) == {"repeats"}
    narrow = _energy(cell("a", [trial(v, 10.0, edge=10.0) for v in values]))
    assert narrow.u == pytest.approx(10.0 / math.sqrt(3))
    assert set(narrow.budget()) == {"edge"}


def test_energy_and_time_that_go_together_give_the_product_more_and_the_power_less_uncertainty() -> None:
    times = (9.9, 10.0, 10.1)
    made = cell("a", [trial(10 * t, t) for t in times], cap=1.0)
    found = summarise_cells([made]).cells[0]
    assert found.energy is not None
    assert found.time is not None
    assert found.edp is not None
    assert found.ed2p is not None
    assert found.mean_w is not None
    relative = found.time.u / found.time.value
    assert found.energy.u / found.energy.value == pytest.approx(relative)
    assert found.edp.u / found.edp.value == pytest.approx(2 * relative)
    assert found.ed2p.u / found.ed2p.value == pytest.approx(3 * relative)
    assert found.mean_w.u == pytest.approx(0.0, abs=1e-12)


def test_the_product_s_uncertainty_is_that_of_gum_with_covariance() -> None:
    pairs = ((100.0, 10.2), (103.0, 10.0), (99.0, 10.1), (101.0, 10.4))
    found = summarise_cells([cell("a", [trial(e, t) for e, t in pairs], cap=1.0)]).cells[0]
    energies, times = zip(*pairs, strict=True)
    factor = t_975(3) / 2 / math.sqrt(4)
    u_e, u_t = ((compute_deviation(v) or 0.0) * factor / (sum(v) / 4) for v in (energies, times))
    cov = compute_correlation(energies, times) * u_e * u_t
    assert found.edp is not None
    assert found.edp.u / found.edp.value == pytest.approx(math.sqrt(u_e**2 + u_t**2 + 2 * cov))
    assert found.edp.value == pytest.approx(sum(energies) / 4 * sum(times) / 4)


def test_the_runs_own_terms_keep_the_covariance_with_time() -> None:
    pairs = ((100.0, 10.0), (101.0, 10.1), (99.0, 9.9))
    q = _energy(cell("a", [trial(e, t, edge=20.0) for e, t in pairs]))
    assert q.u == pytest.approx(20.0 / math.sqrt(3))
    assert q.terms["repeats:time@a"] == pytest.approx(t_975(2) * 1.0 / math.sqrt(3) / 2)


def test_series_that_do_not_vary_are_not_correlated() -> None:
    assert compute_correlation([1.0, 1.0], [1.0, 2.0]) == 0.0
    assert compute_correlation([1.0, 2.0], [4.0, 3.0]) == pytest.approx(-1.0)


def test_a_ratio_on_one_meter_may_be_known_where_its_energies_are_not() -> None:
    def pair(n: int, meters: str) -> Quantity:
        a, b = (
            compute_means(cell(key, [trial(e + k, 10.0, known=False, meter=m) for k in range(n)]))
            for key, e, m in (("a", 90.0, meters[0]), ("b", 100.0, meters[1]))
        )
        assert a is not None
        assert b is not None
        assert a.energy is not None
        assert a.energy.expanded is None
        ratio = divide_energies(a, b)
        assert ratio is not None
        return ratio

    assert pair(2, "xx").expanded is not None
    assert pair(1, "xx").expanded is None
    assert pair(2, "xy").expanded is None


def test_gains_of_two_meters_do_not_cancel() -> None:
    a, b, c = (
        compute_means(cell(k, [trial(100.0, 1.0, gain=1.0, meter=m)])) for k, m in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    assert a is not None
    assert b is not None
    assert c is not None
    same, other = divide_energies(a, b), divide_energies(a, c)
    assert same is not None
    assert other is not None
    assert same.u == 0.0
    assert other.u == pytest.approx(0.01 * math.sqrt(2))


def test_an_offset_cancels_as_far_as_the_mean_powers_are_alike() -> None:
    # u(r) / r = u_o (1 / P1 - 1 / P2), with the offset u_o in W.
    a = compute_means(cell("a", [trial(1000.0, 10.0, offset=10 * 2.0)]))
    b = compute_means(cell("b", [trial(800.0, 16.0, offset=16 * 2.0)]))
    assert a is not None
    assert b is not None
    ratio = divide_energies(a, b)
    assert ratio is not None
    assert ratio.u / ratio.value == pytest.approx(2.0 * (1 / 50 - 1 / 100))


def test_nothing_is_divided_by_nothing() -> None:
    zero, some = compute_means(cell("a", [trial(0.0, 0.0)])), compute_means(cell("b", [trial(1.0, 1.0)]))
    none = compute_means(cell("c", [trial(None, 1.0)]))
    assert zero is not None
    assert some is not None
    assert none is not None
    assert [divide_energies(*pair) for pair in ((some, zero), (zero, some), (some, none), (none, some))] == [None] * 4
    assert divide_times(some, zero) is None
    assert compute_means(cell("d", [])) is None
    found = summarise_cells([cell("a", [trial(0.0, 0.0)], cap=1.0), cell("b", [trial(1.0, 1.0)], cap=2.0)])
    assert found.cell("a").mean_w is None
    assert found.cell("b").gain_minus_loss is not None
    assert found.cell("a").loss is None


def test_work_gives_joules_per_unit_and_units_per_second() -> None:
    trials = tuple(
        Trial(Quantity(100.0 * k, {"gain:m": k}), 2.0, {"tokens": 50.0 * k, "steps": s})
        for k, s in ((1, 1.0), (2, 0.0))
    )
    found = summarise_cells([Cell("a", {"cap": 1.0}, trials)]).cells[0]
    assert found.per_work["tokens"].value == pytest.approx(2.0)
    assert found.per_work["tokens"].budget() == pytest.approx({"gain": 0.02})
    assert found.rate["tokens"].value == pytest.approx(37.5)
    assert "steps" not in found.per_work
    assert "steps" not in found.rate


@pytest.mark.no_cover  # thousands of draws of what others trace
@pytest.mark.parametrize(
    ("n", "tries"), [(3, 200), *(pytest.param(n, 600, marks=pytest.mark.campaign) for n in (2, 3, 10))]
)
def test_the_interval_of_a_gain_covers_the_truth(n: int, tries: int) -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(tries):
        cells = []
        error = draw.uniform(-0.05, 0.05)  # one meter: its gain error is the same in all runs
        for key, energy, cap in (("a", 100.0, 1.0), ("b", 80.0, 0.9)):
            runs = [energy * (1 + error) * draw.gauss(1, 0.01) for _ in range(n)]
            cells.append(cell(key, [trial(e, 1.0, gain=0.05 / 3**0.5 * e) for e in runs], cap=cap))
        gain = summarise_cells(cells).cell("b").gain
        assert gain is not None
        assert gain.expanded is not None
        hits += abs(gain.value - 0.2) <= gain.expanded
    assert hits / tries >= 0.935  # 95 % less two standard deviations of 600
