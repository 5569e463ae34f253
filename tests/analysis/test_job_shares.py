"""The split of a shared device: rows add up, the truth is within the bounds, and nobody has a row of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from joulelab.analysis.job_shares import (
    NOBODY,
    DeviceUse,
    IdlePower,
    _keep_within_bounds,
    add_device_shares,
    divide_cells,
    find_idle_power,
    split_by_use,
    split_device,
)
from joulelab.core.quantity import Quantity

CELLS = 60
ONES = np.ones(CELLS)
T = np.arange(CELLS)
IDLE_W, MOST_W = 70.0, 700.0
HIGH_W = {"a": 600.0, "b": 200.0}  # caused per second of use


def make_device(a, b, there_a=True, there_b=True, **more) -> DeviceUse:
    use = {"a": a * ONES, "b": b * ONES}
    present = {"a": there_a & (ONES > 0), "b": there_b & (ONES > 0)}
    energy = IDLE_W + sum(HIGH_W[job] * use[job] for job in use)
    given = {"most_w": MOST_W, "idle": IdlePower(IDLE_W, IDLE_W, IDLE_W)} | more
    return DeviceUse("gpu:0", ONES, energy, use, present, **given)


def add_up(rows) -> float:
    return math.fsum(row.energy_j for row in rows)


def test_rows_add_up_and_the_truth_is_within_the_bounds():
    for a, b in ((0.3, 0.4), (0.5 + 0.4 * np.sin(T / 3), 0.4), (np.where(T % 20 < 10, 0.8, 0.0), 0.15)):
        device = make_device(a, b)
        rows = split_device(device)
        assert [row.job for row in rows] == ["a", "b", NOBODY]
        assert add_up(rows) == pytest.approx(device.energy_j.sum(), rel=1e-12)
        for row in rows[:2]:
            true_j = HIGH_W[row.job] * device.use[row.job].sum() + IDLE_W * CELLS / 2
            assert row.low_j <= true_j <= row.high_j
            assert row.low_j <= row.energy_j <= row.high_j
            assert row.idle_j == pytest.approx(IDLE_W * CELLS / 2)


def test_a_load_that_varies_tells_the_jobs_apart():
    device = make_device(np.where(T % 20 < 10, 0.8, 0.1), 0.1 + 0.2 * (T % 7 < 3))
    true_j = {job: HIGH_W[job] * device.use[job].sum() + IDLE_W * CELLS / 2 for job in HIGH_W}
    rows = {row.job: row.energy_j for row in split_device(device)}
    errors = {job: abs(rows[job] - true_j[job]) for job in true_j}
    plain = {job: abs(split_by_use(device)[job] - true_j[job]) for job in true_j}
    assert all(errors[job] < plain[job] / 2 for job in true_j)
    assert errors["a"] < 0.02 * true_j["a"]


def test_what_only_one_job_can_have_caused_is_its_lower_end():
    alone = make_device(0.5, 0.0, there_b=False)
    a, b, nobody = split_device(alone)
    assert (a.low_j, a.energy_j, a.high_j) == pytest.approx((alone.energy_j.sum(),) * 3)
    assert (b.energy_j, b.high_j, nobody.energy_j) == pytest.approx((0, 0, 0))
    # Others used 10 % of the time: at most a tenth of what the device can draw above idle.
    a, b, _ = split_device(make_device(0.9, 0.1, use_error=0.0))
    assert a.low_j == pytest.approx(CELLS * (0.9 * 600 + 0.1 * 200 - 0.1 * 630 + IDLE_W / 2))
    assert b.high_j == pytest.approx(CELLS * (0.1 * 630 + IDLE_W / 2))


def test_without_a_limit_of_power_a_ratio_bounds_and_without_both_nothing_does():
    device = make_device(0.5, 0.25, most_w=math.inf, use_error=0.0)
    caused = CELLS * (0.5 * 600 + 0.25 * 200)
    row = split_device(device)[0]
    assert (row.low_j, row.high_j) == pytest.approx((CELLS * IDLE_W / 2, CELLS * IDLE_W / 2 + caused))
    row = split_device(replace(device, ratio=4.0))[0]
    assert row.low_j == pytest.approx(CELLS * IDLE_W / 2 + caused * 0.5 / 1.5)
    assert row.high_j == pytest.approx(CELLS * IDLE_W / 2 + caused * 2 / 2.25)


def test_time_without_jobs_is_nobodys_and_unknown_use_may_be_anybodys():
    rows = split_device(make_device(np.where(T < 30, 0.5, 0), 0.0, there_a=T < 30, there_b=False))
    assert rows[-1].energy_j == rows[-1].idle_j == rows[-1].low_j == pytest.approx(30 * IDLE_W)
    device = make_device(np.where(T < 50, 0.5, np.nan), 0.1)
    device = replace(device, energy_j=np.nan_to_num(device.energy_j, nan=390.0))
    rows = split_device(device)
    assert add_up(rows) == pytest.approx(device.energy_j.sum(), rel=1e-12)
    assert rows[-1].energy_j == pytest.approx(3900)
    assert rows[-1].low_j == 0
    assert rows[1].high_j >= 3900


def test_power_that_no_use_explains_is_divided_among_those_present():
    device = replace(make_device(0.0, 0.0), energy_j=100 * ONES)
    a, b, nobody = split_device(device)
    assert (a.energy_j, b.energy_j, nobody.energy_j) == pytest.approx((3000, 3000, 0))
    assert a.low_j == pytest.approx(35 * CELLS)
    assert a.high_j > 50 * CELLS


def test_idle_energy_by_reserved_shares_leaves_the_rest_to_nobody():
    device = make_device(0.5, 0.25, reserved={"a": 0.5, "b": 0.2})
    rows = split_device(device, "reserved")
    assert [row.idle_j for row in rows] == pytest.approx([0.5 * 4200, 0.2 * 4200, 0.3 * 4200])
    assert rows[-1].energy_j == pytest.approx(0.3 * 4200)
    assert sum(divide_cells(device, "reserved")["a"]) == pytest.approx(rows[0].energy_j)


def test_idle_power_is_bounded_by_what_was_seen():
    busy, half, there = {"a": ONES}, {"a": np.where(T < 30, 1.0, 0.0)}, {"a": T >= 0}
    power = np.where(T < 30, 400.0, 75.0)
    assert find_idle_power(ONES, 400 * ONES, busy, there) == IdlePower(0.0, 400.0)
    assert find_idle_power(ONES, 400 * ONES, busy, there, 175.0) == IdlePower(0.0, 175.0)
    seen = find_idle_power(ONES, power, half, there)
    assert (seen.low_w, seen.seen_w, seen.high_w) == pytest.approx((67.5, 75, 82.5))
    assert find_idle_power(ONES, power, {}, {}).seen_w == 75
    assert find_idle_power(ONES, np.where(T == 7, np.nan, power), half, there) == seen, "a gap is no power"
    assert find_idle_power(ONES, np.nan * ONES, busy, there) == IdlePower(0.0, 0.0)


def test_a_device_that_nobody_has_open_may_sleep_deeper():
    """Its power then bounds the idle power from below only."""
    busy, power = {"a": np.where(T < 20, 0.0, 1.0)}, np.where(T < 10, 20.0, np.where(T < 20, 100.0, 400.0))
    for first, expected in ((20, (18, 20, 175)), (10, (90, 100, 110))):
        found = find_idle_power(ONES, power, busy, {"a": first <= T}, 175.0)
        assert (found.low_w, found.seen_w, found.high_w) == pytest.approx(expected)
    known = find_idle_power(ONES, 400 * ONES, {"a": ONES}, {"a": T >= 0}, 175.0, known_w=60.0)
    assert (known.low_w, known.seen_w, known.high_w) == pytest.approx((54, 60, 175))


def test_an_idle_power_that_is_not_known_stays_within_its_ends():
    for idle in (IdlePower(0.0, 30.0), IdlePower(100.0, 120.0)):
        rows = split_device(make_device(0.5 + 0.4 * np.sin(T / 3), 0.2 + 0.2 * np.cos(T), idle=idle))
        assert idle.low_w <= sum(row.idle_j for row in rows) / CELLS <= idle.high_w + 1e-6


def test_an_idle_power_that_rises_while_a_process_is_there_is_within_the_bounds():
    """A light and a heavy job: 80 W more since a process has the device open are divided equally, too."""
    there = T >= 15
    device = make_device(np.where(there, 0.02, 0.0), np.where(there, 0.9, 0.0), there, there, idle=IdlePower(0, 0))
    energy = device.energy_j + 80.0 * there
    idle = find_idle_power(ONES, energy, device.use, device.present, 0.25 * MOST_W)
    a, b, nobody = split_device(replace(device, energy_j=energy, idle=idle))
    assert a.low_j <= 45 * (0.02 * HIGH_W["a"] + (IDLE_W + 80) / 2) <= a.high_j
    assert b.low_j <= 45 * (0.9 * HIGH_W["b"] + (IDLE_W + 80) / 2) <= b.high_j
    assert nobody.energy_j == pytest.approx(15 * IDLE_W)


def test_a_difference_of_two_meters_that_is_below_zero_for_a_while_is_not_counted_twice():
    device = make_device(0.5, 0.25, most_w=math.inf, ratio=4.0, use_error=0.0, idle=IdlePower(0.0, 0.0))
    shifted = device.energy_j + np.where(T < 30, -900.0, 900.0)
    plain, moved = (split_device(replace(device, energy_j=e))[0] for e in (device.energy_j, shifted))
    assert moved.low_j <= plain.low_j * 1.001
    assert moved.high_j >= plain.high_j


def test_long_cells_are_not_moved_by_a_whole_cell():
    """In a run of a day a cell is 40 s, and use is read a second late, not 40 s."""
    device = make_device(np.where(T % 2, 0.9, 0.1), np.where(T % 2, 0.0, 0.5), use_error=0.0)
    device = replace(
        device, seconds=40 * ONES, energy_j=40 * device.energy_j, use={j: 40 * u for j, u in device.use.items()}
    )
    late, prompt = (split_device(replace(device, late_s=late_s))[0] for late_s in (math.inf, 1.0))
    assert (
        late.low_j
        < prompt.low_j
        <= 40 * (HIGH_W["a"] * 0.5 * CELLS + IDLE_W * CELLS / 2)
        <= prompt.high_j
        < late.high_j
    )


def test_readings_that_do_not_match_mislead_the_fit_but_not_beyond_the_bounds():
    """Job a starts alone, and its energy is read late: the fit gives its power to the other one."""
    a, b = np.where(T < 4, 0.6, 0.6), np.where(T < 4, 0.0, 0.2)
    device = make_device(a, b, most_w=MOST_W, use_error=0.0)
    late = replace(device, energy_j=np.where(T < 4, 80.0, device.energy_j))
    one, two, nobody = split_device(late)
    assert add_up((one, two, nobody)) == pytest.approx(late.energy_j.sum(), rel=1e-12)
    assert two.energy_j <= (0.2 * 630 + IDLE_W / 2) * CELLS
    assert one.energy_j > 1.5 * two.energy_j
    assert _keep_within_bounds({"a": 5.0}, {"a": (0.0, 1.0)}) == {"a": 5.0}, "bounds that cannot hold"


def test_shares_of_devices_add_up_and_the_meter_widens_them():
    one = split_device(make_device(0.5, 0.25))
    both = add_device_shares([one, one[:1]])
    assert [row.job for row in both] == ["a", "b", NOBODY]
    assert both[0].energy_j == 2 * one[0].energy_j
    assert both[0].high_j == 2 * one[0].high_j
    wide = one[0].widen_for_meter(Quantity(100.0, {"gain": 5.0}))
    assert wide.energy_j == one[0].energy_j
    assert (wide.low_j, wide.high_j) == pytest.approx((0.9 * one[0].low_j, 1.1 * one[0].high_j))
    assert one[0].widen_for_meter(Quantity(1.0, known=False)) == one[0]
    assert split_by_use(make_device(0.0, 0.0)) == {"a": 0.0, "b": 0.0}
