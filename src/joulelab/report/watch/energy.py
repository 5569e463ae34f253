"""Work out the energy of a run that goes on, and of its phases, as often as a small share of one core allows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from joulelab.core.clock import NS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.analysis.live_energy import EnergyTail, LiveFigures
    from joulelab.analysis.marked_phases import MarkedPhase
    from joulelab.analysis.readings import Ints
    from joulelab.core.quantity import Quantity

SHARE = 0.01  # of one core
CREDIT_S = 40.0  # it may be ahead by what it earns in so many seconds, so that the first figures come soon
OLD_S = 600.0  # phases that ended so long ago when they are first seen are not worked out
MOST_KEPT = 64
TRIES = 3  # files that are just being begun cannot be read once or twice


class Energies:
    """Tell the energy of the hosts of a run since its start, and of phases: the same figures as `joulelab show` has."""

    def __init__(self, *, share: float = SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        """Take which share of one core may be spent, and a clock (s)."""
        self.whole: dict[str, LiveFigures] = {}
        self.phases: dict[tuple[str, int], Quantity] = {}
        self.spent_s = 0.0
        self._share, self._clock = share, clock
        self._begun = clock()
        self._cost_s = 0.0
        self._tails: dict[str, EnergyTail] = {}
        self._open: dict[tuple[str, int], EnergyTail] = {}
        self._asked: dict[str | tuple[str, int], float] = {}
        self._turn = False
        self._failed, self.problem = 0, ""

    def look(self, hosts: Sequence[tuple[Path, int, Callable[[], Ints | None]]], phases: Sequence[MarkedPhase]) -> None:
        """Read what is due, if that is affordable: of a host (folder, start, steps), or of a phase that is shown."""
        earned = self._share * (self._clock() - self._begun + CREDIT_S)
        if not hosts or self.spent_s + self._cost_s > earned:
            return
        began, first = time.thread_time(), not self.whole
        wanted = self._wanted(phases, hosts[0][0].name) if len(hosts) == 1 and self.whole else []
        self._turn = not self._turn
        try:
            if wanted and self._turn:
                self._read_phase(hosts[0], wanted[0])
            else:
                self._read_host(min(hosts, key=lambda host: self._asked.get(host[0].name, 0.0)))
            self._failed, self.problem = 0, ""
        except Exception as error:  # noqa: BLE001 - power is shown in any case; files are being begun, or are gone
            self._failed += 1
            if self._failed >= TRIES:
                self.problem = f"energy is missing: {type(error).__name__}: {error}"
        self._cost_s = time.thread_time() - began
        # The first one reads everything from the start; those that follow need not wait for that.
        self.spent_s += min(self._cost_s, self._share * CREDIT_S / 2) if first else self._cost_s

    def close(self) -> None:
        """Let go of the run."""
        for tail in (*self._tails.values(), *self._open.values()):
            tail.close()

    def _wanted(self, phases: Sequence[MarkedPhase], host: str) -> list[MarkedPhase]:
        """Return the phases that can be worked out now, the one that was read least recently first."""
        reached = self.whole[host].at_ns
        found = []
        for phase in phases:
            key = phase.id, phase.start_ns
            done = not phase.open_end and key in self.phases and key not in self._open
            if done or phase.host != host or phase.start_ns >= reached:
                continue
            if phase.open_end or reached - OLD_S * NS < phase.end_ns:
                found.append(phase)
        return sorted(found, key=lambda phase: self._asked.get((phase.id, phase.start_ns), 0.0))

    def _read_host(self, host: tuple[Path, int, Callable[[], Ints | None]]) -> None:
        folder, start_ns, steps = host
        self._asked[folder.name] = self._clock()
        if folder.name not in self._tails:
            from joulelab.analysis.live_energy import EnergyTail

            self._tails[folder.name] = EnergyTail(folder, start_ns, steps)
        if (now := self._tails[folder.name].read()) is not None:
            self.whole[folder.name] = now

    def _read_phase(self, host: tuple[Path, int, Callable[[], Ints | None]], phase: MarkedPhase) -> None:
        key, (folder, start_ns, steps) = (phase.id, phase.start_ns), host
        self._asked[key] = self._clock()
        from joulelab.analysis.live_energy import EnergyTail

        tail = self._open.get(key) or EnergyTail(folder, max(phase.start_ns, start_ns), steps)
        self._open[key] = tail
        now = tail.read(None if phase.open_end else phase.end_ns)
        if now is not None and "measured" in now.energy:
            self.phases[key] = now.energy["measured"]
        if not phase.open_end:
            self._open.pop(key).close()
            for old in list(self.phases)[:-MOST_KEPT]:
                self.phases.pop(old)
