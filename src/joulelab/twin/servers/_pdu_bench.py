"""Read the cords of one node as a PDU does, and write the numbers into a tree of SNMP names."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.twin.readings import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.twin.servers.pdu import PduFlaws
    from joulelab.twin.truth import Truth

VOLTS = 230.0
POWER_FACTOR = 0.98
PHASES = (1, 2, 3)
BANKS = (1, 2)
SENTINEL = -1

Shown = tuple[str, int | str]
Tree = dict[tuple[int, ...], "Callable[[], Shown]"]


class Bench:
    """Read the cords of a node, and what they add up to, as one instrument with one set of flaws."""

    def __init__(self, truth: Truth, flaws: PduFlaws) -> None:
        self.truth, self.flaws = truth, flaws
        self.cords = len(truth.node.supply.cords)
        self._outlets = {n: Panel(truth, f"outlet:{n}", flaws, number=n) for n in range(1, self.cords + 1)}
        self._unit = Panel(truth, "node.ac", flaws, number=100)
        self.spare, self.unmetered = self.cords + 1, self.cords + 2

    @property
    def outlets(self) -> list[int]:
        """Return the outlets that are metered: those of the node, and one that feeds nothing."""
        return [*self._outlets, self.spare]

    def outlet_w(self, n: int) -> float:
        """Return the power of an outlet in W."""
        return self._outlets[n].power_w() if n in self._outlets else 0.0

    def outlet_j(self, n: int) -> float:
        """Return the energy counter of an outlet in J."""
        return self._outlets[n].energy_j() if n in self._outlets else 0.0

    def outlet_a(self, n: int) -> float:
        """Return the current of an outlet in A."""
        return amps(self.outlet_w(n))

    def outlet_va(self, n: int) -> float:
        """Return the apparent power of an outlet in VA."""
        return self.outlet_w(n) / POWER_FACTOR

    def unit_w(self) -> float:
        """Return the power of all in W."""
        return self._unit.power_w()

    def unit_j(self) -> float:
        """Return the energy counter of all in J."""
        return self._unit.energy_j()

    def group_w(self, number: int, groups: int) -> float:
        """Return the power in W of one of several phases or banks, over which the outlets are spread in turn."""
        return sum(self.outlet_w(n) for n in self._outlets if (n - 1) % groups == number - 1)

    def group_a(self, number: int, groups: int) -> float:
        """Return the current in A of one of several phases or banks."""
        return amps(self.group_w(number, groups))

    def group_j(self, number: int, groups: int) -> float:
        """Return the energy counter in J of one of several phases."""
        return sum(self.outlet_j(n) for n in self._outlets if (n - 1) % groups == number - 1)

    def read_utc_s(self) -> int:
        """Return when the values shown were taken, as a device with whole seconds of UTC says it."""
        _, at = self._unit.tick()
        return (read_utc_ns() - (monotonic_ns() - at)) // NS

    def has_sentinel(self) -> bool:
        """Return whether values are unknown to the device just now."""
        at_s = self.flaws.sentinel_at_s
        return at_s is not None and self.truth.seconds() >= at_s


def name(bench: Bench, n: int) -> str:
    """Return the name that the owner gave an outlet."""
    return f"node psu {n}" if n <= bench.cords else "spare"


def amps(watts: float) -> float:
    """Return the current of a load in A."""
    return watts / (VOLTS * POWER_FACTOR)


class Writer:
    """Fill a tree below one enterprise: columns with an index, numbers scaled to the device's own unit."""

    def __init__(self, bench: Bench, base: tuple[int, ...], *, kind: str = "integer", sentinel: bool = True) -> None:
        self.bench, self._base, self._kind = bench, base, kind
        self._sentinel = sentinel
        self.tree: Tree = {}

    def text(self, column: str, index: str, value: str) -> None:
        """Show a text."""
        self.tree[self._name(column, index)] = lambda: ("string", value)

    def fixed(self, column: str, index: str, value: int, kind: str = "") -> None:
        """Show a number that stays."""
        shown = (kind or self._kind, value)
        self.tree[self._name(column, index)] = lambda: shown

    def number(self, column: str, index: str, read: Callable[[], float], step: float, kind: str = "") -> None:
        """Show a reading in steps of the device's unit; a counter only when its step is full."""
        self.tree[self._name(column, index)] = partial(self._shown, read, step, kind or self._kind)

    def _shown(self, read: Callable[[], float], step: float, kind: str) -> Shown:
        if self._sentinel and self.bench.has_sentinel():
            return "integer", SENTINEL
        counts = read() / step
        return kind, math.floor(counts + 1e-9) if step >= 360 else round(counts)

    def _name(self, column: str, index: str) -> tuple[int, ...]:
        return (*self._base, *map(int, f"{column}.{index}".split(".")))
