"""Talk SCPI to one instrument through pyvisa with pyvisa-py: VXI-11, raw socket, serial, USBTMC, GPIB.

pyvisa-py is imported when a link is opened. A link that failed once is of no use any more: what it was asked may still
be answered, and would be taken for the answer to the next question. Close it and open another.
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import sys
import threading
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError, Denied, MeterError, MissingDependency, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["vxi11", "socket", "serial", "usb", "gpib"]

FORMS = (
    "TCPIP::HOST::INSTR (VXI-11), TCPIP::HOST,PORT::INSTR (VXI-11 without portmapper), TCPIP::HOST::PORT::SOCKET, "
    "ASRL/dev/ttyUSB0::INSTR, USB::0x0b21::0x0025::SERIAL::INSTR, GPIB0::1::INSTR"
)
PORTMAPPER = 111
# The longest answer that is taken: hundreds of numbers; more is no answer.
ANSWER_BYTES = 8192
_BUSY = 11  # VXI-11: the device is locked by another link
_MORE = 0x3FFF0006  # VISA: as many bytes came as were asked for; there may be more
_AGAIN = "it is tried again"


@dataclass(frozen=True, slots=True)
class Address:
    """Hold where an instrument is: host and port (0: asked of the portmapper), or the serial port's path."""

    resource: str
    kind: Kind
    host: str = ""
    port: int = 0
    path: str = ""


def parse_resource(resource: str, where: str) -> Address:
    """Return what a VISA resource string names. Raises ConfigError, MissingDependency."""
    rname = _pyvisa(where).rname
    try:
        parsed = rname.parse_resource_name(resource)
        interface, family = str(parsed.interface_type), str(parsed.resource_class)
        if (interface, family) == ("TCPIP", "SOCKET"):
            return Address(resource, "socket", parsed.host_address, _port(parsed.port))
        if (interface, family) == ("TCPIP", "INSTR") and not parsed.lan_device_name.lower().startswith("hislip"):
            host, _, port = parsed.host_address.partition(",")
            return Address(resource, "vxi11", host, _port(port) if port else 0)
        if (interface, family) == ("ASRL", "INSTR"):
            return Address(resource, "serial", path=parsed.board)
        if (interface, family) in (("USB", "INSTR"), ("GPIB", "INSTR")):
            return Address(resource, "usb" if interface == "USB" else "gpib")
        why = f"{interface} {family} is not one of the instrument's interfaces"
    except (rname.InvalidResourceName, ValueError) as error:
        why = str(error)
    raise ConfigError(f"resource is {resource!r}", where=where, why=why, next=f"use one of {FORMS}")


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise ValueError(f"{text!r} is no port")
    return int(text)


class Link:
    """Ask one instrument from one thread; every call ends within `timeout_s`. Raises ReadFailed."""

    def __init__(self, resource: Any, where: str, timeout_s: float) -> None:
        self._resource = resource
        self._where = where
        self._timeout_s = timeout_s
        self._guard = _Guard(resource, timeout_s)

    def write(self, text: str) -> None:
        """Send a message. Raises ReadFailed."""
        try:
            self._resource.write(text)
        except Exception as error:  # pyvisa-py raises what its layers raise, plain Exception among it
            raise self._failed(error, text) from error

    def query(self, text: str) -> str:
        """Send a message and return its answer without its end. Raises ReadFailed."""
        self.write(text)
        try:
            with self._resource.ignore_warning(_MORE):
                data, status = self._resource.visalib.read(self._resource.session, ANSWER_BYTES)
        except Exception as error:
            raise self._failed(error, text) from error
        if len(data) >= ANSWER_BYTES:
            raise ReadFailed(f"the answer to {text} does not end", where=self._where, why=str(status), next=_AGAIN)
        try:
            return bytes(data).decode("ascii").rstrip("\r\n")
        except UnicodeDecodeError:
            why = f"it begins with {bytes(data[:30])!r}"
            raise ReadFailed(f"the answer to {text} is no text", where=self._where, why=why, next=_AGAIN) from None

    def close(self) -> None:
        """End the link; twice is harmless."""
        resource, self._resource = self._resource, None
        if resource is not None:
            _close(resource)

    def abandon(self) -> None:
        """End a link that failed without a word to the other side, which may not hear it."""
        self._guard.cut()
        self.close()

    def _failed(self, error: Exception, text: str) -> ReadFailed:
        late = self._guard.timed_out or _is_timeout(error)
        why = f"no answer within {self._timeout_s:g} s" if late else _said(error)
        if self._guard.vxi11_error == _BUSY:
            why = "another client holds the instrument's lock"
        return ReadFailed(f"{text} failed", where=self._where, why=why, next=_AGAIN)


def open_link(address: Address, where: str, timeout_s: float, *, baud_rate: int = 9600, manager: Any = None) -> Link:
    """Open a link within `timeout_s`. Raises ReadFailed, Unavailable, Denied, MissingDependency.

    `manager` is pyvisa's resource manager; tests pass their own. A vendor's layer that hangs is left behind in its
    thread, and what it opens too late is closed at once.
    """
    chosen = manager if manager is not None else _pyvisa(where).ResourceManager("@py")
    opening = _Opening(lambda: _open(chosen, address, timeout_s, baud_rate))
    done = opening.wait(timeout_s)
    if done is None:
        why = f"the instrument did not answer within {timeout_s:g} s"
        raise ReadFailed(f"cannot open {address.resource}", where=where, why=why, next=_advice(where))
    if isinstance(done, Exception):
        raise failure(done, address, where) from done
    return Link(done, where, timeout_s)


def _open(manager: Any, address: Address, timeout_s: float, baud_rate: int) -> Any:
    try:
        resource = manager.open_resource(address.resource, open_timeout=max(round(timeout_s * 1000), 1))
    except Exception as error:
        _close_rest(error)
        raise
    try:
        resource.timeout = max(round(timeout_s * 1000), 1)
        resource.write_termination = "\r\n" if address.kind == "serial" else "\n"
        if address.kind in ("serial", "socket"):
            resource.read_termination = "\n"
        if address.kind == "serial":
            resource.baud_rate = baud_rate
        else:
            _clear(resource, address.kind)
    except Exception:
        _close(resource)
        raise
    return resource


def _close_rest(error: Exception) -> None:
    """Close what pyvisa-py leaves open when opening fails: only the traceback still knows its session."""
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        for part in (getattr(owner, "interface", None), getattr(owner, "sock", None)):
            if hasattr(part, "close"):
                _close(part)
        trace = trace.tb_next


def _clear(resource: Any, kind: Kind) -> None:
    """Make the instrument forget what an earlier client asked, where its interface can."""
    if kind in ("usb", "gpib"):
        resource.clear()


class _Opening:
    """Open in a thread of its own, so that the caller can stop waiting."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._given_up = False
        self._result: Any = None
        threading.Thread(target=self._run, args=(action,), name="scpi-open", daemon=True).start()

    def _run(self, action: Callable[[], Any]) -> None:
        try:
            result: Any = action()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            result = error
        with self._lock:
            self._result = result
            late = self._given_up
            self._done.set()
        if late and not isinstance(result, Exception):
            _close(result)

    def wait(self, timeout_s: float) -> Any:
        """Return the resource or the error, None after the time."""
        self._done.wait(timeout_s)
        with self._lock:
            self._given_up = not self._done.is_set()
            return self._result


class _Guard:
    """Keep pyvisa-py's TCP sessions from spinning on a closed connection, and from waiting longer than was said.

    Its readers take the empty read of a closed connection for a pause and ask again until the time is over; its RPC
    calls add a second to every limit. Both are mended on the session's own objects.
    """

    def __init__(self, resource: Any, limit_s: float) -> None:
        self.vxi11_error = 0
        self.timed_out = False
        self._sock: _Watched | None = None
        sessions = getattr(resource.visalib, "sessions", None) or {}
        session: Any = sessions.get(resource.session)
        interface = getattr(session, "interface", None)
        if isinstance(interface, socket.socket):
            self._sock = session.interface = _Watched(interface)
        elif isinstance(getattr(interface, "sock", None), socket.socket):
            assert interface is not None
            self._sock = interface.sock = _Watched(interface.sock)
            self._bound(interface, limit_s)

    def _bound(self, client: Any, limit_s: float) -> None:
        call, write = client.do_call, client.device_write

        def do_call() -> None:
            client.timeout = min(client.timeout, limit_s)
            try:
                call()
            except TimeoutError:
                self.timed_out = True  # its callers turn it into an error of input and output
                raise

        def device_write(*arguments: Any) -> Any:
            answer = write(*arguments)
            self.vxi11_error = int(answer[0])
            return answer

        client.do_call, client.device_write = do_call, device_write

    def cut(self) -> None:
        """Cut the connection, so that closing does not wait for an answer."""
        if self._sock is not None:
            self._sock.cut()


class _Watched:
    """Stand for a socket; a connection that the other side closed is an error, not an empty read."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def recv(self, size: int) -> bytes:
        data = self._inner.recv(size)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the instrument closed the connection")
        return data

    def cut(self) -> None:
        try:
            self._inner.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def failure(error: Exception, address: Address, where: str) -> MeterError | MissingDependency:
    """Return joulelab's error for a link that could not be opened."""
    what, said = f"cannot open {address.resource}", _said(error)
    number = getattr(error, "errno", None)
    if isinstance(error, ValueError) and "install" in said:
        library = "pyusb" if address.kind == "usb" else "gpib-ctypes (and the driver linux-gpib)"
        return MissingDependency(what, where=where, why=said.splitlines()[0], next=f"install {library}")
    if number in (errno.EACCES, errno.EPERM):
        advice = f"join the group of {address.path} (often dialout)" if address.path else _advice(where)
        return Denied(what, where=where, why="permission denied", next=advice)
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO) or "No device found" in said:
        return Unavailable(what, where=where, why=said, next=_advice(where))
    if link := re.fullmatch(r"error creating link: (\d+)", said):
        said = "another client holds the instrument" if int(link[1]) == _BUSY else f"no VXI-11 link (error {link[1]})"
    return ReadFailed(what, where=where, why=said, next=_advice(where))


def _close(resource: Any) -> None:
    try:
        resource.close()
    except Exception as error:  # noqa: BLE001 - it is gone already, which is what was wanted
        logging.getLogger(__name__).debug("closing: %s", error)


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or "VI_ERROR_TMO" in str(error)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _advice(where: str) -> str:
    return f"run joulelab doctor {where.removeprefix('meter ')}"


def _pyvisa(where: str) -> Any:
    try:
        with _Without("numpy", "psutil"):  # neither is needed here, and both cost the recorder time and memory
            import pyvisa
            import pyvisa_py  # noqa: F401 - the backend that "@py" names
    except ImportError as error:
        why = f"{error.name} is not installed"
        raise MissingDependency(
            "instruments are reached through pyvisa", where=where, why=why, next="pip install 'joulelab[analyzer]'"
        ) from error
    # It logs tracebacks of what it raises anyway.
    logging.getLogger("pyvisa").addHandler(logging.NullHandler())
    return pyvisa


class _Without(MetaPathFinder):
    """Let imports of this thread do without some libraries that they would take if they were there."""

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
