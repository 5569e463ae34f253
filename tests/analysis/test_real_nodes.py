"""Nodes of 8 H100 in training, logged every 2 s: thinned to what a PDU gives, the energy of the full log stays inside.

Power logs published with MLPerf Training v4.0 (Apache-2.0), kept outside of the project.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec

DATA = Path(__file__).parents[3] / "shared" / "data" / "h100-node-power"
needs_logs = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: real logs are not part of the project")
RUNS = (
    "1node_llama2_70b_lora_0",
    "1node_llama2_70b_lora_1",
    "1node_resnet_0",
    "1node_resnet_1",
    "1node_resnet_2",
    "8node_resnet_0",
)
BASE, UPDATE_S = 1_000.0, 2.0
SPEC = Spec(
    "power_w", "power", "W", "power", UPDATE_S, 0.0, limits=(0.0, 10_200.0), accuracy=Accuracy("assumed", shared="log")
)


def logs(run: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return seconds and watts of every node and side (AC, DC) of a run; near-duplicate stamps are dropped."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with (DATA / f"{run}.csv").open() as file:
        for row in csv.DictReader(file):
            for side in ("ac_w", "dc_w"):
                if row[side]:
                    found.setdefault((row["node"], side), []).append((float(row["t_s"]), float(row[side])))
    series = []
    for rows in found.values():
        t, watts = np.array(sorted(rows)).T
        keep = np.concatenate(([True], np.diff(t) > 0.5))
        if keep.sum() > 60:
            series.append((t[keep], watts[keep]))
    return series


def curve(t: np.ndarray, watts: np.ndarray, step_s: float) -> PowerCurve:
    t0 = np.rint((BASE + t) * 1e9).astype(np.int64)
    return PowerCurve(Readings.from_rows(t0, t0 + 1_000, watts), SPEC, name="node", step_s=step_s)


def thinned(t: np.ndarray, watts: np.ndarray, every_s: float, offset: float) -> PowerCurve:
    at = np.unique(np.searchsorted(t, np.arange(t[0] + offset, t[-1], every_s)))
    return curve(t[at], watts[at], every_s)


def stretches(t: np.ndarray, every_s: float) -> list[tuple[float, float]]:
    """Return the timed part, and stretches in it of ten readings and more, as phases would be."""
    first, last = max(0.0, float(t[0])), float(t[-1])
    ends = np.sort(np.random.default_rng(3).uniform(first, last, (20, 2)), axis=1)
    return [(first, last), *((a, b) for a, b in ends if b - a > 10 * every_s)]


def ns(second: float) -> int:
    return round((BASE + second) * 1e9)


@pytest.mark.system  # pure, and slow
@needs_logs
@pytest.mark.parametrize("every_s", [10.0, 30.0, 60.0])
def test_the_energy_of_the_full_log_stays_inside(every_s):
    """In 95 % of offsets."""
    inside, whole, parts = [], [], []
    for run in RUNS:
        for t, watts in logs(run):
            full = curve(t, watts, UPDATE_S)
            for offset in np.arange(0.0, every_s, max(2.0, every_s / 12)):
                thin = thinned(t, watts, every_s, offset)
                for k, (a, b) in enumerate(stretches(t, every_s)):
                    found = thin.energy(ns(a), ns(b))
                    true = full.energy(ns(a), ns(b)).value
                    inside.append(abs(found.value - true) <= 2 * found.u)
                    (parts if k else whole).append((inside[-1], 2 * found.u / true, abs(found.value / true - 1)))
    for name, rows in (("timed parts", whole), ("stretches", parts)):
        covered, width, off = np.array(rows, dtype=float).T
        print(
            f"every {every_s:.0f} s, {name}: {len(rows)} cases, {covered.mean():.1%} inside, "
            f"median U {np.median(width):.2%}, median error {np.median(off):.2%}, largest {off.max():.1%}"
        )
        assert covered.mean() >= 0.95
    assert np.mean(inside) >= 0.95


@needs_logs
def test_a_whole_run_at_full_rate_is_known_to_two_percent_gaps_and_all():
    for run in RUNS[:5]:
        for t, watts in logs(run):
            full = curve(t, watts, UPDATE_S).energy(ns(max(0.0, float(t[0]))), ns(float(t[-1])))
            assert 2 * full.u < 0.02 * full.value
