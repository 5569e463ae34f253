"""Explain why an analyzer does not open: probe further than opening did, with the standard library."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.instruments.http import reach

if TYPE_CHECKING:
    from joulelab.instruments.analyzer.client import Address
    from joulelab.instruments.analyzer.settings import AnalyzerSettings

PROBE_S = 1.0
PORTMAPPER = 111


def explain_failure(settings: AnalyzerSettings, error: Exception) -> list[str]:
    """Return sentences on the cause of a failure to open."""
    address = settings.address
    why = (error.why if isinstance(error, JoulelabError) else "") or str(error)
    code = error.code if isinstance(error, JoulelabError) else ""
    if code == "unavailable.unknown-model":
        return [f"Another instrument answers at {address.resource}: {why}. Check address and cabling."]
    if code == "read-failed.busy":
        return [f"Another client holds the instrument: end other programs that use {address.resource}."]
    if address.interface == "serial":
        return _explain_serial(address, settings.baud_rate)
    if address.interface in ("socket", "vxi11"):
        return _explain_network(address)
    hint = "lsusb shows it as 0b21:0025" if address.interface == "usb" else "ibtest of linux-gpib finds it"
    return [f"{address.resource} did not open: {why}. Check that {hint}, and that your user may use it."]


def _explain_serial(address: Address, baud_rate: int) -> list[str]:
    path = address.path
    if not Path(path).exists():
        return [f"The serial port {path} does not exist. `ls /dev/ttyUSB* /dev/ttyS*` lists those that do."]
    if not os.access(path, os.R_OK | os.W_OK):
        return [f"You may not use {path}. Join its group: `sudo usermod -aG dialout $USER`, then log in again."]
    return [
        f"{path} opens, but no analyzer answers at {baud_rate} baud.",
        "Check on its panel (UTILITY) that RS-232 is chosen with this rate, 8 bits, no parity, 1 stop bit and CR+LF.",
        "The cable has to be a null-modem cable.",
    ]


def _explain_network(address: Address) -> list[str]:
    host, port = address.host, address.port or PORTMAPPER
    found = reach(f"tcp://{host}:{port}", PROBE_S)
    if found[-1].endswith("."):
        if address.interface == "vxi11" and not address.port:
            return [
                *found,
                "VXI-11 needs the portmapper: is the Ethernet option (/C7) fitted, and is this the analyzer?",
            ]
        return [*found, f"A WT300E speaks VXI-11: TCPIP::{host}::INSTR."]
    text = b"" if port == PORTMAPPER else probe_text(host, port)
    is_identity = text.count(b",") == 3
    if address.interface == "vxi11":
        if is_identity:
            return [f"Port {port} of {host} is a raw socket: use TCPIP::{host}::{port}::SOCKET."]
        if text:
            return [f"Something listens on port {port} of {host}, but it is no VXI-11: it sends {text[:40]!r}."]
        busy = f"Another client may hold the instrument: end other programs that use {address.resource}."
        return [f"{host} takes connections, but gave no VXI-11 link or no answer.", busy]
    if is_identity:
        return [f"An instrument answers now: {text.decode('ascii', 'replace').strip()!r}. Try again."]
    if text:
        return [f"Something listens on port {port} of {host}, but it is no SCPI instrument: it sends {text[:40]!r}."]
    return [
        f"Port {port} of {host} does not answer *IDN?. If it is a port for VXI-11, use TCPIP::{host},{port}::INSTR."
    ]


def probe_text(host: str, port: int) -> bytes:
    """Return the first bytes that a port sends, by itself or on `*IDN?`."""
    try:
        with socket.create_connection((host, port), PROBE_S) as sock:
            sock.settimeout(PROBE_S)
            sock.sendall(b"*IDN?\n")
            return sock.recv(200)
    except OSError:
        return b""
