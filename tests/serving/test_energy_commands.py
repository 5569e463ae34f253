"""Watching a server counts its work since the start, over restarts, beside the energy."""

from __future__ import annotations

import pytest

from joulelab.analysis.live_energy import LiveFigures
from joulelab.core.quantity import Quantity
from joulelab.serving.energy_commands import ServerWatch

NS = 10**9


def make_figures(seconds: float, joules: float) -> LiveFigures:
    return LiveFigures(0, round(seconds * 1e9), {"measured": Quantity(joules)}, {"measured": 300.0})


def test_energy_per_token_now_and_so_far():
    watch = ServerWatch()
    watch.add_counts({"output_tokens": 1000.0, "running": 2.0}, 0)
    watch.add_figures(None)
    assert "no tokens" in watch.describe()
    watch.add_counts({"output_tokens": 1100.0, "running": 2.0}, 5 * NS)
    watch.add_figures(make_figures(5.0, 50.0))
    watch.add_counts({"output_tokens": 150.0, "running": 1.0, "waiting": 4.0}, 10 * NS)  # it began again at zero
    watch.add_figures(make_figures(10.0, 200.0))
    assert watch.work == {"output_tokens": 250.0}
    assert watch.find_unit_energy("output_tokens", now=True) == pytest.approx(1.0)
    assert watch.find_unit_energy("output_tokens", now=False) == pytest.approx(0.8)
    assert "1 running, 4 waiting" in watch.describe()
    watch.add_counts({}, 15 * NS)
    assert "does not answer" in watch.describe()
    assert watch.to_json()["per_work"]["requests"] == {"now": None, "so_far": None}


def test_energy_that_is_older_than_the_counts_is_divided_by_the_work_at_its_time():
    watch = ServerWatch()
    for second, tokens in ((0, 500.0), (2, 700.0), (4, 900.0)):
        watch.add_counts({"output_tokens": tokens}, second * NS)
        if second:
            watch.add_figures(make_figures(second - 0.5, 100.0 * (second - 0.5)))
    assert watch.find_unit_energy("output_tokens", now=True) == pytest.approx(1.0)
    assert watch.find_unit_energy("output_tokens", now=False) == pytest.approx(1.0)
