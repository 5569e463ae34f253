"""Hold what a slot's meters are read from: its true powers, and the draws that make each run and instrument its own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.twin.flaws import PanelFlaws, draw_normal

if TYPE_CHECKING:
    from joulelab.core.spec import Stream
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.power_curves import Floats, Ints
    from joulelab.twin.timeline import Timeline
    from joulelab.twin.workload_progress import Ask

_GAINS = 1 << 41  # the stream of noise that instruments are drawn from


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold the readings of one stream: times before and after each (ns), one row of values per reading."""

    stream: Stream
    t0_ns: Ints
    t1_ns: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what one meter gave: rows by stream, and its events."""

    meter: str
    rows: list[Rows] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """Hold a slot's truth, what it asked for, and the seed of its draws; `period_s` is the study's own, if any.

    `study_seed` is that of all slots of a study: which instruments stand there is drawn by it.
    """

    timeline: Timeline
    ask: Ask
    seed: int
    period_s: float | None = None
    study_seed: int = 0

    def draw(self, *what: object) -> float:
        """Return a number from 0 to 1 that is the same for the same slot and things."""
        return draw(self.seed, *what)

    def times(self, period_s: float, first_s: float = 0.0) -> Ints:
        """Return the times (ns) at which something is read every so often while the run is recorded."""
        begin, period = self.timeline.begin_ns + round(first_s * NS), round(period_s * NS)
        return begin + period * np.arange((self.timeline.close_ns - begin) // period + 1, dtype=np.int64)

    def since(self, name: str, period_s: float) -> int:
        """Return the time (ns) from which an instrument updates: its updates have nothing to do with the run's."""
        return self.timeline.begin_ns - round(self.draw(name, "updates") * period_s * NS)

    def gain(self, name: str, mounted: MountedMeter, device: str) -> float:
        """Return by how much an instrument is wrong in every run: by its flaws, and by what such instruments vary.

        Each `device` that a meter reads (gpu:0, outlet:pdu.1, node.ac) is an instrument of its own.
        """
        if not mounted.gain_sd:
            return mounted.flaws.gain_error
        text = f"{self.timeline.node.seed}/{self.study_seed}/{name}/{device}"
        drawn = float(draw_normal(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]), _GAINS, 0)[0])
        return mounted.flaws.gain_error + mounted.gain_sd * drawn


def draw(seed: int, *what: object) -> float:
    """Return a number from 0 to 1 by a seed and some things; the same on every machine."""
    text = "/".join(map(str, (seed, *what))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / (1 << 48)


def number_of(name: str) -> int:
    """Return a small number for an instrument's name, for the noise of its own."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:2])


def own_steps(flaws: PanelFlaws, stream: Stream) -> PanelFlaws:
    """Return flaws with the steps that the instrument states where the twin's file says nothing of them."""
    usual = PanelFlaws()
    stated = {c.name: c.accuracy.quantum for c in stream.channels}
    changes: dict[str, Any] = {}
    for key, channel in (("quantum_w", "power_w"), ("quantum_j", "energy_j")):
        if getattr(flaws, key) == getattr(usual, key) and stated.get(channel):
            changes[key] = stated[channel]
    moduli = [c.modulus for c in stream.channels if c.kind == "counter" and c.modulus]
    if flaws.modulus_j is None and moduli:
        changes["modulus_j"] = moduli[0]
    return replace(flaws, **changes)
