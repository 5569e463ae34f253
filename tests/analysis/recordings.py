"""Read recordings of GPUs: nvidia-smi beside a meter of 4.9 kHz, on the clock of the meter.

Data of JimZeyuYang/GPU_Power_Benchmark (MIT), kept outside of the project.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.instruments.nvml.generations import find_sensor, power_specs

DATA = Path(__file__).parents[3] / "shared" / "data" / "nvidia-smi-vs-meter"
needs_recordings = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: recordings are not part of the project")
# Files, compute capability, model, power limit (W), and the window of its sensor (s).
RECORDED = {
    "3090 square": ("5050_3090", (8, 6), "NVIDIA GeForce RTX 3090", 350.0, 0.1),
    "3090 step": ("Transient_Response_3090_TR", (8, 6), "NVIDIA GeForce RTX 3090", 350.0, 0.1),
    "A100 square": ("5050_A100", (8, 0), "NVIDIA A100-PCIE-40GB", 250.0, 0.025),
    "A5000 step": ("Transient_Response_A5000", (8, 6), "NVIDIA RTX A5000", 230.0, 0.1),
}
CHANNELS = tuple(
    (name, kind) for name in RECORDED for kind in ("instant", "average") if (name, kind) != ("A100 square", "average")
)
AHEAD_S = 3600.0  # local time of the stamps of nvidia-smi, in raw files
BASE_S = 1_000.0  # second 0 of a recording, in monotonic time


class Meter:
    """Hold the external meter: energy (J) up to any second."""

    def __init__(self, t: np.ndarray, watts: np.ndarray) -> None:
        self.t = t
        self.joules = np.concatenate(([0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * np.diff(t))))

    def energy(self, a: float, b: float) -> float:
        return float(np.diff(np.interp([a, b], self.t, self.joules))[0])

    def mean(self, t: np.ndarray, window: float) -> np.ndarray:
        return (np.interp(t, self.t, self.joules) - np.interp(t - window, self.t, self.joules)) / window


@dataclass(frozen=True)
class Recording:
    """Hold the meter, first and last event of kernels (s), and time (s) and powers (W) that nvidia-smi showed."""

    name: str
    meter: Meter
    kernels: tuple[float, float]
    t: np.ndarray
    watts: dict[str, np.ndarray]

    def list_updates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return times (s) and values (W) at which nvidia-smi showed a new value."""
        new = np.flatnonzero(np.diff(self.watts["instant"])) + 1
        return self.t[new], self.watts["instant"][new]

    def find_lag(self) -> float:
        """Return how far (s) nvidia-smi's clock is behind the meter's: its updates fit the meter's means best there."""
        t, watts = self.list_updates()
        inside = (t > self.meter.t[0] + 0.5) & (t < self.meter.t[-1] - 0.5)
        t, watts = t[inside], watts[inside] - watts[inside].mean()

        def correlate(lag: float) -> float:
            mean = self.meter.mean(t - lag, RECORDED[self.name][4])
            return float(np.dot(mean - mean.mean(), watts) / mean.std())

        return float(max(np.arange(-0.6, 0.6, 0.002), key=correlate))

    def make_curve(self, kind: str, lag: float, scale: float = 1.0, gain: float | None = None) -> PowerCurve:
        """Return a channel as the meter family describes it; `gain` replaces its accuracy after a calibration."""
        _, compute, model, limit_w, _ = RECORDED[self.name]
        specs = power_specs(find_sensor(7, compute, model, "535.54"), model, (0.0, limit_w * 1.05))
        spec = next(s for s in specs if s.name == f"power_{kind}_w")
        if gain is not None:
            spec = replace(spec, accuracy=replace(spec.accuracy, source="calibrated", gain=gain))
        t0 = np.rint((BASE_S + self.t - lag) * 1e9).astype(np.int64)
        return PowerCurve(Readings.from_rows(t0, t0 + 100_000, self.watts[kind] * scale), spec, name=kind)


@cache
def read_recording(name: str) -> Recording:
    """Read one recording; raw files have stamps of local time, and events in microseconds since 1970."""
    files = RECORDED[name][0]
    meter = np.loadtxt(DATA / f"{files}_meter.csv", delimiter=",", skiprows=1, usecols=(0, 1))
    events = np.loadtxt(DATA / f"{files}_kernel_events.csv", skiprows=1)
    with (DATA / f"{files}_nvsmi.csv").open() as file:
        head, *rows = ([cell.strip() for cell in row] for row in csv.reader(file))
    if head[0] == "timestamp":
        stamps = (datetime.strptime(row[0], "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=UTC) for row in rows)
        t, events = np.array([stamp.timestamp() - AHEAD_S for stamp in stamps]), events / 1e6
    else:
        t, events = np.array([float(row[0]) for row in rows]) / 1000, events / 1000
    names = {"instant": ("power.draw.instant [W]", "power_instant_w")}
    names["average"] = ("power.draw.average [W]", "power_draw_w")
    columns = {kind: [head.index(column) for column in given if column in head] for kind, given in names.items()}
    watts = {kind: np.array([float(row[found[0]]) for row in rows]) for kind, found in columns.items() if found}
    base = meter[0, 0] / 1000
    seconds = meter[:, 0] / 1000 - base
    return Recording(name, Meter(seconds, meter[:, 1]), (events.min() - base, events.max() - base), t - base, watts)
