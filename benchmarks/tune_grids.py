"""Read recorded sweeps of power caps, make dense grids from curves that are fitted to them, and draw pairs of knobs."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulelab.study.tuning.search import Setting
from joulelab.twin.model import A100, H100, RTX6000

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.twin.model import Gpu

Floats = npt.NDArray[np.float64]
FEWEST = 5  # caps, for a sweep to be of use
MADE_NOISE = 0.01, 0.005  # relative noise of time and power in grids that are made without data


GPUS = {"h100": H100, "a100": A100, "rtx6000": RTX6000}
PAIR_SHAPE = 9, 8  # caps and clocks of a pair grid
PAIR_NOISE = 0.005, 0.02  # relative noise of runs, drawn between these; that of power is 0.7 of it
LOWEST_CLOCK = 0.45  # of the highest


@dataclass(frozen=True)
class Grid:
    """Hold time (s) and mean power (W) against the setting, and the relative noise of a trial (0: it is replayed).

    Caps are in W, clocks in Hz (None: not locked). The last setting is the reference.
    """

    name: str
    caps: Floats
    time: Floats
    power: Floats
    noise_t: float = 0.0
    noise_p: float = 0.0
    clocks: Floats | None = None

    @property
    def energy(self) -> Floats:
        """Return J."""
        return self.time * self.power

    @property
    def settings(self) -> list[Setting]:
        """Return the settings, the reference last."""
        if self.clocks is None:
            return [Setting(float(cap)) for cap in self.caps]
        return [Setting(float(cap), float(clock)) for cap, clock in zip(self.caps, self.clocks, strict=True)]

    def trial(self, at: int, rng: np.random.Generator) -> tuple[float, float]:
        """Return energy and time of one trial."""
        t, p = rng.standard_normal(2)
        time = float(self.time[at]) * float(np.exp(self.noise_t * t))
        return time * float(self.power[at]) * float(np.exp(self.noise_p * p)), time


def recorded(path: Path) -> list[Grid]:
    """Return the workloads of a file, each with the caps it was measured at."""
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            name = " ".join(row[key] for key in ("dataset", "network", "batch_size", "optimizer"))
            rows[name].append(tuple(float(row[key]) for key in ("power_limit", "time_per_epoch", "average_power")))  # type: ignore[arg-type]
    return [Grid(name, *np.array(sorted(points)).T) for name, points in sorted(rows.items()) if len(points) >= FEWEST]


def physical(grid: Grid, caps: Floats) -> Grid:
    """Return the soft minimum of draw and cap, and 1 + a(((p - s)/(1 - s))^-k - 1), fitted by least squares of logs."""
    shape = (
        np.linspace(0.97, 1.4, 15),
        np.array([2, 3, 4, 6, 9, 14, 25.0]),
        np.array([0.86, 0.9, 0.94, 0.97, 1.0, 1.03]),
    )
    free, sharp, passes = (x.ravel()[:, None] for x in np.meshgrid(*shape, indexing="ij"))
    free = free * grid.power.max()

    def share(at: Floats) -> Floats:
        return np.asarray((1 + (free / (passes * at)) ** sharp) ** (-1 / sharp))

    rest = ((np.log(free * share(grid.caps)) - np.log(grid.power)) ** 2).sum(axis=1)
    best = int(rest.argmin())
    noise_p = float(np.sqrt(rest[best] / (len(grid.caps) - 3)))
    shape = np.concatenate([[0], np.geomspace(0.003, 0.5, 40)]), np.linspace(1, 8, 29), np.linspace(0, 0.35, 8)
    a, k, floor = (x.ravel()[:, None] for x in np.meshgrid(*shape, indexing="ij"))

    def log_time(at: Floats) -> Floats:
        moving = np.maximum((share(at)[best] - floor) / (1 - floor), 0.02)
        return np.asarray(np.log1p(a * (moving**-k - 1)))

    rest = np.log(grid.time) - log_time(grid.caps)
    level = rest.mean(axis=1, keepdims=True)
    squares = ((rest - level) ** 2).sum(axis=1)
    at = int(squares.argmin())
    time = np.exp(level[at] + log_time(caps)[at])
    noise_t = float(np.sqrt(squares[at] / (len(grid.caps) - 3)))
    return Grid(grid.name, caps, time, free[best] * share(caps)[best], noise_t, noise_p)


def smooth(grid: Grid, caps: Floats) -> Grid:
    """Return curves that know no physics: smooth in the logarithms, as smooth as leaving out single points advises."""
    time, noise_t = _smoothed(np.log(grid.caps), np.log(grid.time), np.log(caps))
    power, noise_p = _smoothed(np.log(grid.caps), np.log(grid.power), np.log(caps))
    return Grid(grid.name, caps, np.exp(time), np.exp(power), noise_t, noise_p)


def cliffs(count: int) -> list[Grid]:
    """Return curves with a cliff, which the search's family has not: time jumps below a share of the highest cap."""
    grids = []
    for top, steep in ((300.0, 1.5), (250.0, 3.0)):
        caps = np.linspace(top / 3, top, count)
        power = np.minimum(0.95 * top, caps)
        for at in (0.4, 0.45, 0.6):
            for high in (1.15, 1.3, 1.6, 2.2):
                time = 1 + 0.03 * ((power / power[-1]) ** -steep - 1)
                time = np.where(caps < at * top, high * time, time)
                grids.append(Grid(f"cliff x{high} at {at} of {top:g} W", caps, 10 * time, power, *MADE_NOISE))
    return grids


def textbook(count: int) -> list[Grid]:
    """Return static plus dynamic power, P = s + (1 - s) f^3, and a share of the time that goes with 1/f."""
    grids = []
    for top, draws in ((300.0, 0.8), (250.0, 0.95)):
        caps = np.linspace(0.4 * top, top, count)
        for static in (0.1, 0.2, 0.3):
            for bound in (0.2, 0.5, 0.8, 1.0):
                share = np.minimum(caps / (draws * top), 1.0)
                clock = np.cbrt((share - static) / (1 - static))
                time = 1 - bound + bound / clock
                name = f"static {static}, bound {bound}, {top:g} W"
                grids.append(Grid(name, caps, 10 * time, draws * top * share, *MADE_NOISE))
    return grids


def draw_pairs(model: str, count: int, seed: int = 0) -> list[Grid]:
    """Draw responses of a GPU of the twin to caps and locked clocks: the twin's own laws, with drawn workloads.

    A workload has one to three stages, each with an intensity (power), a memory-bound share (of its time, which caps
    and clocks do not prolong) and a slowdown law; half of them wait for the host for up to 20 % of the time, and in
    two of five the energy includes a host of 20 to 80 % of the default cap.
    """
    return [_draw_pair(GPUS[model], np.random.default_rng([seed, n, len(model)]), f"{model} {n}") for n in range(count)]


def _draw_pair(gpu: Gpu, rng: np.random.Generator, name: str) -> Grid:
    caps, clocks = _make_pairs(gpu.min_cap_w, gpu.default_cap_w, gpu.sm_max_mhz * 1e6)
    stages = []
    for share in rng.dirichlet(np.full(int(rng.integers(1, 4)), 2.0)):
        a, k = gpu.slowdown
        law = a * math.exp(0.5 * rng.standard_normal()), k * math.exp(0.2 * rng.standard_normal())
        stages.append((share, replace(gpu, slowdown=law), rng.uniform(0.35, 1.0), rng.uniform(0.0, 0.7)))
    waits = rng.uniform(0.0, 0.2) if rng.random() < 0.5 else 0.0
    host_w = rng.uniform(0.2, 0.8) * gpu.default_cap_w if rng.random() < 0.4 else 0.0
    noise = rng.uniform(*PAIR_NOISE)
    time, energy = np.full(len(caps), waits), np.full(len(caps), waits * gpu.idle_w)
    for n, (cap, clock) in enumerate(zip(caps, clocks / 1e6, strict=True)):
        mhz = None if clock >= gpu.sm_max_mhz else float(clock)
        for share, one, intensity, bound in stages:
            full_w = float(one.draws_w(1.0, intensity))
            took = share * (bound + (1 - bound) * one.slow_down(full_w, float(cap), mhz))
            time[n] += took
            energy[n] += took * min(float(cap), one.clocked_w(full_w, mhz))
    return Grid(name, caps, 100 * time, energy / time + host_w, noise, 0.7 * noise, clocks)


def draw_textbook_pairs(count: int, seed: int = 0) -> list[Grid]:
    """Draw responses that are not the twin's: P = s + (1 - s) f^3, time by 1/f, and a cap that chooses the clock."""
    grids = []
    for n in range(count):
        rng = np.random.default_rng([seed, n])
        top, static, bound = rng.choice([260.0, 400.0, 700.0]), rng.uniform(0.1, 0.4), rng.uniform(0.2, 1.0)
        caps, clocks = _make_pairs(0.35 * top, top, 2e9)
        draws = rng.uniform(0.7, 1.0) * top
        limited = np.cbrt(np.clip((caps / draws - static) / (1 - static), 0.02, 1.0))
        clock = np.minimum(clocks / 2e9, limited)
        power, noise = draws * (static + (1 - static) * clock**3), rng.uniform(*PAIR_NOISE)
        grids.append(Grid(f"textbook {n}", caps, 100 * (1 - bound + bound / clock), power, noise, 0.7 * noise, clocks))
    return grids


def _make_pairs(lowest_w: float, highest_w: float, highest_hz: float) -> tuple[Floats, Floats]:
    caps = np.linspace(lowest_w, highest_w, PAIR_SHAPE[0]).round()
    clocks = np.linspace(LOWEST_CLOCK, 1.0, PAIR_SHAPE[1]) * highest_hz
    return np.tile(caps, len(clocks)), np.repeat(clocks, len(caps))


def _smoothed(x: Floats, y: Floats, wanted: Floats, nodes: int = 33) -> tuple[Floats, float]:
    """Return a smooth curve and the noise around it; with few points the stiffest curve that leaves one free."""
    line = np.linspace(x[0], x[-1], nodes)

    def between(at: Floats) -> Floats:
        return np.array([np.interp(at, line, unit) for unit in np.eye(nodes)]).T

    here, rough = between(x), np.diff(np.eye(nodes), 3, axis=0)
    found = []
    for stiff in 10.0 ** np.arange(0, 7):
        solve = np.linalg.solve(here.T @ here + stiff * rough.T @ rough + 1e-9 * np.eye(nodes), here.T)
        hat = here @ solve
        rest, free = y - hat @ y, len(x) - float(np.trace(hat))
        score = float(((rest / (1 - np.diag(hat))) ** 2).mean())
        found.append(
            (free < 2, score if free >= 2 else -stiff, solve @ y, float(np.sqrt((rest**2).sum() / max(free, 0.5))))
        )
    # A curve of third differences follows three points freely: of five, at most two are left to tell the noise.
    *_, curve, noise = min(found, key=lambda one: one[:2])
    return between(wanted) @ curve, noise
