"""Exchange SCPI messages with one instrument through pyvisa and pyvisa-py: VXI-11, raw socket, serial, USBTMC, GPIB.

pyvisa-py is imported when a link is opened. A link that failed is not used again: a late answer would be taken for the
answer to the next query. Close it and open another.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import re
import socket
import sys
import threading
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import Any, Literal

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MeterError, MissingDependency, ReadFailed, Unavailable

Interface = Literal["vxi11", "socket", "serial", "usb", "gpib"]

RESOURCE_FORMS = (
    "TCPIP::HOST::INSTR (VXI-11), TCPIP::HOST,PORT::INSTR (VXI-11 without portmapper), TCPIP::HOST::PORT::SOCKET, "
    "ASRL/dev/ttyUSB0::INSTR, USB::0x0b21::0x0025::SERIAL::INSTR, GPIB0::1::INSTR"
)
_PATTERNS: dict[Interface, str] = {
    "vxi11": r"TCPIP\d*::(?P<host>[^:,\s]+)(?:,(?P<port>\d+))?(?:::inst\d+)?(?:::INSTR)?",
    "socket": r"TCPIP\d*::(?P<host>[^:,\s]+)::(?P<port>\d+)::SOCKET",
    "serial": r"ASRL(?P<path>[^:\s]+)(?:::INSTR)?",
    "usb": r"USB\d*(?:::[^:\s]+){2,4}::INSTR",
    "gpib": r"GPIB\d*::\d+(?:::\d+)?(?:::INSTR)?",
}
# The longest answer that is read: hundreds of numbers.
ANSWER_BYTES = 8192
_LOCKED = 11  # VXI-11: another link holds the lock
_MORE = 0x3FFF0006  # VISA: as many bytes came as were asked for; there may be more


@dataclass(frozen=True, slots=True)
class Address:
    """Hold the place of an instrument: host and port (0: the portmapper knows it), or the path of a serial port."""

    resource: str
    interface: Interface
    host: str = ""
    port: int = 0
    path: str = ""


def parse_resource(resource: str, where: str) -> Address:
    """Parse a VISA resource string. Raises ConfigError."""
    for interface, pattern in _PATTERNS.items():
        if found := re.fullmatch(pattern, resource, re.IGNORECASE):
            parts = found.groupdict("")
            port = int(parts.get("port") or 0)
            if port < 65536 and (port or not parts.get("port")):
                return Address(resource, interface, parts.get("host", ""), port, parts.get("path", ""))
    raise ConfigError(
        f"resource is {resource!r}", where=where, next=f"use one of {RESOURCE_FORMS}", code="config.wrong-resource"
    )


class Link:
    """Exchange messages with one instrument, from one thread."""

    def __init__(self, resource: Any, where: str, timeout_s: float) -> None:
        self._resource = resource
        self._where = where
        self._timeout_s = timeout_s
        self._socket = _guard_socket(resource)

    def write(self, text: str) -> None:
        """Send a command. Raises ReadFailed."""
        self._exchange_message(text, is_query=False)

    def query(self, text: str) -> str:
        """Send a query and return its answer without the line end. Raises ReadFailed."""
        return self._exchange_message(text, is_query=True)

    def _exchange_message(self, text: str, *, is_query: bool) -> str:
        """Send one message and return its answer ("" for a command). Each message passes here. Raises ReadFailed."""
        begin_ns = monotonic_ns()
        try:
            self._resource.write(text)
            if not is_query:
                return ""
            with self._resource.ignore_warning(_MORE):
                data, _ = self._resource.visalib.read(self._resource.session, ANSWER_BYTES)
        except Exception as error:  # pyvisa-py raises the errors of all its layers, plain Exception among them
            is_late = "VI_ERROR_TMO" in str(error) or monotonic_ns() - begin_ns >= 0.9 * self._timeout_s * NS
            why = f"no answer within {self._timeout_s:g} s" if is_late else str(error) or type(error).__name__
            raise self._make_error(text, why, "no-answer" if is_late else "link-broken") from error
        if len(data) >= ANSWER_BYTES:
            raise self._make_error(text, f"the answer does not end after {ANSWER_BYTES} bytes", "wrong-answer")
        try:
            return bytes(data).decode("ascii").rstrip("\r\n")
        except UnicodeDecodeError:
            raise self._make_error(text, f"the answer is not text: {bytes(data[:30])!r}", "wrong-answer") from None

    def close(self) -> None:
        """End the link; twice is harmless."""
        resource, self._resource = self._resource, None
        if resource is not None:
            _close_quietly(resource)

    def abandon(self) -> None:
        """End a link that failed, without waiting for the instrument."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the other side has closed it
                self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def _make_error(self, text: str, why: str, reason: str) -> ReadFailed:
        return ReadFailed(
            f"{text} failed", where=self._where, why=why, next="it is tried again", code=f"read-failed.{reason}"
        )


def open_link(address: Address, where: str, timeout_s: float, *, baud_rate: int = 9600, manager: Any = None) -> Link:
    """Open a link within `timeout_s`. Raises ReadFailed, Unavailable, Denied, MissingDependency.

    `manager` is pyvisa's resource manager; tests pass their own. A driver that hangs stays behind in its thread; a
    session that it opens too late is closed at once.
    """
    chosen = manager if manager is not None else _import_pyvisa(where).ResourceManager("@py")
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    given_up = threading.Event()

    def open_session() -> None:
        try:
            results.put(_open_session(chosen, address, timeout_s, baud_rate))
        except Exception as error:  # noqa: BLE001 - handed to the caller
            results.put(error)
        if given_up.is_set():
            close_late()

    def close_late() -> None:
        with contextlib.suppress(queue.Empty):
            _close_quietly(results.get_nowait())

    threading.Thread(target=open_session, name="scpi-open", daemon=True).start()
    try:
        opened = results.get(timeout=timeout_s)
    except queue.Empty:
        given_up.set()
        close_late()
        opened = TimeoutError(f"the instrument did not answer within {timeout_s:g} s")
    if isinstance(opened, Exception):
        raise explain_open_error(opened, address, where) from opened
    return Link(opened, where, timeout_s)


def _open_session(manager: Any, address: Address, timeout_s: float, baud_rate: int) -> Any:
    timeout_ms = max(round(timeout_s * 1000), 1)
    try:
        resource = manager.open_resource(address.resource, open_timeout=timeout_ms)
    except Exception as error:
        # pyvisa-py leaves its connection open when opening fails, and only the traceback still knows it.
        trace = error.__traceback__
        while trace is not None:
            owner = trace.tb_frame.f_locals.get("self")
            for part in (getattr(owner, "interface", None), getattr(owner, "sock", None)):
                _close_quietly(part)
            trace = trace.tb_next
        raise
    try:
        resource.timeout = timeout_ms
        resource.write_termination = "\r\n" if address.interface == "serial" else "\n"
        if address.interface in ("serial", "socket"):
            resource.read_termination = "\n"
        if address.interface == "serial":
            resource.baud_rate = baud_rate
        elif address.interface in ("usb", "gpib"):
            resource.clear()  # forget the query of an earlier client
    except Exception:
        _close_quietly(resource)
        raise
    return resource


def explain_open_error(error: Exception, address: Address, where: str) -> MeterError | MissingDependency:
    """Return joulelab's error for a link that could not be opened."""
    what, why = f"cannot open {address.resource}", str(error) or type(error).__name__
    advice = f"joulelab doctor {where.removeprefix('meter ')}"
    number = getattr(error, "errno", None)
    if isinstance(error, ValueError) and "install" in why:
        advice = f"install {'pyusb' if address.interface == 'usb' else 'gpib-ctypes (and the driver linux-gpib)'}"
        return MissingDependency(
            what, where=where, why=why.splitlines()[0], next=advice, code="missing-dependency.driver"
        )
    if number in (errno.EACCES, errno.EPERM):
        if address.path:
            advice = f"join the group of {address.path} (often dialout)"
        return Denied(what, where=where, why="permission denied", next=advice, code="denied.device")
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO) or "No device found" in why:
        return Unavailable(what, where=where, why=why, next=advice, code="unavailable.no-device")
    code = "read-failed.no-answer" if isinstance(error, TimeoutError) else "read-failed.no-link"
    if link := re.fullmatch(r"error creating link: (\d+)", why):
        why = f"no VXI-11 link (error {link[1]})"
        if int(link[1]) == _LOCKED:
            why, code = "another client holds the instrument", "read-failed.busy"
    return ReadFailed(what, where=where, why=why, next=advice, code=code)


def _close_quietly(part: Any) -> None:
    if hasattr(part, "close"):
        try:
            part.close()
        except Exception as error:  # noqa: BLE001 - it is closed already
            logging.getLogger(__name__).debug("closing: %s", error)


def _guard_socket(resource: Any) -> socket.socket | None:
    """Make a closed connection of a pyvisa-py session an error; return its socket, None where it has none."""
    session: Any = (getattr(resource.visalib, "sessions", None) or {}).get(resource.session)
    for owner, name in ((session, "interface"), (getattr(session, "interface", None), "sock")):
        inner = getattr(owner, name, None)
        if isinstance(inner, socket.socket):
            setattr(owner, name, _GuardedSocket(inner))
            return inner
    return None


class _GuardedSocket:
    """Stand for a socket: pyvisa-py takes the empty read of a closed connection for a pause, and spins."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def recv(self, size: int) -> bytes:
        data = self._inner.recv(size)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the instrument closed the connection")
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _import_pyvisa(where: str) -> Any:
    try:
        with _ImportBlock("numpy", "psutil"):  # pyvisa would import both for nothing, at a cost in time and memory
            import pyvisa
            import pyvisa_py  # noqa: F401 - the backend that "@py" names
    except ImportError as error:
        what, why = "instruments are reached through pyvisa", f"{error.name} is not installed"
        advice, code = "pip install 'joulelab[analyzer]'", "missing-dependency.pyvisa"
        raise MissingDependency(what, where=where, why=why, next=advice, code=code) from error
    # It logs tracebacks of the errors that it raises.
    logging.getLogger("pyvisa").addHandler(logging.NullHandler())
    return pyvisa


class _ImportBlock(MetaPathFinder):
    """Hide some optional libraries from the imports of this thread."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)

    def find_spec(self, fullname: str, *_: object) -> None:
        """Leave a module to the next finder, or refuse it."""
        if fullname in self._names and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
