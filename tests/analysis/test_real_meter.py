"""GPUs beside a 4.9 kHz meter: energy from nvidia-smi's readings, against the energy that was drawn."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.analysis.recordings import BASE_S, CHANNELS, RECORDED, needs_recordings, read_recording
from tests.rows import every_row

WINDOW_S, EVERY_S = 1.0, 0.05
SETTLED_S = 0.35  # after the last kernel, power falls for a while

pytestmark = needs_recordings


@cache
def find_lag(name: str) -> float:
    return read_recording(name).find_lag()


def compare(name: str, kind: str, stretches, scale: float = 1.0, gain: float | None = None) -> np.ndarray:
    """Return relative error and half-width (k = 2) of each stretch (s)."""
    meter, curve = read_recording(name).meter, read_recording(name).make_curve(kind, find_lag(name), scale, gain)
    rows = []
    for a, b in stretches:
        found, true = curve.energy(*(round((BASE_S + x) * 1e9) for x in (a, b))), meter.energy(a, b)
        rows.append((found.value / true - 1, found.expanded / true))
    return np.array(rows)


def list_windows(name: str) -> list[tuple[float, float]]:
    t = read_recording(name).meter.t
    return [(a, a + WINDOW_S) for a in np.arange(t[0] + 0.1, t[-1] - WINDOW_S - 0.1, EVERY_S)]


def find_whole(name: str) -> tuple[float, float]:
    t = read_recording(name).meter.t
    return t[0] + 0.1, t[-1] - 0.1


@pytest.mark.parametrize("name", RECORDED)
def test_the_clocks_are_joined(name):
    """Stamps of raw files are local times to a few milliseconds; nvidia-smi took up to half a second to answer."""
    assert abs(find_lag(name)) < (0.05 if "3090" in name else 0.5)


@pytest.mark.parametrize("name", RECORDED)
def test_the_sensor_keeps_its_period(name):
    """What the exclusion of loads in step rests on: 100 ms within half a per cent; this A100 takes 101.2 ms."""
    t, _ = read_recording(name).list_updates()
    number = np.cumsum(np.concatenate(([0], np.rint(np.diff(t) / 0.1))))
    assert np.polyfit(number, t, 1)[0] == pytest.approx(0.1012 if "A100" in name else 0.1, rel=0.005)


@every_row(("name", "kind"), CHANNELS)
def test_the_truth_lies_in_the_interval_of_runs_idle_stretches_and_windows(name, kind):
    """Gain and offset that are assumed for Ampere cover these boards; the other terms cover the rest."""
    recording = read_recording(name)
    first, last = recording.kernels
    idle = [(recording.meter.t[0] + 0.02, first - 0.02), (last + SETTLED_S, recording.meter.t[-1] - 0.02)]
    whole, windows = [find_whole(name)], list_windows(name)
    idle = [(a, b) for a, b in idle if b - a > 0.2]
    assert idle
    assert len(windows) > 50
    assert compare(name, kind, whole)[0, 1] < (0.2 if "A100" in name else 0.09)
    for stretches in (whole, idle, windows):
        error, width = compare(name, kind, stretches).T
        print(f"{name} {kind}: {len(error)}, {np.mean(np.abs(error) <= width):.1%} inside, U {np.median(width):.1%}")
        assert np.mean(np.abs(error) <= width) >= (0.95 if stretches is windows else 1.0)


@pytest.mark.parametrize("kind", ["instant", "average"])
def test_a_board_that_was_calibrated_on_one_load_measures_another(kind):
    """Without the gain nothing but offset, edges and sampling is left to explain the differences."""
    ((error, _),) = compare("3090 step", kind, [find_whole("3090 step")])
    assert -0.07 < error < -0.04, "the study found -4.7 % on this board"
    found = compare("3090 square", kind, list_windows("3090 square"), 1 / (1 + error), gain=0.01)
    assert abs(np.mean(found[:, 0])) < 0.015
    assert np.mean(np.abs(found[:, 0]) <= found[:, 1]) >= 0.95
