"""The table of facts/accuracy.md 2.1, as Specs."""

from __future__ import annotations

import pytest
from tests.rows import every_row

from joulelab.instruments.nvml.generations import find_sensor, power_specs


@every_row(
    ("architecture", "capability", "name", "times", "plain_is_average"),
    [
        (4, (6, 0), "Tesla P100", (0.02, 0.01, 0.5), False),
        (5, (7, 0), "Tesla V100-SXM2-32GB", (0.02, 0.01, 0.5), False),
        (6, (7, 5), "NVIDIA GeForce RTX 2080 Ti", (0.1, 0.1, 1.0), False),
        (6, (7, 5), "Quadro RTX 8000", (0.1, 0.02, 0.2), False),
        (7, (8, 0), "NVIDIA A100-SXM4-80GB", (0.1, 0.025, 0.25), False),
        (7, None, "NVIDIA A100-SXM4-80GB", (0.1, 0.025, 0.25), False),
        (7, None, "NVIDIA A30", (0.1, 0.025, 0.25), False),
        (7, (8, 6), "NVIDIA A40", (0.1, 0.1, 1.0), True),
        (7, (8, 6), "NVIDIA RTX A5000", (0.1, 0.08, 0.8), True),
        (8, (8, 9), "NVIDIA GeForce RTX 4090", (0.1, 0.1, 1.0), True),
        (9, (9, 0), "NVIDIA H100 80GB HBM3", (0.1, 0.025, 0.25), True),
        (2, (3, 7), "Tesla K80", (0.1, 0.1, 1.0), False),
    ],
)
def test_each_generation_is_as_measured(architecture, capability, name, times, plain_is_average):
    found = find_sensor(architecture, capability, name, "565.57.01")
    assert (found.update_s, found.window_s, found.seen) == times
    assert found.plain_is_average is plain_is_average
    energy, instant, average = power_specs(found, name, (0.0, 400.0))
    assert (energy.update_s, energy.seen, energy.modulus, energy.limits) == (0.1, times[2], None, (0.0, 400.0))
    assert (instant.update_s, instant.window_s, instant.seen) == times
    assert (average.window_s, average.seen) == (1.0, times[2])
    for spec in (energy, instant, average):
        assert spec.accuracy.source == "assumed"
        assert spec.accuracy.gain >= 0.05
        assert spec.accuracy.shared == f"nvml:{name}"
        assert "2312.02741" in spec.accuracy.reference
    assert ("not published" in energy.accuracy.reference) is (times[2] < 1)


@pytest.mark.parametrize(("driver", "average"), [("525.60", True), ("530.30.02", False), ("535.54", True)])
def test_one_driver_gave_a_short_window_as_plain_power(driver, average):
    assert find_sensor(8, (8, 9), "NVIDIA L40", driver).plain_is_average is average
    assert find_sensor(9, (9, 0), "NVIDIA H100", driver).plain_is_average is True


@pytest.mark.parametrize("architecture", [10, 13, None])
def test_generations_that_nobody_measured_are_taken_at_their_worst(architecture):
    found = find_sensor(architecture, (10, 0), "NVIDIA B200")
    assert found.seen == 0.25
    assert found.gain == 0.11
    assert "not in" in found.why
