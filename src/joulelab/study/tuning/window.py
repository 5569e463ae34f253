"""Measure a window of a run that goes on, from one report of work to another: energy and time per work."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity, add_quantities
from joulelab.store.run_folder import read_meta
from joulelab.store.run_reader import Run
from joulelab.study.tuning.worklog import pause_ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.result import Result
    from joulelab.study.tuning.worklog import WorkLog

LEAST_READINGS = 3
INSIDE = ("gpu", "cpu", "dram")
# What is the same in all windows of one run, or cannot be in step with windows that begin at any time.
COMMON = ("gain", "offset", "unseen", "in-step")
# What a device draws or enforces above its cap where it does not keep to it; a difference that rounding explains.
ABOVE, ROUNDING, ROUNDING_W = 1.05, 0.02, 2.0


@dataclass(frozen=True, slots=True)
class Window:
    """Hold a window (monotonic ns) under one cap (W): work done, energy (J), relative uncertainty of its rate.

    `gpu_w` is the mean power of the capped GPUs, `unheld` says that one did not keep to its cap. `u_drift` is how
    unsure it is, relative, what the workload had changed by itself by then: of time and of energy.
    """

    cap: float
    from_ns: int
    to_ns: int
    work: float
    energy: Quantity
    u_rate: float
    paused: bool = False
    gpu_w: float | None = None
    unheld: str = ""
    u_drift: tuple[float, float] = (0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Return its length."""
        return (self.to_ns - self.from_ns) / NS

    @property
    def energy_per(self) -> Quantity:
        """Return joules per unit of work; what makes the rate vary makes the energy vary."""
        per = self.energy * (1 / self.work)
        return replace(per, terms={**per.terms, **self._own(per.value, self.u_drift[1])})

    @property
    def time_per(self) -> Quantity:
        """Return seconds per unit of work."""
        per = self.seconds / self.work
        return Quantity(per, self._own(per, self.u_drift[0]))

    def _own(self, per: float, drift: float) -> dict[str, float]:
        drifted = {f"drift:{self.cap:g}": per * drift} if drift else {}
        return {f"rate:{self.from_ns}": per * self.u_rate, **drifted}

    def to_json(self) -> dict[str, Any]:
        """Return plain data, as the run keeps it."""
        u = self.energy.without(*COMMON).u
        kept = {"cap": self.cap, "from": self.from_ns, "to": self.to_ns, "work": self.work, "paused": self.paused}
        per: dict[str, Any] = {"time_per_work": self.time_per.value, "u_rate": self.u_rate}
        per |= {"gpu_w": self.gpu_w, "unheld": self.unheld}
        return kept | {"energy": self.energy.value, "u": u} | per


class _Bare(Run):
    """Read a run without its marks: phases and steps are not needed here, and may be many."""

    def marks(self) -> list[dict[str, Any]]:
        """Return none."""
        return []


def find_scopes(run: Path, a_ns: int, b_ns: int) -> tuple[list[str], bool]:
    """Return the scopes whose energy windows tell, and whether that is everything measured. Raises StoreError.

    What is read too seldom for [a, b] cannot be compared.
    """
    from joulelab.analysis.analyse import analyse_phase

    with _Bare(run, read_meta(run)) as opened:
        result = analyse_phase(opened, a_ns, b_ns)
    return _whole(result, {s.scope for s in result.scopes if s.reading.readings >= LEAST_READINGS})


def read_scopes(run: Path, a_ns: int, b_ns: int) -> list[ScopeChannels]:
    """Return what was measured of a run, joined as for [a, b]. Raises StoreError."""
    from joulelab.analysis.channels import load_channels
    from joulelab.analysis.joining import join_meters

    with _Bare(run, read_meta(run)) as opened:
        return join_meters(load_channels(opened), a_ns, b_ns).scopes


def energy_of(
    found: Sequence[ScopeChannels], stretches: Sequence[tuple[int, int]], scopes: Sequence[str], least: int = 0
) -> Quantity | None:
    """Return the energy (J) of some scopes in all stretches; None where one was not read so often in each of them."""
    read = {s.scope: s.best for s in found}
    if not scopes or not set(scopes) <= set(read):
        return None
    inside = [read[scope].readings.between(a, b) for scope in scopes for a, b in stretches] if least else []
    if any(part.stop - part.start < least for part in inside):
        return None
    return add_quantities(read[scope].energy(a, b) for scope in scopes for a, b in stretches)


def drawn(found: Sequence[ScopeChannels], a_ns: int, b_ns: int, asked: Mapping[str, float]) -> tuple[float | None, str]:
    """Return the mean power (W) of capped devices together, and what says that one does not keep to its cap (W)."""
    means, said = [], []
    for scope in (s for s in found if s.scope in asked and b_ns > a_ns):
        cap, power = asked[scope.scope], scope.best.energy(a_ns, b_ns) * (NS / (b_ns - a_ns))
        means.append(power.value)
        limits = scope.state.get("cap_enforced_w")
        enforced = [] if limits is None else [float(w) for w in limits.value[limits.between(a_ns, b_ns)]]
        far = [w for w in enforced if abs(w - cap) > max(ROUNDING_W, ROUNDING * cap)]
        if far:
            said.append(f"{scope.scope} enforced {far[-1]:.0f} W where {cap:.0f} W were asked for")
        elif power.value - COVERAGE_FACTOR * power.without(*COMMON).u > ABOVE * cap:
            said.append(f"{scope.scope} drew {power.value:.0f} W under a cap of {cap:.0f} W")
    return (sum(means) if means else None), "; ".join(said)


def _whole(result: Result, read: set[str]) -> tuple[list[str], bool]:
    """Return the scopes of everything measured, or of what is inside the node where the rest is read too seldom."""
    whole = result.group("measured")
    if whole is not None and set(whole.scopes) <= read:
        return list(whole.scopes), True
    inside = [g for g in result.groups if g.name in INSIDE and set(g.scopes) <= read]
    return [scope for group in inside for scope in group.scopes], False


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
