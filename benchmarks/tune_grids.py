"""Read recorded sweeps of power caps, and make dense grids of caps from curves that are fitted to them."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pathlib import Path

Floats = npt.NDArray[np.float64]
FEWEST = 5  # caps, for a sweep to be of use
MADE_NOISE = 0.01, 0.005  # relative noise of time and power in grids that are made without data


@dataclass(frozen=True)
class Grid:
    """Hold time (s) and mean power (W) against the cap (W), and the relative noise of a trial (0: it is replayed)."""

    name: str
    caps: Floats
    time: Floats
    power: Floats
    noise_t: float = 0.0
    noise_p: float = 0.0

    @property
    def energy(self) -> Floats:
        """Return J."""
        return self.time * self.power

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


def _smoothed(x: Floats, y: Floats, wanted: Floats, nodes: int = 33) -> tuple[Floats, float]:
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
        if free >= 2:
            found.append((score, stiff, solve @ y, float(np.sqrt((rest**2).sum() / free))))
    _, _, curve, noise = min(found, key=lambda one: one[:2])
    return between(wanted) @ curve, noise
