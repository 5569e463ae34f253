"""Shape the SNMP trees of rack PDUs as eleven makers do, from the readings of a node's outlets."""

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


class PduBench:
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
        return get_amperes(self.outlet_w(n))

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
        return get_amperes(self.group_w(number, groups))

    def group_j(self, number: int, groups: int) -> float:
        """Return the energy counter in J of one of several phases."""
        return sum(self.outlet_j(n) for n in self._outlets if (n - 1) % groups == number - 1)

    def read_utc_s(self) -> int:
        """Return when the values shown were taken, as a device with whole seconds of UTC says it."""
        _, at = self._unit.find_update()
        return (read_utc_ns() - (monotonic_ns() - at)) // NS

    def has_sentinel(self) -> bool:
        """Return whether values are unknown to the device just now."""
        at_s = self.flaws.sentinel_at_s
        return at_s is not None and self.truth.count_seconds() >= at_s


def name_outlet(bench: PduBench, n: int) -> str:
    """Return the name that the owner gave an outlet."""
    return f"node psu {n}" if n <= bench.cords else "spare"


def get_amperes(watts: float) -> float:
    """Return the current of a load in A."""
    return watts / (VOLTS * POWER_FACTOR)


class TreeWriter:
    """Fill a tree below one enterprise: columns with an index, numbers scaled to the device's own unit."""

    def __init__(self, bench: PduBench, base: tuple[int, ...], *, kind: str = "integer", sentinel: bool = True) -> None:
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


ENTERPRISE = (1, 3, 6, 1, 4, 1)


def _apc_rpdu2(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 318, 1, 1, 26))
    w.text("2.1.8", "1", "AP8959EU3")
    w.text("2.1.9", "1", "ZA0000000001")
    w.number("4.3.1.5", "1", bench.unit_w, 10)
    w.number("4.3.1.9", "1", bench.unit_j, 360e3)
    w.number("4.3.1.16", "1", lambda: bench.unit_w() / POWER_FACTOR, 10)
    w.fixed("4.3.1.17", "1", 98)
    for p in PHASES:
        w.number("6.3.1.5", f"{p}", partial(bench.group_a, p, 3), 0.1)
        w.fixed("6.3.1.6", f"{p}", round(VOLTS))
        w.number("6.3.1.7", f"{p}", partial(bench.group_w, p, 3), 10)
    for b in BANKS:
        w.number("8.3.1.5", f"{b}", partial(bench.group_a, b, 2), 0.1)
    for n in bench.outlets:
        w.text("9.4.3.1.3", f"{n}", name_outlet(bench, n))
        w.number("9.4.3.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("9.4.3.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("9.4.3.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _apc_rpdu(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 318, 1, 1, 12))
    w.text("1.5", "0", "AP7820")
    w.text("1.6", "0", "ZA0000000002")
    w.number("1.16", "0", bench.unit_w, 1)
    for p in PHASES:
        w.number("2.3.1.1.2", f"{p}", partial(bench.group_a, p, 3), 0.1, "gauge")
    return w.tree


# Sensor types of PDU2-MIB with units (enum), digits and accuracy (hundredths of a percent).
_SENSORS = {1: (2, 3, 100), 4: (1, 0, 100), 5: (3, 0, 100), 6: (4, 0, 100), 7: (-1, 2, 100), 8: (5, 0, 100)}


def _raritan(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 13742, 6), kind="gauge", sentinel=False)
    w.text("3.2.1.1.3", "1", "PX3-5190R")
    w.text("3.2.1.1.4", "1", "QFC0000003")

    def sensors(config: str, values: str, index: str, read: dict[int, Callable[[], float]]) -> None:
        for sensor, reading in read.items():
            units, digits, accuracy = _SENSORS[sensor]
            at = f"{index}.{sensor}"
            w.fixed(f"{config}.6", at, units, "integer")
            w.fixed(f"{config}.7", at, digits)
            w.fixed(f"{config}.8", at, accuracy)
            w.fixed(f"{values}.2", at, 1, "integer")
            w.number(f"{values}.4", at, reading, 3600.0 if sensor == 8 else 10.0**-digits)
            w.number(f"{values}.5", at, bench.read_utc_s, 1)

    def load(watts: Callable[[], float], joules: Callable[[], float] | None) -> dict[int, Callable[[], float]]:
        shown: dict[int, Callable[[], float]] = {1: lambda: get_amperes(watts()), 4: lambda: VOLTS, 5: watts}
        shown |= {6: lambda: watts() / POWER_FACTOR, 7: lambda: POWER_FACTOR}
        return shown if joules is None else shown | {8: joules}

    sensors("3.3.4.1", "5.2.3.1", "1.1", load(bench.unit_w, bench.unit_j))
    for p in PHASES:
        sensors("3.3.6.1", "5.2.4.1", f"1.1.{p}", load(partial(bench.group_w, p, 3), None))
    for b in BANKS:
        sensors("3.4.4.1", "5.3.3.1", f"1.{b}", {1: partial(bench.group_a, b, 2)})
    for n in bench.outlets:
        w.text("3.5.3.1.3", f"1.{n}", name_outlet(bench, n))
        sensors("3.5.4.1", "5.4.3.1", f"1.{n}", load(partial(bench.outlet_w, n), partial(bench.outlet_j, n)))
    return w.tree


def _sentry3(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 1718, 3))
    w.number("1.6", "0", bench.unit_w, 1)
    w.number("2.1.1.11", "1", bench.unit_w, 1)
    w.number("2.1.1.14", "1", bench.unit_j, 3.6e6)
    w.number("2.2.1.7", "1.1", lambda: get_amperes(bench.unit_w()), 0.01)
    w.fixed("2.2.1.11", "1.1", round(10 * VOLTS))
    w.number("2.2.1.12", "1.1", bench.unit_w, 1)
    w.number("2.2.1.16", "1.1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.text("2.3.1.3", f"1.1.{n}", name_outlet(bench, n))
        w.number("2.3.1.7", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.fixed("2.3.1.13", f"1.1.{n}", round(10 * VOLTS))
        w.number("2.3.1.14", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.number("2.3.1.18", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("7", "13", "14", "18"):
        w.fixed(f"2.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _sentry4(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 1718, 4, 1))
    w.text("2.2.1.5", "1", "C2WG36TE")
    w.number("3.3.1.3", "1.1", bench.unit_w, 1)
    w.number("3.3.1.5", "1.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.fixed("3.3.1.8", "1.1", 98)
    w.number("3.3.1.10", "1.1", bench.unit_j, 360e3)
    for p in PHASES:
        w.fixed("5.3.1.3", f"1.1.{p}", round(10 * VOLTS))
        w.number("5.3.1.6", f"1.1.{p}", partial(bench.group_a, p, 3), 0.01)
        w.number("5.3.1.8", f"1.1.{p}", partial(bench.group_w, p, 3), 1)
        w.number("5.3.1.13", f"1.1.{p}", partial(bench.group_j, p, 3), 360e3)
    for b in BANKS:
        w.number("7.3.1.3", f"1.1.{b}", partial(bench.group_a, b, 2), 0.01)
    for n in bench.outlets:
        w.text("8.2.1.2", f"1.1.{n}", f"AA{n}")
        w.text("8.2.1.3", f"1.1.{n}", name_outlet(bench, n))
        w.number("8.3.1.3", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.fixed("8.3.1.6", f"1.1.{n}", round(10 * VOLTS))
        w.number("8.3.1.7", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.fixed("8.3.1.10", f"1.1.{n}", 98)
        w.number("8.3.1.14", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("3", "6", "7", "10", "14"):
        w.fixed(f"8.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _eaton(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 534, 6, 6, 7))
    w.number("3.5.1.3", "0.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.number("3.5.1.4", "0.1", bench.unit_w, 1)
    w.number("3.5.1.5", "0.1", bench.unit_j, 3600, "gauge")
    w.fixed("3.5.1.7", "0.1", 980)
    for p in PHASES:
        w.fixed("3.2.1.3", f"0.1.{p}", round(1000 * VOLTS))
        w.number("3.3.1.4", f"0.1.{p}", partial(bench.group_a, p, 3), 0.001)
        w.number("3.4.1.4", f"0.1.{p}", partial(bench.group_w, p, 3), 1)
        w.number("3.4.1.5", f"0.1.{p}", partial(bench.group_j, p, 3), 3600, "gauge")
    for b in BANKS:
        w.fixed("5.3.1.3", f"0.{b}", round(1000 * VOLTS))
        w.number("5.4.1.3", f"0.{b}", partial(bench.group_a, b, 2), 0.001)
        w.number("5.5.1.3", f"0.{b}", partial(bench.group_w, b, 2), 1)
        w.number("5.5.1.4", f"0.{b}", partial(bench.group_j, b, 2), 3600, "gauge")
    for n in bench.outlets:
        w.text("6.1.1.3", f"0.{n}", name_outlet(bench, n))
        w.fixed("6.3.1.2", f"0.{n}", round(1000 * VOLTS))
        w.number("6.4.1.3", f"0.{n}", partial(bench.outlet_a, n), 0.001)
        w.number("6.5.1.2", f"0.{n}", partial(bench.outlet_va, n), 1)
        w.number("6.5.1.3", f"0.{n}", partial(bench.outlet_w, n), 1)
        w.number("6.5.1.4", f"0.{n}", partial(bench.outlet_j, n), 3600, "gauge")
        w.fixed("6.5.1.6", f"0.{n}", 980)
    return w.tree


def _geist(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 21239, 5, 2), kind="gauge", sentinel=False)
    w.number("3.1.1.9", "1", bench.unit_w, 1)
    w.number("3.1.1.10", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.number("3.1.1.12", "1", bench.unit_j, 3600)
    for p in PHASES:
        w.fixed("3.2.1.4", f"{p}", round(10 * VOLTS))
        w.number("3.2.1.8", f"{p}", partial(bench.group_a, p, 3), 0.01)
        w.number("3.2.1.12", f"{p}", partial(bench.group_w, p, 3), 1)
        w.number("3.2.1.15", f"{p}", partial(bench.group_j, p, 3), 3600)
    for n in bench.outlets:
        w.text("3.6.1.3", f"{n}", name_outlet(bench, n))
        w.fixed("3.6.1.4", f"{n}", round(10 * VOLTS))
        w.number("3.6.1.8", f"{n}", partial(bench.outlet_a, n), 0.01)
        w.number("3.6.1.12", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("3.6.1.13", f"{n}", partial(bench.outlet_va, n), 1)
        w.fixed("3.6.1.14", f"{n}", 98)
        w.number("3.6.1.15", f"{n}", partial(bench.outlet_j, n), 3600)
    return w.tree


def _liebert(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 476, 1, 42, 3, 8), kind="gauge", sentinel=False)
    w.number("30.20.1.50", "1.1", bench.unit_j, 360e3)
    w.number("30.20.1.65", "1.1", bench.unit_w, 1)
    w.number("30.20.1.90", "1.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    for p in PHASES:
        w.fixed("30.40.1.19", f"1.1.{p}", round(10 * VOLTS))
        w.number("30.40.1.22", f"1.1.{p}", partial(bench.group_a, p, 3), 0.01)
        w.number("30.40.1.63", f"1.1.{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.text("50.20.1.10", f"1.1.{n}", name_outlet(bench, n))
        w.fixed("50.20.1.55", f"1.1.{n}", round(VOLTS))
        w.number("50.20.1.60", f"1.1.{n}", partial(bench.outlet_a, n), 0.1)
        w.number("50.20.1.65", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.number("50.20.1.85", f"1.1.{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _cyberpower(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 3808, 1, 1, 6), kind="gauge", sentinel=False)
    w.number("3.4.1.5", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.number("3.4.1.9", "1", bench.unit_j, 360e3)
    w.number("3.4.1.15", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.fixed("3.4.1.16", "1", 98)
    w.number("3.4.1.18", "1", bench.unit_w, 1)
    for p in PHASES:
        w.number("4.4.1.5", f"{p}", partial(bench.group_a, p, 3), 0.1)
        w.fixed("4.4.1.6", f"{p}", round(10 * VOLTS))
        w.number("4.4.1.7", f"{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.text("6.1.4.1.4", f"{n}", name_outlet(bench, n))
        w.number("6.2.4.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("6.2.4.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("6.2.4.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _cyberpower_epdu(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 3808, 1, 1, 3), kind="gauge", sentinel=False)
    w.text("1.5", "0", "PDU81005")
    w.text("1.6", "0", "CP0000000004")
    w.number("2.3.1.1.2", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.fixed("2.3.1.1.6", "1", round(10 * VOLTS))
    w.number("2.3.1.1.7", "1", bench.unit_w, 1)
    w.number("2.3.1.1.8", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.fixed("2.3.1.1.9", "1", 98)
    w.number("2.3.1.1.10", "1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.text("3.5.1.1.2", f"{n}", name_outlet(bench, n))
        w.number("3.5.1.1.7", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("3.5.1.1.8", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("3.5.1.1.13", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _ups(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (1, 3, 6, 1, 2, 1, 33, 1), sentinel=False)
    w.text("1.1", "0", "Maker of UPSs")
    w.text("1.2", "0", "UPS 10 kVA")
    for column, value in (("2.1", 2), ("2.2", 0), ("2.3", 42), ("2.4", 97), ("2.5", 2160), ("2.6", 0), ("2.7", 25)):
        w.fixed(column, "0", value)
    w.fixed("3.3.1.2", "1", 500)
    w.fixed("3.3.1.3", "1", round(VOLTS))
    w.number("3.3.1.4", "1", lambda: get_amperes(bench.unit_w() / 0.95), 0.1)
    w.number("3.3.1.5", "1", lambda: bench.unit_w() / 0.95, 1)
    w.fixed("4.1", "0", 3)
    w.fixed("4.2", "0", 500)
    w.fixed("4.4.1.2", "1", round(VOLTS))
    w.number("4.4.1.3", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.number("4.4.1.4", "1", bench.unit_w, 1)
    w.number("4.4.1.5", "1", lambda: bench.unit_w() / 100, 1)
    return w.tree


# For each maker: the tree, sysObjectID, sysDescr, whether single outlets are metered.
MAKERS = {
    "apc_rpdu2": (_apc_rpdu2, "1.3.6.1.4.1.318.1.3.4.6", "APC Web/SNMP Management Card", True),
    "apc_rpdu": (_apc_rpdu, "1.3.6.1.4.1.318.1.3.4.5", "APC Web/SNMP Management Card (AP7820)", False),
    "raritan": (_raritan, "1.3.6.1.4.1.13742.6", "Raritan PX3-5190R", True),
    "sentry3": (_sentry3, "1.3.6.1.4.1.1718.3", "Sentry Switched CDU", True),
    "sentry4": (_sentry4, "1.3.6.1.4.1.1718.4", "Sentry Smart PDU", True),
    "eaton": (_eaton, "1.3.6.1.4.1.534.6.6.7", "Eaton ePDU MA 1P", True),
    "geist": (_geist, "1.3.6.1.4.1.21239.5.2", "Vertiv Geist rPDU", True),
    "liebert": (_liebert, "1.3.6.1.4.1.476.1.42", "Liebert MPH2", True),
    "cyberpower": (_cyberpower, "1.3.6.1.4.1.3808.1.1.6", "CyberPower PDU", True),
    "cyberpower_epdu": (_cyberpower_epdu, "1.3.6.1.4.1.3808.1.1.3", "CyberPower ePDU", True),
    "ups": (_ups, "1.3.6.1.4.1.99999.1", "A UPS by its standard MIB", False),
}
