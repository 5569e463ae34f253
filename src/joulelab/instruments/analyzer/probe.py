"""Probe where an instrument should be, for `joulelab doctor`: with the standard library, apart from pyvisa."""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path
from typing import Literal

from joulelab.core.clock import NS, monotonic_ns


def probe_host(host: str) -> str:
    """Return why a name does not resolve, empty where it does."""
    try:
        socket.getaddrinfo(host, None, socket.AF_INET)
    except OSError as error:
        return str(error.strerror or error)
    return ""


def probe_port(host: str, port: int, timeout_s: float) -> Literal["open", "closed", "silent"]:
    """Tell whether something listens on a TCP port."""
    try:
        with socket.create_connection((host, port), timeout_s):
            return "open"
    except ConnectionRefusedError:
        return "closed"
    except OSError:
        return "silent"


def probe_text(host: str, port: int, timeout_s: float) -> bytes:
    """Return what a port says to `*IDN?`, or of itself, within the time."""
    until = monotonic_ns() + round(timeout_s * NS)
    said = b""
    try:
        with socket.create_connection((host, port), timeout_s) as sock:
            sock.sendall(b"*IDN?\n")
            while len(said) < 200 and b"\n" not in said and (left := until - monotonic_ns()) > 0:
                if not select.select([sock], [], [], left / NS)[0] or not (more := sock.recv(200)):
                    break
                said += more
    except OSError:
        return said
    return said


def probe_rpc(host: str, port: int, timeout_s: float) -> bool:
    """Tell whether a port answers a remote procedure call (ONC RPC, the null procedure of VXI-11's core)."""
    call = struct.pack(">10I", 1, 0, 2, 0x0607AF, 1, 0, 0, 0, 0, 0)
    try:
        with socket.create_connection((host, port), timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(struct.pack(">I", 0x80000000 | len(call)) + call)
            answer = sock.recv(12)
    except OSError:
        return False
    return len(answer) == 12 and struct.unpack(">II", answer[4:]) == (1, 1)


def probe_serial(path: str) -> Literal["missing", "denied", ""]:
    """Return why a serial port cannot be opened, empty where it can."""
    if not Path(path).exists():
        return "missing"
    return "" if os.access(path, os.R_OK | os.W_OK) else "denied"
