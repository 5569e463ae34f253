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
    """Read the cords of a node and their total, as one instrument with one set of flaws."""

    def __init__(self, truth: Truth, flaws: PduFlaws) -> None:
        self.truth, self.flaws = truth, flaws
        self.cords = len(truth.node.supply.cords)
        self._outlets = {n: Panel(truth, f"outlet:{n}", flaws, number=n) for n in range(1, self.cords + 1)}
        self._unit = Panel(truth, "node.ac", flaws, number=100)
        self.spare, self.unmetered = self.cords + 1, self.cords + 2

    @property
    def outlets(self) -> list[int]:
        """Return the metered outlets: those of the node, and one that feeds nothing."""
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
        """Return the total power in W."""
        return self._unit.power_w()

    def unit_j(self) -> float:
        """Return the energy counter of the whole unit in J."""
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
        """Return the time of the last update, in whole seconds of UTC."""
        _, at = self._unit.find_update()
        return (read_utc_ns() - (monotonic_ns() - at)) // NS

    def has_sentinel(self) -> bool:
        """Return whether the device shows -1 for unknown values now."""
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

    def add_text(self, column: str, index: str, value: str) -> None:
        """Add a text."""
        self.tree[self._make_oid(column, index)] = lambda: ("string", value)

    def add_constant(self, column: str, index: str, value: int, kind: str = "") -> None:
        """Add a number that never changes."""
        shown = (kind or self._kind, value)
        self.tree[self._make_oid(column, index)] = lambda: shown

    def add_reading(self, column: str, index: str, read: Callable[[], float], step: float, kind: str = "") -> None:
        """Add a reading in steps of the device's unit; counters are rounded down."""
        self.tree[self._make_oid(column, index)] = partial(self._show_reading, read, step, kind or self._kind)

    def _show_reading(self, read: Callable[[], float], step: float, kind: str) -> Shown:
        if self._sentinel and self.bench.has_sentinel():
            return "integer", SENTINEL
        counts = read() / step
        return kind, math.floor(counts + 1e-9) if step >= 360 else round(counts)

    def _make_oid(self, column: str, index: str) -> tuple[int, ...]:
        return (*self._base, *map(int, f"{column}.{index}".split(".")))


ENTERPRISE = (1, 3, 6, 1, 4, 1)


def _build_apc_rpdu2(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 318, 1, 1, 26))
    w.add_text("2.1.8", "1", "AP8959EU3")
    w.add_text("2.1.9", "1", "ZA0000000001")
    w.add_reading("4.3.1.5", "1", bench.unit_w, 10)
    w.add_reading("4.3.1.9", "1", bench.unit_j, 360e3)
    w.add_reading("4.3.1.16", "1", lambda: bench.unit_w() / POWER_FACTOR, 10)
    w.add_constant("4.3.1.17", "1", 98)
    for p in PHASES:
        w.add_reading("6.3.1.5", f"{p}", partial(bench.group_a, p, 3), 0.1)
        w.add_constant("6.3.1.6", f"{p}", round(VOLTS))
        w.add_reading("6.3.1.7", f"{p}", partial(bench.group_w, p, 3), 10)
    for b in BANKS:
        w.add_reading("8.3.1.5", f"{b}", partial(bench.group_a, b, 2), 0.1)
    for n in bench.outlets:
        w.add_text("9.4.3.1.3", f"{n}", name_outlet(bench, n))
        w.add_reading("9.4.3.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.add_reading("9.4.3.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("9.4.3.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _build_apc_rpdu(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 318, 1, 1, 12))
    w.add_text("1.5", "0", "AP7820")
    w.add_text("1.6", "0", "ZA0000000002")
    w.add_reading("1.16", "0", bench.unit_w, 1)
    for p in PHASES:
        w.add_reading("2.3.1.1.2", f"{p}", partial(bench.group_a, p, 3), 0.1, "gauge")
    return w.tree


# Sensor types of PDU2-MIB with units (enum), digits and accuracy (hundredths of a percent).
_SENSORS = {1: (2, 3, 100), 4: (1, 0, 100), 5: (3, 0, 100), 6: (4, 0, 100), 7: (-1, 2, 100), 8: (5, 0, 100)}


def _build_raritan(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 13742, 6), kind="gauge", sentinel=False)
    w.add_text("3.2.1.1.3", "1", "PX3-5190R")
    w.add_text("3.2.1.1.4", "1", "QFC0000003")

    def add_sensors(config: str, values: str, index: str, read: dict[int, Callable[[], float]]) -> None:
        for sensor, reading in read.items():
            units, digits, accuracy = _SENSORS[sensor]
            at = f"{index}.{sensor}"
            w.add_constant(f"{config}.6", at, units, "integer")
            w.add_constant(f"{config}.7", at, digits)
            w.add_constant(f"{config}.8", at, accuracy)
            w.add_constant(f"{values}.2", at, 1, "integer")
            w.add_reading(f"{values}.4", at, reading, 3600.0 if sensor == 8 else 10.0**-digits)
            w.add_reading(f"{values}.5", at, bench.read_utc_s, 1)

    def list_readings(watts: Callable[[], float], joules: Callable[[], float] | None) -> dict[int, Callable[[], float]]:
        shown: dict[int, Callable[[], float]] = {1: lambda: get_amperes(watts()), 4: lambda: VOLTS, 5: watts}
        shown |= {6: lambda: watts() / POWER_FACTOR, 7: lambda: POWER_FACTOR}
        return shown if joules is None else shown | {8: joules}

    add_sensors("3.3.4.1", "5.2.3.1", "1.1", list_readings(bench.unit_w, bench.unit_j))
    for p in PHASES:
        add_sensors("3.3.6.1", "5.2.4.1", f"1.1.{p}", list_readings(partial(bench.group_w, p, 3), None))
    for b in BANKS:
        add_sensors("3.4.4.1", "5.3.3.1", f"1.{b}", {1: partial(bench.group_a, b, 2)})
    for n in bench.outlets:
        w.add_text("3.5.3.1.3", f"1.{n}", name_outlet(bench, n))
        add_sensors(
            "3.5.4.1", "5.4.3.1", f"1.{n}", list_readings(partial(bench.outlet_w, n), partial(bench.outlet_j, n))
        )
    return w.tree


def _build_sentry3(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 1718, 3))
    w.add_reading("1.6", "0", bench.unit_w, 1)
    w.add_reading("2.1.1.11", "1", bench.unit_w, 1)
    w.add_reading("2.1.1.14", "1", bench.unit_j, 3.6e6)
    w.add_reading("2.2.1.7", "1.1", lambda: get_amperes(bench.unit_w()), 0.01)
    w.add_constant("2.2.1.11", "1.1", round(10 * VOLTS))
    w.add_reading("2.2.1.12", "1.1", bench.unit_w, 1)
    w.add_reading("2.2.1.16", "1.1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.add_text("2.3.1.3", f"1.1.{n}", name_outlet(bench, n))
        w.add_reading("2.3.1.7", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.add_constant("2.3.1.13", f"1.1.{n}", round(10 * VOLTS))
        w.add_reading("2.3.1.14", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("2.3.1.18", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("7", "13", "14", "18"):
        w.add_constant(f"2.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _build_sentry4(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 1718, 4, 1))
    w.add_text("2.2.1.5", "1", "C2WG36TE")
    w.add_reading("3.3.1.3", "1.1", bench.unit_w, 1)
    w.add_reading("3.3.1.5", "1.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.add_constant("3.3.1.8", "1.1", 98)
    w.add_reading("3.3.1.10", "1.1", bench.unit_j, 360e3)
    for p in PHASES:
        w.add_constant("5.3.1.3", f"1.1.{p}", round(10 * VOLTS))
        w.add_reading("5.3.1.6", f"1.1.{p}", partial(bench.group_a, p, 3), 0.01)
        w.add_reading("5.3.1.8", f"1.1.{p}", partial(bench.group_w, p, 3), 1)
        w.add_reading("5.3.1.13", f"1.1.{p}", partial(bench.group_j, p, 3), 360e3)
    for b in BANKS:
        w.add_reading("7.3.1.3", f"1.1.{b}", partial(bench.group_a, b, 2), 0.01)
    for n in bench.outlets:
        w.add_text("8.2.1.2", f"1.1.{n}", f"AA{n}")
        w.add_text("8.2.1.3", f"1.1.{n}", name_outlet(bench, n))
        w.add_reading("8.3.1.3", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.add_constant("8.3.1.6", f"1.1.{n}", round(10 * VOLTS))
        w.add_reading("8.3.1.7", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.add_constant("8.3.1.10", f"1.1.{n}", 98)
        w.add_reading("8.3.1.14", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("3", "6", "7", "10", "14"):
        w.add_constant(f"8.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _build_eaton(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 534, 6, 6, 7))
    w.add_reading("3.5.1.3", "0.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.add_reading("3.5.1.4", "0.1", bench.unit_w, 1)
    w.add_reading("3.5.1.5", "0.1", bench.unit_j, 3600, "gauge")
    w.add_constant("3.5.1.7", "0.1", 980)
    for p in PHASES:
        w.add_constant("3.2.1.3", f"0.1.{p}", round(1000 * VOLTS))
        w.add_reading("3.3.1.4", f"0.1.{p}", partial(bench.group_a, p, 3), 0.001)
        w.add_reading("3.4.1.4", f"0.1.{p}", partial(bench.group_w, p, 3), 1)
        w.add_reading("3.4.1.5", f"0.1.{p}", partial(bench.group_j, p, 3), 3600, "gauge")
    for b in BANKS:
        w.add_constant("5.3.1.3", f"0.{b}", round(1000 * VOLTS))
        w.add_reading("5.4.1.3", f"0.{b}", partial(bench.group_a, b, 2), 0.001)
        w.add_reading("5.5.1.3", f"0.{b}", partial(bench.group_w, b, 2), 1)
        w.add_reading("5.5.1.4", f"0.{b}", partial(bench.group_j, b, 2), 3600, "gauge")
    for n in bench.outlets:
        w.add_text("6.1.1.3", f"0.{n}", name_outlet(bench, n))
        w.add_constant("6.3.1.2", f"0.{n}", round(1000 * VOLTS))
        w.add_reading("6.4.1.3", f"0.{n}", partial(bench.outlet_a, n), 0.001)
        w.add_reading("6.5.1.2", f"0.{n}", partial(bench.outlet_va, n), 1)
        w.add_reading("6.5.1.3", f"0.{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("6.5.1.4", f"0.{n}", partial(bench.outlet_j, n), 3600, "gauge")
        w.add_constant("6.5.1.6", f"0.{n}", 980)
    return w.tree


def _build_geist(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 21239, 5, 2), kind="gauge", sentinel=False)
    w.add_reading("3.1.1.9", "1", bench.unit_w, 1)
    w.add_reading("3.1.1.10", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.add_reading("3.1.1.12", "1", bench.unit_j, 3600)
    for p in PHASES:
        w.add_constant("3.2.1.4", f"{p}", round(10 * VOLTS))
        w.add_reading("3.2.1.8", f"{p}", partial(bench.group_a, p, 3), 0.01)
        w.add_reading("3.2.1.12", f"{p}", partial(bench.group_w, p, 3), 1)
        w.add_reading("3.2.1.15", f"{p}", partial(bench.group_j, p, 3), 3600)
    for n in bench.outlets:
        w.add_text("3.6.1.3", f"{n}", name_outlet(bench, n))
        w.add_constant("3.6.1.4", f"{n}", round(10 * VOLTS))
        w.add_reading("3.6.1.8", f"{n}", partial(bench.outlet_a, n), 0.01)
        w.add_reading("3.6.1.12", f"{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("3.6.1.13", f"{n}", partial(bench.outlet_va, n), 1)
        w.add_constant("3.6.1.14", f"{n}", 98)
        w.add_reading("3.6.1.15", f"{n}", partial(bench.outlet_j, n), 3600)
    return w.tree


def _build_liebert(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 476, 1, 42, 3, 8), kind="gauge", sentinel=False)
    w.add_reading("30.20.1.50", "1.1", bench.unit_j, 360e3)
    w.add_reading("30.20.1.65", "1.1", bench.unit_w, 1)
    w.add_reading("30.20.1.90", "1.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    for p in PHASES:
        w.add_constant("30.40.1.19", f"1.1.{p}", round(10 * VOLTS))
        w.add_reading("30.40.1.22", f"1.1.{p}", partial(bench.group_a, p, 3), 0.01)
        w.add_reading("30.40.1.63", f"1.1.{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.add_text("50.20.1.10", f"1.1.{n}", name_outlet(bench, n))
        w.add_constant("50.20.1.55", f"1.1.{n}", round(VOLTS))
        w.add_reading("50.20.1.60", f"1.1.{n}", partial(bench.outlet_a, n), 0.1)
        w.add_reading("50.20.1.65", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("50.20.1.85", f"1.1.{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _build_cyberpower(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 3808, 1, 1, 6), kind="gauge", sentinel=False)
    w.add_reading("3.4.1.5", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.add_reading("3.4.1.9", "1", bench.unit_j, 360e3)
    w.add_reading("3.4.1.15", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.add_constant("3.4.1.16", "1", 98)
    w.add_reading("3.4.1.18", "1", bench.unit_w, 1)
    for p in PHASES:
        w.add_reading("4.4.1.5", f"{p}", partial(bench.group_a, p, 3), 0.1)
        w.add_constant("4.4.1.6", f"{p}", round(10 * VOLTS))
        w.add_reading("4.4.1.7", f"{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.add_text("6.1.4.1.4", f"{n}", name_outlet(bench, n))
        w.add_reading("6.2.4.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.add_reading("6.2.4.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("6.2.4.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _build_cyberpower_epdu(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (*ENTERPRISE, 3808, 1, 1, 3), kind="gauge", sentinel=False)
    w.add_text("1.5", "0", "PDU81005")
    w.add_text("1.6", "0", "CP0000000004")
    w.add_reading("2.3.1.1.2", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.add_constant("2.3.1.1.6", "1", round(10 * VOLTS))
    w.add_reading("2.3.1.1.7", "1", bench.unit_w, 1)
    w.add_reading("2.3.1.1.8", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.add_constant("2.3.1.1.9", "1", 98)
    w.add_reading("2.3.1.1.10", "1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.add_text("3.5.1.1.2", f"{n}", name_outlet(bench, n))
        w.add_reading("3.5.1.1.7", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.add_reading("3.5.1.1.8", f"{n}", partial(bench.outlet_w, n), 1)
        w.add_reading("3.5.1.1.13", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _build_ups(bench: PduBench) -> Tree:
    w = TreeWriter(bench, (1, 3, 6, 1, 2, 1, 33, 1), sentinel=False)
    w.add_text("1.1", "0", "Maker of UPSs")
    w.add_text("1.2", "0", "UPS 10 kVA")
    for column, value in (("2.1", 2), ("2.2", 0), ("2.3", 42), ("2.4", 97), ("2.5", 2160), ("2.6", 0), ("2.7", 25)):
        w.add_constant(column, "0", value)
    w.add_constant("3.3.1.2", "1", 500)
    w.add_constant("3.3.1.3", "1", round(VOLTS))
    w.add_reading("3.3.1.4", "1", lambda: get_amperes(bench.unit_w() / 0.95), 0.1)
    w.add_reading("3.3.1.5", "1", lambda: bench.unit_w() / 0.95, 1)
    w.add_constant("4.1", "0", 3)
    w.add_constant("4.2", "0", 500)
    w.add_constant("4.4.1.2", "1", round(VOLTS))
    w.add_reading("4.4.1.3", "1", lambda: get_amperes(bench.unit_w()), 0.1)
    w.add_reading("4.4.1.4", "1", bench.unit_w, 1)
    w.add_reading("4.4.1.5", "1", lambda: bench.unit_w() / 100, 1)
    return w.tree


# For each maker: the tree, sysObjectID, sysDescr, whether single outlets are metered.
MAKERS = {
    "apc_rpdu2": (_build_apc_rpdu2, "1.3.6.1.4.1.318.1.3.4.6", "APC Web/SNMP Management Card", True),
    "apc_rpdu": (_build_apc_rpdu, "1.3.6.1.4.1.318.1.3.4.5", "APC Web/SNMP Management Card (AP7820)", False),
    "raritan": (_build_raritan, "1.3.6.1.4.1.13742.6", "Raritan PX3-5190R", True),
    "sentry3": (_build_sentry3, "1.3.6.1.4.1.1718.3", "Sentry Switched CDU", True),
    "sentry4": (_build_sentry4, "1.3.6.1.4.1.1718.4", "Sentry Smart PDU", True),
    "eaton": (_build_eaton, "1.3.6.1.4.1.534.6.6.7", "Eaton ePDU MA 1P", True),
    "geist": (_build_geist, "1.3.6.1.4.1.21239.5.2", "Vertiv Geist rPDU", True),
    "liebert": (_build_liebert, "1.3.6.1.4.1.476.1.42", "Liebert MPH2", True),
    "cyberpower": (_build_cyberpower, "1.3.6.1.4.1.3808.1.1.6", "CyberPower PDU", True),
    "cyberpower_epdu": (_build_cyberpower_epdu, "1.3.6.1.4.1.3808.1.1.3", "CyberPower ePDU", True),
    "ups": (_build_ups, "1.3.6.1.4.1.99999.1", "A UPS by its standard MIB", False),
}
