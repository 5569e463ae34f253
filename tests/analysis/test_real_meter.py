"""An RTX 3090 beside a 4.9 kHz meter: what nvidia-smi said, integrated by us, against what was drawn.

Data of JimZeyuYang/GPU_Power_Benchmark (MIT), kept outside of the project.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.instruments.nvml.generations import power_specs, sensor

DATA = Path(__file__).parents[3] / "shared" / "data" / "nvidia-smi-vs-meter"
needs_logs = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: real logs are not part of the project")
LOGS = {"square wave": "5050_3090", "step": "Transient_Response_3090_TR"}
COLUMNS = {"power_average_w": 1, "power_instant_w": 2}
BASE = 1_000.0


def table(log: str, kind: str) -> np.ndarray:
    return np.genfromtxt(DATA / f"{LOGS[log]}_{kind}.csv", delimiter=",", skip_header=1)


class Meter:
    """Hold what was drawn: energy (J) up to any second."""

    def __init__(self, log: str) -> None:
        t, watts = table(log, "meter")[:, :2].T
        self.t = t / 1000
        self.joules = np.concatenate(([0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(self.t))))

    def energy(self, a: float, b: float) -> float:
        return float(np.diff(np.interp([a, b], self.t, self.joules))[0])

    def mean(self, t: np.ndarray, window: float) -> np.ndarray:
        return (np.interp(t, self.t, self.joules) - np.interp(t - window, self.t, self.joules)) / window


def lag_s(log: str, meter: Meter) -> float:
    """Return by how much nvidia-smi's clock is behind the meter's: where its updates fit the meter's means best."""
    t, watts = table(log, "nvsmi")[:, [0, 2]].T
    new = np.flatnonzero(np.diff(watts)) + 1
    t, watts = t[new] / 1000, watts[new]
    inside = (t > meter.t[0] + 0.5) & (t < meter.t[-1] - 0.5)

    def misfit(lag: float) -> float:
        x = meter.mean(t[inside] - lag, 0.1)
        return float(np.polyfit(x, watts[inside], 1, full=True)[1][0])

    return min(np.arange(-0.2, 0.2, 0.002), key=misfit)


def curve(log: str, channel: str, lag: float, scale: float = 1.0, gain: float | None = None) -> PowerCurve:
    """Return nvidia-smi's readings as the meter family describes them, on the meter's clock."""
    found = sensor(7, (8, 6), "NVIDIA GeForce RTX 3090", "535.54")
    spec = next(s for s in power_specs(found, "RTX 3090", (0.0, 450.0)) if s.name == channel)
    if gain is not None:
        spec = replace(spec, accuracy=replace(spec.accuracy, source="calibrated", gain=gain))
    rows = table(log, "nvsmi")
    t0 = np.rint((BASE + rows[:, 0] / 1000 - lag) * 1e9).astype(np.int64)
    return PowerCurve(Readings.from_rows(t0, t0 + 100_000, rows[:, COLUMNS[channel]] * scale), spec, name=channel)


def energy(c: PowerCurve, a: float, b: float):
    # A load in step with the sensor is not what these logs hold; its wide bound would hide everything else.
    return c.energy(round((BASE + a) * 1e9), round((BASE + b) * 1e9)).without("unseen")


def stretches(meter: Meter, count: int = 200) -> list[tuple[float, float]]:
    """Return stretches of 2 s and more, of which nvidia-smi's readings lie on both sides."""
    rng = np.random.default_rng(11)
    ends = np.sort(rng.uniform(meter.t[0] + 0.1, meter.t[-1] - 0.1, (count * 3, 2)), axis=1)
    return [(float(a), float(b)) for a, b in ends if b - a > 2][:count]


@needs_logs
@pytest.mark.parametrize("log", LOGS)
def test_the_clocks_are_joined(log):
    assert abs(lag_s(log, Meter(log))) < 0.05


@needs_logs
@pytest.mark.parametrize("log", LOGS)
def test_the_sensor_keeps_its_period(log):
    """What the exclusion of loads in step rests on: 100 ms within half a percent."""
    t, watts = table(log, "nvsmi")[:, [0, 2]].T
    new = t[np.flatnonzero(np.diff(watts)) + 1]
    number = np.cumsum(np.concatenate(([0], np.rint(np.diff(new) / 100))))
    period = np.polyfit(number, new, 1)[0]
    assert period == pytest.approx(100.0, rel=0.005)


@pytest.mark.system  # pure, and slow
@needs_logs
@pytest.mark.parametrize("channel", COLUMNS)
@pytest.mark.parametrize("log", LOGS)
def test_the_truth_lies_in_the_interval(log, channel):
    """The gain that is assumed for Ampere covers this board; the rest of the interval covers the rest."""
    meter = Meter(log)
    c = curve(log, channel, lag_s(log, meter))
    off, inside = [], []
    for a, b in stretches(meter):
        found, true = energy(c, a, b), meter.energy(a, b)
        off.append(found.value / true - 1)
        inside.append(abs(found.value - true) <= 2 * found.u)
    print(f"3090, {log}, {channel}: {np.mean(off):+.2%} ± {np.std(off):.2%}, {np.mean(inside):.1%} inside")
    assert -0.07 < np.mean(off) < -0.04, "the study found -4.7 % on this board"
    assert np.mean(inside) >= 0.95


@pytest.mark.system  # pure, and slow
@needs_logs
@pytest.mark.parametrize("channel", COLUMNS)
def test_a_board_that_was_calibrated_on_one_load_measures_another(channel):
    """Without the gain nothing but edges and sampling is left to explain what differs."""
    step, wave = Meter("step"), Meter("square wave")
    c = curve("step", channel, lag_s("step", step))
    a, b = step.t[0] + 0.1, step.t[-1] - 0.1
    scale = step.energy(a, b) / energy(c, a, b).value
    c = curve("square wave", channel, lag_s("square wave", wave), scale, gain=0.01)
    off, inside, width = [], [], []
    for a, b in stretches(wave):
        found, true = energy(c, a, b), wave.energy(a, b)
        off.append(found.value / true - 1)
        width.append(2 * found.u / true)
        inside.append(abs(found.value - true) <= 2 * found.u)
    print(
        f"3090 calibrated by {scale:.4f}, {channel}: {np.mean(off):+.2%} ± {np.std(off):.2%}, "
        f"median U {np.median(width):.2%}, {np.mean(inside):.1%} inside"
    )
    assert abs(np.mean(off)) < 0.015
    assert np.mean(inside) >= 0.95
