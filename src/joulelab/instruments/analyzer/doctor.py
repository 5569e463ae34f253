"""Explain why an analyzer does not open: probe further than opening did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError, Unavailable
from joulelab.instruments.analyzer import client as scpi
from joulelab.instruments.analyzer import probe as scpi_probe

if TYPE_CHECKING:
    from joulelab.instruments.analyzer.config import Options

_PROBE_S = 1.0


def explain(options: Options, error: Exception) -> list[str]:
    """Return sentences on what is wrong. Raises ConfigError, MissingDependency for what cannot be probed."""
    address = scpi.parse_resource(options.resource, options.where)
    why = (error.why if isinstance(error, JoulelabError) else "") or str(error)
    if isinstance(error, Unavailable) and "analyzer that joulelab knows" in error.what:
        return [f"Another instrument answers at {address.resource}: {why}. Check address and cabling."]
    if "another client holds" in why:
        return [_busy(address)]
    if address.kind == "serial":
        return _serial(address, options)
    if address.kind in ("socket", "vxi11"):
        return _network(address)
    hint = "lsusb shows it as 0b21:0025" if address.kind == "usb" else "ibtest of linux-gpib finds it"
    return [f"{address.resource} did not open: {why}. Check that {hint}, and that your user may use it."]


def _serial(address: scpi.Address, options: Options) -> list[str]:
    match scpi_probe.probe_serial(address.path):
        case "missing":
            return [f"The serial port {address.path} does not exist. `ls /dev/ttyUSB* /dev/ttyS*` shows those that do."]
        case "denied":
            return [
                f"You may not use {address.path}. Join its group: `sudo usermod -aG dialout $USER`, then log in again."
            ]
    return [
        f"{address.path} opens, but no analyzer answers at {options.baud_rate} baud.",
        "Check on its panel (UTILITY) that RS-232 is chosen with this rate, 8 bits, no parity, 1 stop bit and CR+LF.",
        "The cable has to be a null-modem cable.",
    ]


def _network(address: scpi.Address) -> list[str]:
    host, port = address.host, address.port or scpi.PORTMAPPER
    if why := scpi_probe.probe_host(host):
        return [f"The name {host} does not resolve ({why}). Use the address that its panel shows (UTILITY, Network)."]
    match scpi_probe.probe_port(host, port, _PROBE_S):
        case "silent":
            return [f"{host} does not answer on port {port}. Is it on, is the cable in, is a firewall between?"]
        case "closed":
            return [_closed(host, port, address)]
    if address.kind == "vxi11":
        return _vxi11(host, port, address)
    return _socket(host, port)


def _closed(host: str, port: int, address: scpi.Address) -> str:
    said = f"{host} is there, but nothing listens on port {port}."
    if address.kind == "vxi11" and not address.port:
        return f"{said} VXI-11 needs the portmapper: is the Ethernet option (/C7) fitted, and is this the analyzer?"
    return f"{said} Check the port in {address.resource}; a WT300E speaks VXI-11: TCPIP::{host}::INSTR."


def _vxi11(host: str, port: int, address: scpi.Address) -> list[str]:
    if address.port and not scpi_probe.probe_rpc(host, port, _PROBE_S):
        text = scpi_probe.probe_text(host, port, _PROBE_S)
        if text.upper().startswith(b"YOKOGAWA"):
            return [f"Port {port} of {host} is a raw socket: use TCPIP::{host}::{port}::SOCKET."]
        said = f", it says {text[:40]!r}" if text else ""
        return [f"Something listens on port {port} of {host}, but it does not speak VXI-11{said}."]
    return [f"{host} speaks VXI-11 but gave no link or no answer. {_busy(address)}"]


def _socket(host: str, port: int) -> list[str]:
    text = scpi_probe.probe_text(host, port, _PROBE_S)
    if text.count(b",") == 3:
        return [f"An instrument answers now: {text.decode('ascii', 'replace').strip()!r}. Try again."]
    if not text and scpi_probe.probe_rpc(host, port, _PROBE_S):
        return [f"Port {port} of {host} speaks VXI-11: use TCPIP::{host},{port}::INSTR."]
    said = f"it answers *IDN? with {text[:40]!r}" if text else f"it says nothing within {_PROBE_S:g} s"
    return [f"Something listens on port {port} of {host}, but it is no SCPI instrument: {said}."]


def _busy(address: scpi.Address) -> str:
    return f"Another client may hold the instrument: end other programs that use {address.resource}."
