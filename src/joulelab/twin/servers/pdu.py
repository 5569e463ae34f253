"""Serve a rack PDU or UPS by SNMP, v2c and v3: net-snmp's snmpd, fed with the cords of the node by `pass_persist`.

snmpd listens on a port of its own; clients talk to a proxy in front of it, which applies the flaws (silent, late,
garbled). `refuse` gives clients other credentials than snmpd's. snmpd ends with this process, even after a crash: a
shell that reads from a pipe of this process kills it.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import json
import os
import random
import secrets
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, MissingDependency, Unavailable
from joulelab.core.text import suggest_name
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel
from joulelab.twin.servers import _pdu_relay
from joulelab.twin.servers._pdu_trees import MAKERS, PduBench
from joulelab.twin.servers.server_process import ServiceInfo, keep_file, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from joulelab.twin.servers._pdu_trees import Tree
    from joulelab.twin.truth import Truth


class Feeder:
    """Serve a tree on a Unix socket, for `_pdu_relay`, from the beginning of the block to its end.

    The socket has a name and no file, so that a killed server leaves nothing behind.
    """

    def __init__(self, tree: Tree, name: str) -> None:
        self.name = name
        self._tree = tree
        self.names = sorted(tree)
        self._socket = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._socket.bind(f"\0{self.name}")
        self._socket.listen()
        threading.Thread(target=self._accept_links, name="pdu-feeder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept_links(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return  # closed: the block has ended
            threading.Thread(target=self._serve_link, args=(link,), name="pdu-feed", daemon=True).start()

    def _serve_link(self, link: socket.socket) -> None:
        """Answer line by line; each answer begins with its number of lines."""
        with link, link.makefile("rw") as lines:
            order: list[str] = []
            for line in lines:
                order.append(line.strip())
                answer = self.answer_order(order)
                if answer is not None:
                    order = []
                with contextlib.suppress(BrokenPipeError):
                    lines.write("".join(f"{part}\n" for part in (len(answer or ()), *(answer or ()))))
                    lines.flush()

    def answer_order(self, order: list[str]) -> list[str] | None:
        """Return the answer to an order, None while the order is incomplete."""
        match order:
            case ["PING"]:
                return ["PONG"]
            case ["get", oid]:
                return self._read_value(_parse_oid(oid))
            case ["getnext", oid]:
                at = bisect.bisect_right(self.names, _parse_oid(oid))
                return self._read_value(self.names[at]) if at < len(self.names) else ["NONE"]
            case ["set", _, _]:
                return ["not-writable"]
            case ["get" | "getnext"] | ["set"] | ["set", _]:
                return None
            case _:
                return ["NONE"]

    def _read_value(self, oid: tuple[int, ...]) -> list[str]:
        read = self._tree.get(oid)
        if read is None:
            return ["NONE"]
        kind, value = read()
        return ["." + ".".join(map(str, oid)), kind, str(value)]


def _parse_oid(oid: str) -> tuple[int, ...]:
    return tuple(int(part) for part in oid.strip(".").split(".") if part.isdecimal())


_CLIENTS = 256
_BYTES = 65_535


class Proxy:
    """Forward UDP datagrams from a port of loopback to snmpd and back; a thread serves until the block ends.

    The panel's flaws apply to whole datagrams: a silent panel forwards no request, an answer waits for the latency, a
    garbled answer is noise of the same length.
    """

    def __init__(self, panel: Panel, upstream: int, port: int = 0) -> None:
        self._panel, self._upstream = panel, upstream
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", port))
        self._front.setblocking(False)  # noqa: FBT003
        self.port: int = self._front.getsockname()[1]
        self._behind: dict[Any, socket.socket] = {}
        self._waiting: list[tuple[int, int, bytes, Any]] = []
        self._noise = random.Random(port)  # noqa: S311 noise, no secret
        self._wake, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._forward_packets, name="pdu-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._front, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(b"x")
        self._thread.join(5)
        for opened in (self._front, self._wake, self._end, *self._behind.values()):
            opened.close()
        self._selector.close()

    def _forward_packets(self) -> None:
        while True:
            left = (self._waiting[0][0] - monotonic_ns()) / NS if self._waiting else None
            for key, _ in self._selector.select(None if left is None else max(left, 0)):
                if key.fileobj is self._wake:
                    return
                if key.fileobj is self._front:
                    self._forward_request()
                else:
                    self._queue_answer(key.fileobj, key.data)
            while self._waiting and self._waiting[0][0] <= monotonic_ns():
                _, _, data, client = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):  # the client may be gone
                    self._front.sendto(data, client)

    def _forward_request(self) -> None:
        try:
            data, client = self._front.recvfrom(_BYTES)
        except OSError:
            return  # an ICMP error: the client is gone
        if self._panel.is_silent():
            return
        with contextlib.suppress(OSError):
            self._open_upstream(client).send(data)

    def _open_upstream(self, client: Any) -> socket.socket:
        """Return the socket to snmpd that belongs to a client."""
        if client not in self._behind:
            if len(self._behind) >= _CLIENTS:
                oldest = self._behind.pop(next(iter(self._behind)))
                self._selector.unregister(oldest)
                oldest.close()
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            opened.setblocking(False)  # noqa: FBT003
            opened.connect(("127.0.0.1", self._upstream))
            self._selector.register(opened, selectors.EVENT_READ, client)
            self._behind[client] = opened
        return self._behind[client]

    def _queue_answer(self, opened: Any, client: Any) -> None:
        try:
            data = opened.recv(_BYTES)
        except OSError:
            return
        if self._panel.is_garbled():
            data = b"\x30" + self._noise.randbytes(len(data) - 1)
        due = monotonic_ns() + round(self._panel.flaws.latency_s * NS)
        heapq.heappush(self._waiting, (due, len(self._waiting) + self._noise.getrandbits(32), data, client))


USER = "meter"
START_S = 10.0
# Kill the child when standard input ends, which it does when the owner ends or crashes.
_GUARD = '"$@" & child=$!; cat >/dev/null; kill "$child"; wait "$child"'
_WHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_SECRETS = ("community", "password", "privacy_password")


@dataclass(frozen=True, slots=True, kw_only=True)
class PduFlaws(PanelFlaws):
    """Describe a PDU: its maker, the login, and when its values become unknown."""

    vendor: str = "sentry4"
    login: str = "v3"  # or v2c: login of the entry; the server accepts both
    sentinel_at_s: float | None = None  # values are -1 from then on, for makers that have this value

    def __post_init__(self) -> None:
        super(PduFlaws, self).__post_init__()  # a class with slots is made twice
        if self.vendor not in MAKERS:
            raise ConfigError(f"vendor is {self.vendor!r}", where="pdu", next=suggest_name(self.vendor, list(MAKERS)))
        if self.login not in ("v2c", "v3"):
            raise ConfigError(f"login is {self.login!r}", where="pdu", next="valid: v2c, v3")


FLAWS = PduFlaws()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: PduFlaws, port: int = 0) -> Iterator[ServiceInfo]:
    """Serve until the end of the block. Raises MissingDependency where snmpd is not installed, Unavailable."""
    directory.mkdir(parents=True, exist_ok=True)
    known = make_credentials(directory)
    tree, object_id, description, _ = MAKERS[flaws.vendor]
    bench = PduBench(truth, flaws)
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(serve_tree(tree(bench), (object_id, description), directory, known))
        proxy = stack.enter_context(Proxy(Panel(truth, "node.ac", flaws), upstream, port))
        entry = _make_entry(directory, flaws, known, bench, proxy.port)
        facts = {"engine": known["engine"], "snmpd_port": upstream}
        yield ServiceInfo({"pdu1": entry}, {"snmp": proxy.port}, facts=facts)


@contextlib.contextmanager
def serve_tree(tree: Tree, identity: tuple[str, str], directory: Path, known: Mapping[str, str]) -> Iterator[int]:
    """Serve a tree of objects by snmpd with `identity` (sysObjectID, sysDescr); yield the port.

    Raises MissingDependency where snmpd is not installed, Unavailable.
    """
    snmpd = shutil.which("snmpd") or shutil.which("snmpd", path=os.pathsep.join(_WHERE))
    if snmpd is None:
        raise MissingDependency("snmpd is not installed", where="pdu", why="it serves SNMP", next="apt install snmpd")
    with Feeder(tree, f"joulelab-pdu-{os.getpid()}-{secrets.token_hex(8)}") as feeder:
        port = _find_free_port()
        _write_config(directory, known, port, identity, feeder)
        with _run_snmpd(snmpd, directory):
            _wait_for_answer(port, known["community"], min(feeder.names), directory)
            yield port


def _make_entry(
    directory: Path, flaws: PduFlaws, known: Mapping[str, str], bench: PduBench, port: int
) -> dict[str, Any]:
    """Return the entry of a joulelab.toml that reads this server."""
    for key in _SECRETS:
        path = directory / key
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(12) if flaws.refuse else known[key])
    entry: dict[str, Any] = {"meter": "snmp", "address": f"127.0.0.1:{port}", "feeds": "node.ac", "period_s": 1.0}
    if MAKERS[flaws.vendor][3]:
        entry["outlets"] = list(range(1, bench.cords + 1))
    if flaws.login == "v2c":
        entry["community"] = {"file": str(directory / "community")}
    else:
        entry |= {"user": USER, "auth": "SHA", "password": {"file": str(directory / "password")}}
        entry |= {"privacy": "AES", "privacy_password": {"file": str(directory / "privacy_password")}}
    return entry


def make_credentials(directory: Path) -> dict[str, str]:
    """Return the credentials of this device: created once, then read from its directory."""
    made = {key: secrets.token_hex(12) for key in _SECRETS} | {"engine": "80001f8804" + secrets.token_hex(8)}
    known: dict[str, str] = json.loads(keep_file(directory / "credentials.json", json.dumps(made).encode))
    return known


def _write_config(
    directory: Path, known: Mapping[str, str], port: int, identity: tuple[str, str], feeder: Feeder
) -> None:
    # 1.3.6.1.4.1 and the maker, or 1.3.6.1.2.1 and the standard.
    bases = sorted({".".join(map(str, name[:7])) for name in feeder.names})
    relay = f"{sys.executable} -I -S {_pdu_relay.__file__} {feeder.name}"
    lines = [
        f"agentAddress udp:127.0.0.1:{port}",
        f"exactEngineID 0x{known['engine']}",
        "view device included .1.3.6.1.2.1.1",
        *(f"view device included .{base}" for base in bases),
        f"rocommunity {known['community']} 127.0.0.1 -V device",
        f'createUser {USER} SHA "{known["password"]}" AES "{known["privacy_password"]}"',
        f"rouser {USER} auth -V device",
        f"sysObjectID {identity[0]}",
        f"sysDescr {identity[1]}",
        *(f"pass_persist .{base} {relay}" for base in bases),
    ]
    path = directory / "snmpd.conf"
    path.touch(mode=0o600)
    path.write_text("\n".join(lines) + "\n")


@contextlib.contextmanager
def _run_snmpd(program: str, directory: Path) -> Iterator[None]:
    state = directory / "state"
    state.mkdir(exist_ok=True)
    words = [program, "-f", "-C", "-c", str(directory / "snmpd.conf"), "-Lf", str(directory / "snmpd.log"), "-M", ""]
    words += ["-p", str(directory / "snmpd.pid")]
    environ = os.environ | {"SNMP_PERSISTENT_DIR": str(state), "MIBS": ""}
    quiet = subprocess.DEVNULL
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", *words], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=environ
    )
    try:
        yield
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        try:
            guard.wait(5)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()


def _find_free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def _wait_for_answer(port: int, community: str, name: tuple[int, ...], directory: Path) -> None:
    """Ask snmpd until it answers, which also starts the relay. Raises Unavailable."""
    until = time.monotonic() + START_S
    message = _make_question(community, name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("127.0.0.1", port))
        while time.monotonic() < until:
            asking.settimeout(0.5)
            try:
                asking.send(message)
                if asking.recv(2000):
                    return
            except TimeoutError:
                continue
            except ConnectionRefusedError:
                time.sleep(0.02)
    log = directory / "snmpd.log"
    why = log.read_text(errors="replace")[-500:] if log.exists() else "it wrote no log"
    raise Unavailable("snmpd did not answer", where="pdu", why=why, next="look at snmpd.log in the directory")


def _make_question(community: str, name: tuple[int, ...]) -> bytes:
    """Encode a GET of one name by version 2c; lengths are below 128."""

    def encode_part(tag: int, content: bytes) -> bytes:
        return bytes((tag, len(content))) + content

    digits = bytearray((name[0] * 40 + name[1],))
    for number in name[2:]:
        digits += bytes(0x80 | number >> shift & 0x7F for shift in (14, 7) if number >> shift) + bytes((number & 0x7F,))
    names = encode_part(0x30, encode_part(0x30, encode_part(6, bytes(digits)) + b"\x05\0"))
    ask = encode_part(0xA0, b"\x02\x01\x07\x02\x01\0\x02\x01\0" + names)
    return encode_part(0x30, b"\x02\x01\x01" + encode_part(4, community.encode()) + ask)


if __name__ == "__main__":
    run_server(serve, FLAWS)
