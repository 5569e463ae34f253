"""Build what rack PDUs and UPSs of several makers show by SNMP; written from their MIBs, apart from the client."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from joulelab.twin.servers._pdu_bench import (
    BANKS,
    PHASES,
    POWER_FACTOR,
    SENTINEL,
    VOLTS,
    Bench,
    Tree,
    Writer,
    amps,
    name,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ENTERPRISE = (1, 3, 6, 1, 4, 1)


def _apc_rpdu2(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 318, 1, 1, 26))
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
        w.text("9.4.3.1.3", f"{n}", name(bench, n))
        w.number("9.4.3.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("9.4.3.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("9.4.3.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _apc_rpdu(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 318, 1, 1, 12))
    w.text("1.5", "0", "AP7820")
    w.text("1.6", "0", "ZA0000000002")
    w.number("1.16", "0", bench.unit_w, 1)
    for p in PHASES:
        w.number("2.3.1.1.2", f"{p}", partial(bench.group_a, p, 3), 0.1, "gauge")
    return w.tree


# Sensor types of PDU2-MIB with units (enum), digits and accuracy (hundredths of a percent).
_SENSORS = {1: (2, 3, 100), 4: (1, 0, 100), 5: (3, 0, 100), 6: (4, 0, 100), 7: (-1, 2, 100), 8: (5, 0, 100)}


def _raritan(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 13742, 6), kind="gauge", sentinel=False)
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
        shown: dict[int, Callable[[], float]] = {1: lambda: amps(watts()), 4: lambda: VOLTS, 5: watts}
        shown |= {6: lambda: watts() / POWER_FACTOR, 7: lambda: POWER_FACTOR}
        return shown if joules is None else shown | {8: joules}

    sensors("3.3.4.1", "5.2.3.1", "1.1", load(bench.unit_w, bench.unit_j))
    for p in PHASES:
        sensors("3.3.6.1", "5.2.4.1", f"1.1.{p}", load(partial(bench.group_w, p, 3), None))
    for b in BANKS:
        sensors("3.4.4.1", "5.3.3.1", f"1.{b}", {1: partial(bench.group_a, b, 2)})
    for n in bench.outlets:
        w.text("3.5.3.1.3", f"1.{n}", name(bench, n))
        sensors("3.5.4.1", "5.4.3.1", f"1.{n}", load(partial(bench.outlet_w, n), partial(bench.outlet_j, n)))
    return w.tree


def _sentry3(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 1718, 3))
    w.number("1.6", "0", bench.unit_w, 1)
    w.number("2.1.1.11", "1", bench.unit_w, 1)
    w.number("2.1.1.14", "1", bench.unit_j, 3.6e6)
    w.number("2.2.1.7", "1.1", lambda: amps(bench.unit_w()), 0.01)
    w.fixed("2.2.1.11", "1.1", round(10 * VOLTS))
    w.number("2.2.1.12", "1.1", bench.unit_w, 1)
    w.number("2.2.1.16", "1.1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.text("2.3.1.3", f"1.1.{n}", name(bench, n))
        w.number("2.3.1.7", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.fixed("2.3.1.13", f"1.1.{n}", round(10 * VOLTS))
        w.number("2.3.1.14", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.number("2.3.1.18", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("7", "13", "14", "18"):
        w.fixed(f"2.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _sentry4(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 1718, 4, 1))
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
        w.text("8.2.1.3", f"1.1.{n}", name(bench, n))
        w.number("8.3.1.3", f"1.1.{n}", partial(bench.outlet_a, n), 0.01)
        w.fixed("8.3.1.6", f"1.1.{n}", round(10 * VOLTS))
        w.number("8.3.1.7", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.fixed("8.3.1.10", f"1.1.{n}", 98)
        w.number("8.3.1.14", f"1.1.{n}", partial(bench.outlet_j, n), 3600)
    for column in ("3", "6", "7", "10", "14"):
        w.fixed(f"8.3.1.{column}", f"1.1.{bench.unmetered}", SENTINEL)
    return w.tree


def _eaton(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 534, 6, 6, 7))
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
        w.text("6.1.1.3", f"0.{n}", name(bench, n))
        w.fixed("6.3.1.2", f"0.{n}", round(1000 * VOLTS))
        w.number("6.4.1.3", f"0.{n}", partial(bench.outlet_a, n), 0.001)
        w.number("6.5.1.2", f"0.{n}", partial(bench.outlet_va, n), 1)
        w.number("6.5.1.3", f"0.{n}", partial(bench.outlet_w, n), 1)
        w.number("6.5.1.4", f"0.{n}", partial(bench.outlet_j, n), 3600, "gauge")
        w.fixed("6.5.1.6", f"0.{n}", 980)
    return w.tree


def _geist(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 21239, 5, 2), kind="gauge", sentinel=False)
    w.number("3.1.1.9", "1", bench.unit_w, 1)
    w.number("3.1.1.10", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.number("3.1.1.12", "1", bench.unit_j, 3600)
    for p in PHASES:
        w.fixed("3.2.1.4", f"{p}", round(10 * VOLTS))
        w.number("3.2.1.8", f"{p}", partial(bench.group_a, p, 3), 0.01)
        w.number("3.2.1.12", f"{p}", partial(bench.group_w, p, 3), 1)
        w.number("3.2.1.15", f"{p}", partial(bench.group_j, p, 3), 3600)
    for n in bench.outlets:
        w.text("3.6.1.3", f"{n}", name(bench, n))
        w.fixed("3.6.1.4", f"{n}", round(10 * VOLTS))
        w.number("3.6.1.8", f"{n}", partial(bench.outlet_a, n), 0.01)
        w.number("3.6.1.12", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("3.6.1.13", f"{n}", partial(bench.outlet_va, n), 1)
        w.fixed("3.6.1.14", f"{n}", 98)
        w.number("3.6.1.15", f"{n}", partial(bench.outlet_j, n), 3600)
    return w.tree


def _liebert(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 476, 1, 42, 3, 8), kind="gauge", sentinel=False)
    w.number("30.20.1.50", "1.1", bench.unit_j, 360e3)
    w.number("30.20.1.65", "1.1", bench.unit_w, 1)
    w.number("30.20.1.90", "1.1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    for p in PHASES:
        w.fixed("30.40.1.19", f"1.1.{p}", round(10 * VOLTS))
        w.number("30.40.1.22", f"1.1.{p}", partial(bench.group_a, p, 3), 0.01)
        w.number("30.40.1.63", f"1.1.{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.text("50.20.1.10", f"1.1.{n}", name(bench, n))
        w.fixed("50.20.1.55", f"1.1.{n}", round(VOLTS))
        w.number("50.20.1.60", f"1.1.{n}", partial(bench.outlet_a, n), 0.1)
        w.number("50.20.1.65", f"1.1.{n}", partial(bench.outlet_w, n), 1)
        w.number("50.20.1.85", f"1.1.{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _cyberpower(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 3808, 1, 1, 6), kind="gauge", sentinel=False)
    w.number("3.4.1.5", "1", lambda: amps(bench.unit_w()), 0.1)
    w.number("3.4.1.9", "1", bench.unit_j, 360e3)
    w.number("3.4.1.15", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.fixed("3.4.1.16", "1", 98)
    w.number("3.4.1.18", "1", bench.unit_w, 1)
    for p in PHASES:
        w.number("4.4.1.5", f"{p}", partial(bench.group_a, p, 3), 0.1)
        w.fixed("4.4.1.6", f"{p}", round(10 * VOLTS))
        w.number("4.4.1.7", f"{p}", partial(bench.group_w, p, 3), 1)
    for n in bench.outlets:
        w.text("6.1.4.1.4", f"{n}", name(bench, n))
        w.number("6.2.4.1.6", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("6.2.4.1.7", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("6.2.4.1.11", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _cyberpower_epdu(bench: Bench) -> Tree:
    w = Writer(bench, (*ENTERPRISE, 3808, 1, 1, 3), kind="gauge", sentinel=False)
    w.text("1.5", "0", "PDU81005")
    w.text("1.6", "0", "CP0000000004")
    w.number("2.3.1.1.2", "1", lambda: amps(bench.unit_w()), 0.1)
    w.fixed("2.3.1.1.6", "1", round(10 * VOLTS))
    w.number("2.3.1.1.7", "1", bench.unit_w, 1)
    w.number("2.3.1.1.8", "1", lambda: bench.unit_w() / POWER_FACTOR, 1)
    w.fixed("2.3.1.1.9", "1", 98)
    w.number("2.3.1.1.10", "1", bench.unit_j, 360e3)
    for n in bench.outlets:
        w.text("3.5.1.1.2", f"{n}", name(bench, n))
        w.number("3.5.1.1.7", f"{n}", partial(bench.outlet_a, n), 0.1)
        w.number("3.5.1.1.8", f"{n}", partial(bench.outlet_w, n), 1)
        w.number("3.5.1.1.13", f"{n}", partial(bench.outlet_j, n), 360e3)
    return w.tree


def _ups(bench: Bench) -> Tree:
    w = Writer(bench, (1, 3, 6, 1, 2, 1, 33, 1), sentinel=False)
    w.text("1.1", "0", "Maker of UPSs")
    w.text("1.2", "0", "UPS 10 kVA")
    for column, value in (("2.1", 2), ("2.2", 0), ("2.3", 42), ("2.4", 97), ("2.5", 2160), ("2.6", 0), ("2.7", 25)):
        w.fixed(column, "0", value)
    w.fixed("3.3.1.2", "1", 500)
    w.fixed("3.3.1.3", "1", round(VOLTS))
    w.number("3.3.1.4", "1", lambda: amps(bench.unit_w() / 0.95), 0.1)
    w.number("3.3.1.5", "1", lambda: bench.unit_w() / 0.95, 1)
    w.fixed("4.1", "0", 3)
    w.fixed("4.2", "0", 500)
    w.fixed("4.4.1.2", "1", round(VOLTS))
    w.number("4.4.1.3", "1", lambda: amps(bench.unit_w()), 0.1)
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
