"""Measure a window of a run that goes on, from one report of work to another: energy and time per work."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.terms import Quantity, total
from joulelab.core.clock import NS
from joulelab.store.folder import read_meta
from joulelab.store.run import Run
from joulelab.study.tuning.worklog import pause_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.study.tuning.worklog import WorkLog

LEAST_READINGS = 3
INSIDE = ("gpu", "cpu", "dram")
# What is the same in all windows of one run, or cannot be in step with windows that begin at any time.
COMMON = ("gain", "offset", "unseen")


@dataclass(frozen=True, slots=True)
class Window:
    """Hold a window (monotonic ns) under one cap (W): work done, energy (J), relative uncertainty of its rate."""

    cap: float
    from_ns: int
    to_ns: int
    work: float
    energy: Quantity
    u_rate: float
    paused: bool = False

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.to_ns - self.from_ns) / NS

    @property
    def energy_per(self) -> Quantity:
        """Return joules per unit of work; what makes the rate vary makes the energy vary."""
        per = self.energy.scaled(1 / self.work)
        return Quantity(per.value, {**per.terms, f"rate:{self.from_ns}": per.value * self.u_rate}, per.known)

    @property
    def time_per(self) -> Quantity:
        """Return seconds per unit of work."""
        per = self.seconds / self.work
        return Quantity(per, {f"rate:{self.from_ns}": per * self.u_rate})

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the run keeps it."""
        u = self.energy.without(*COMMON).u
        kept = {"cap": self.cap, "from": self.from_ns, "to": self.to_ns, "work": self.work, "paused": self.paused}
        per = {"time_per_work": self.time_per.value, "u_rate": self.u_rate}
        return kept | {"energy": self.energy.value, "u": u} | per


class _Bare(Run):
    """Read a run without its marks: phases and steps are not needed here, and may be many."""

    def marks(self) -> list[dict[str, Any]]:
        """Return none."""
        return []


def energy_between(
    run: Path, a_ns: int, b_ns: int, scopes: Sequence[str] | None = None
) -> tuple[Quantity, list[str]] | None:
    """Return the energy of [a, b] (J) and the scopes it is of; None where there is too little to tell.

    Those `scopes` if they are given, else everything measured that was read often enough. Raises StoreError.
    """
    from joulelab.analysis.analyse import analyse_phase

    if scopes is None:
        with _Bare(run, read_meta(run)) as opened:
            result = analyse_phase(opened, a_ns, b_ns)
        scopes = _whole(result, {s.scope for s in result.scopes if s.reading.readings >= LEAST_READINGS})
    energy = energy_of(run, [(a_ns, b_ns)], scopes, least=LEAST_READINGS) if scopes else None
    return None if energy is None else (energy, list(scopes))


def energy_of(
    run: Path, stretches: Sequence[tuple[int, int]], scopes: Sequence[str], least: int = 0
) -> Quantity | None:
    """Return the energy (J) of some scopes in all stretches; None where one was not read so often in each of them.

    Raises StoreError.
    """
    from joulelab.analysis.channels import load_channels
    from joulelab.analysis.joining import join

    with _Bare(run, read_meta(run)) as opened:
        found = join(load_channels(opened), stretches[0][0], stretches[-1][1]).scopes
    read = {s.scope: s.best for s in found}
    if not set(scopes) <= set(read):
        return None
    inside = [read[scope].readings.between(a, b) for scope in scopes for a, b in stretches] if least else []
    if any(part.stop - part.start < least for part in inside):
        return None
    return total(read[scope].energy(a, b) for scope in scopes for a, b in stretches)


def _whole(result: Result, read: set[str]) -> list[str]:
    """Return the scopes of everything measured, or of what is inside the node where the rest is read too seldom."""
    whole = result.group("measured")
    if whole is not None and set(whole.scopes) <= read:
        return list(whole.scopes)
    inside = [g for g in result.groups if g.name in INSIDE and set(g.scopes) <= read]
    return [scope for group in inside for scope in group.scopes]


def u_rate(log: WorkLog, a_ns: int, b_ns: int) -> float:
    """Return how sure the rate in [a, b] is, relative: by how far reports are from coming evenly.

    Steps that vary independently leave an even pace by a sixth of the variance that they give the whole; reports that
    are only late now and then leave it by half of it: then this is too much rather than too little.
    """
    stamps, span = log.stamps(a_ns, b_ns), b_ns - a_ns
    whole = log.done(a_ns, b_ns)
    if len(stamps) < 3 or whole <= 0:
        return 1.0
    late = [(t - a_ns) / span - log.done(a_ns, t) / whole for t in stamps[1:-1]]
    return math.sqrt(6 * sum(x * x for x in late) / len(late))


def has_pause(log: WorkLog, a_ns: int, b_ns: int) -> bool:
    """Return whether work stood still in [a, b]: an evaluation, a checkpoint, another phase."""
    stamps = log.stamps(a_ns, b_ns)
    return max(b - a for a, b in itertools.pairwise(stamps)) > pause_ns(stamps)
