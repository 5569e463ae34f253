"""Counting of updates: on time, late, missed, read twice; by the bit, by the host's clock, by the instrument's."""

from __future__ import annotations

import bisect
import math
import random

import pytest

from joulelab.instruments.analyzer.pace import Pace

MS = 1_000_000


class Reader:
    """Read as the meter does: ask, wait for the next update if there is none, in virtual time."""

    def __init__(self, updates, *, integrates=False):
        self.pace = Pace(0.1)
        self.updates = [round(t * MS) for t in updates]
        self.now = 0
        self.seen = -1
        self.last = None
        self.integrates = integrates
        self.rows = 0

    def read(self, away_ms=0.0, race=False):
        self.now += round(away_ms * MS)
        begin = self.now
        index = max(bisect.bisect_right(self.updates, begin) - 1, self.seen + 1)
        self.now = max(begin, self.updates[index]) + round(0.4 * MS)
        latched = index
        if race:  # another update comes between the status and the values
            index += 1
            self.now = self.updates[index] + 10_000
        seconds = self.updates[index] // 10**9 if self.integrates else math.nan
        fresh = self.pace.update(begin, self.now, same=index == self.last, integrated_s=float(seconds))
        self.seen, self.last = latched, index
        self.rows += fresh
        return fresh


def test_on_time_nothing_is_missed():
    reader = Reader([100 * n + 37 for n in range(200)])
    assert all(reader.read() for _ in range(150))
    assert (reader.pace.missed, reader.pace.duplicate) == (0, 0)


@pytest.mark.parametrize("ppm", [-300, 300])
def test_clocks_that_drift_are_followed(ppm):
    reader = Reader([100 * n * (1 + ppm * 1e-6) for n in range(3_100)])
    for _ in range(3000):
        reader.read()
    assert (reader.pace.missed, reader.pace.duplicate) == (0, 0)


def test_jitter_is_not_missed():
    draw = random.Random(1)
    reader = Reader([100 * n + draw.uniform(0, 45) for n in range(700)])
    for _ in range(600):
        reader.read()
    assert (reader.pace.missed, reader.pace.duplicate) == (0, 0)


def test_a_very_late_update_is_taken_back():
    times = [100.0 * n for n in range(60)]
    times[20] += 70
    reader = Reader(times)
    for _ in range(40):
        reader.read()
    assert (reader.pace.missed, reader.pace.duplicate) == (0, 0)


@pytest.mark.parametrize("integrates", [False, True])
def test_updates_that_do_not_come(integrates):
    draw = random.Random(2)
    skipped = set(draw.sample(range(5, 590), 40))
    reader = Reader([100 * n for n in range(620) if n not in skipped], integrates=integrates)
    for _ in range(560):
        reader.read()
    assert reader.pace.missed == 40
    assert reader.pace.duplicate == 0


def test_a_host_that_is_away():
    draw = random.Random(5)
    reader = Reader([100 * n + 3 for n in range(4000)])
    first = None
    for _ in range(500):
        reader.read(draw.choice((0, 0, 0, 20, 130, 270, 460)))
        first = reader.seen if first is None else first
    assert reader.rows + reader.pace.missed == pytest.approx(reader.seen - first + 1, abs=1)
    assert reader.pace.missed > 100
    assert reader.pace.duplicate == 0


def test_an_update_between_status_and_values_is_one_missed_and_one_twice():
    reader = Reader([100 * n for n in range(40)])
    for _ in range(10):
        reader.read()
    reader.read(race=True)
    assert reader.pace.missed == 1
    assert not reader.read()
    assert reader.pace.duplicate == 1
    assert reader.read()
    assert reader.pace.missed == 1


def test_no_update_is_counted_as_twice():
    pace = Pace(0.1)
    pace.repeated()
    assert (pace.missed, pace.duplicate) == (0, 1)


def test_the_instruments_seconds_find_what_the_hosts_clock_does_not():
    pace = Pace(0.1)
    for n in range(100):  # the host's clock says one update each, the instrument has integrated twice as long
        pace.update(n * 100 * MS + 1, (n + 1) * 100 * MS, same=False, integrated_s=float(n // 5))
    assert pace.missed == pytest.approx(95, abs=10)


def test_a_gap_is_not_missed():
    pace = Pace(0.1)
    pace.update(0, 100 * MS, same=False)
    pace.restart()
    assert pace.update(9_000 * MS, 9_090 * MS, same=False)
    assert pace.missed == 0
    assert pace.update_ns == 9_090 * MS


def test_a_second_that_is_seen_late_makes_nothing_missed():
    """Updates 9 to 11 do not come, so second 1 is first read at 12; second 2 is read in time."""
    pace = Pace(0.1)
    read = [n for n in range(1, 32) if n not in (9, 10, 11)]
    for number in read:
        at = number * 100_000_000
        assert pace.update(at - 50_000_000, at, same=False, integrated_s=float(number // 10))
    assert pace.missed == 3
