"""Receive SNMP traps and informs by pysnmp, one engine per process on the shared loop; hand each to who waits."""

from __future__ import annotations

import itertools
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Denied, MissingDependency, Unavailable
from joulelab.instruments.loop import shared_loop
from joulelab.instruments.snmp.usm import AUTH, Community, User

if TYPE_CHECKING:
    from collections.abc import Callable

TRAP_OID = "1.3.6.1.6.3.1.1.4.1.0"
_UPTIME = "1.3.6.1.2.1.1.3.0"
# What pysnmp adds to a trap of version 1: the community in plain text.
_COMMUNITY = "1.3.6.1.6.3.18.1.4.0"
_START_S = 20.0


@dataclass(frozen=True, slots=True)
class Trap:
    """Hold one trap: when it came (monotonic ns), from which address, its name, and its values by name."""

    t: int
    source: str
    oid: str
    values: dict[str, int | str]


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """Hold who waits for traps: on which port, from which addresses, under which login."""

    port: int
    addresses: frozenset[str]
    login: str
    heard: Callable[[Trap], None]


class Receiver:
    """Receive on any number of ports; a port is open while somebody listens on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Any = None
        self._listeners: list[Listener] = []
        self._domains: dict[int, tuple[int, ...]] = {}
        self._logins: dict[tuple[Any, ...], str] = {}
        self._numbers = itertools.count(1)

    def listen(
        self, port: int, host: str, login: Community | User, engine: bytes, heard: Callable[[Trap], None]
    ) -> Listener:
        """Call `heard`, on the loop's thread, for traps of a device. Raises MissingDependency, Denied, Unavailable."""
        addresses = frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
        with self._lock:
            opened = None if port in self._domains else bound("0.0.0.0", port)  # noqa: S104 traps come from elsewhere
            try:
                if opened is not None:
                    opened.setblocking(False)  # noqa: FBT003
                name = shared_loop().run(self._prepare(port, opened, login, engine), _START_S)
            except BaseException:
                if opened is not None:
                    opened.close()
                raise
            listener = Listener(port, addresses, name, heard)
            self._listeners.append(listener)
            return listener

    def leave(self, listener: Listener) -> None:
        """Stop listening; leaving twice is harmless."""
        with self._lock:
            if listener not in self._listeners:
                return
            self._listeners.remove(listener)
            if all(other.port != listener.port for other in self._listeners):
                shared_loop().run(self._close(listener.port), _START_S)

    async def _prepare(self, port: int, opened: socket.socket | None, login: Community | User, engine: bytes) -> str:
        config, udp = _pysnmp()
        if self._engine is None:
            self._engine = self._made()
        if opened is not None:
            domain = (*udp.DOMAIN_NAME, next(self._numbers))
            transport = udp.UdpTransport(loop=shared_loop().loop).open_server_mode(sock=opened)
            config.add_transport(self._engine, domain, transport)
            self._domains[port] = domain
        key: tuple[Any, ...] = (login.name,) if isinstance(login, Community) else (login, engine)
        if key not in self._logins:
            # pysnmp finds a user by the name in the message, so that is what it is called here.
            name = f"community {next(self._numbers)}" if isinstance(login, Community) else login.name
            self._register(config, login, engine, name)
            self._logins[key] = name
        return self._logins[key]

    def _register(self, config: Any, login: Community | User, engine: bytes, name: str) -> None:
        if isinstance(login, Community):
            config.add_v1_system(self._engine, name, login.name)
            return
        from pysnmp.proto.rfc1902 import OctetString

        auth = (1, 3, 6, 1, 6, 3, 10, 1, 1, AUTH[login.auth][2]) if login.auth else config.USM_AUTH_NONE
        config.add_v3_user(
            self._engine,
            login.name,
            auth,
            login.auth_password or None,
            _privacy(config, login.priv),
            login.priv_password or None,
            securityEngineId=OctetString(engine),
        )

    def _made(self) -> Any:
        from pysnmp.entity.engine import SnmpEngine
        from pysnmp.entity.rfc3413.ntfrcv import NotificationReceiver

        engine = SnmpEngine()
        current: dict[str, Any] = {}

        def remember(_engine: Any, _point: str, variables: dict[str, Any], _context: Any) -> None:
            current.update(variables)

        def came(_engine: Any, _ref: Any, _id: Any, _name: Any, pairs: Any, _context: Any) -> None:
            self._came(current, pairs)

        engine.observer.register_observer(remember, "rfc3412.receiveMessage:request")
        NotificationReceiver(engine, came)
        return engine

    def _came(self, message: dict[str, Any], pairs: Any) -> None:
        """Hand a trap to the listeners of its port and login: those at its address, or the only one there is."""
        source = str(message["transportAddress"][0])
        values = {str(name): _plain(value) for name, value in pairs if str(name) != _COMMUNITY}
        oid = str(values.pop(TRAP_OID, ""))
        values.pop(_UPTIME, None)
        trap = Trap(monotonic_ns(), source, oid, values)
        port = next((p for p, domain in self._domains.items() if domain == message["transportDomain"]), None)
        waiting = [w for w in self._listeners if w.port == port and w.login == str(message["securityName"])]
        at_address = [w for w in waiting if source in w.addresses]
        for listener in at_address or (waiting if len(waiting) == 1 else ()):
            listener.heard(trap)

    async def _close(self, port: int) -> None:
        config, _ = _pysnmp()
        domain = self._domains.pop(port)
        transport = config.get_transport(self._engine, domain)
        config.delete_transport(self._engine, domain)
        transport.close_transport()


_receiver: Receiver | None = None
_lock = threading.Lock()


def receiver() -> Receiver:
    """Return the receiver of this process; like the loop it lasts as long as the process does."""
    global _receiver
    with _lock:
        if _receiver is None:
            _receiver = Receiver()
        return _receiver


def _pysnmp() -> tuple[Any, Any]:
    try:
        from pysnmp.carrier.asyncio.dgram import udp
        from pysnmp.entity import config
    except ImportError as error:
        raise MissingDependency(
            "pysnmp is not installed", where="snmp", why=str(error), next="pip install 'joulelab[snmp]'"
        ) from None
    return config, udp


def _privacy(config: Any, priv: str) -> Any:
    names = {
        "": "USM_PRIV_NONE",
        "AES": "USM_PRIV_CFB128_AES",
        "AES192": "USM_PRIV_CFB192_AES_BLUMENTHAL",
        "AES256": "USM_PRIV_CFB256_AES_BLUMENTHAL",
        "AES192C": "USM_PRIV_CFB192_AES",
        "AES256C": "USM_PRIV_CFB256_AES",
    }
    return getattr(config, names[priv])


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that traps to a UDP port arrive at. Raises Denied, Unavailable."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.bind((host, port))
    except PermissionError as error:
        opened.close()
        advice = (
            "use a port above 1023 here and on the device, or give the interpreter or the unit CAP_NET_BIND_SERVICE"
        )
        raise Denied(f"traps cannot be received on port {port} of {host}", why=str(error), next=advice) from None
    except OSError as error:
        opened.close()
        advice = "stop what listens there (snmptrapd), or choose another port"
        raise Unavailable(f"traps cannot be received on port {port} of {host}", why=str(error), next=advice) from None
    return opened


def _plain(value: Any) -> int | str:
    """Return a value of pysnmp as a number or text; bytes that are no text in hexadecimal."""
    if hasattr(value, "asOctets"):
        octets: bytes = value.asOctets()
        try:
            text = octets.decode()
        except UnicodeDecodeError:
            return f"0x{octets.hex()}"
        return text if text.isprintable() else f"0x{octets.hex()}"
    try:
        return int(value)
    except (TypeError, ValueError):
        return str(value.prettyPrint())
