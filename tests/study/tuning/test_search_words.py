"""What the search says of its choice."""

from __future__ import annotations

import numpy as np
import pytest

from joulelab.analysis.goals import Goal
from joulelab.study.tuning.search import Search


@pytest.mark.system  # pure, and slow
def test_it_says_when_the_curve_decides_among_caps_that_cannot_be_told_apart():
    caps, decided = np.arange(100.0, 261.0, 20.0), 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        search = Search(caps, Goal.parse("energy"), budget=7)
        while (setting := search.next()) is not None:
            cap = setting.cap_w or 0.0
            power = min(230.0, cap)
            time = 1 + 0.035 * ((power / 230.0) ** -4 - 1)
            energy, took = power * time * rng.normal(1, 0.03), time * rng.normal(1, 0.03)
            search.add_trial(setting, energy, took, u_energy=0.03 * energy, u_time=0.03 * took)
        choice = search.choose()
        means = {c: np.mean([t.energy_j for t in search._data if t.setting == c]) for c in search.tried}
        lowest = choice.setting == min(means, key=means.__getitem__)
        assert ("the curve through all trials decides" in choice.why) == (not lowest and not choice.flat)
        decided += not lowest
    assert decided, "noise makes them differ now and then"
