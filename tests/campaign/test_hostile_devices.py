"""Devices that lie: Redfish services without end and MQTT brokers that send nonsense cost bounded time and memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.waiting import until

from joulelab.core.errors import JoulelabError, ReadFailed, Unavailable
from joulelab.instruments import redfish
from joulelab.instruments.http import HttpClient
from joulelab.instruments.plug.client import PACKET_BYTES, MqttListener
from joulelab.instruments.prometheus.client import PrometheusClient
from joulelab.instruments.redfish.plan import Wanted, plan_readings
from joulelab.instruments.redfish.walk import LONGEST_S, MEMBERS, MOST_ANSWERS, MOST_BYTES, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = {"RedfishVersion": "1.6.0", "Chassis": {"@odata.id": "/c"}, "Systems": {"@odata.id": "/s"}}
POWER = {"PowerControl": [{"Name": "System Power Control", "PowerConsumedWatts": 412}]}
NODE = {"@odata.type": "#Chassis.v1.Chassis", "Id": "1", "ChassisType": "RackMount", "Power": {"@odata.id": "/c/1/P"}}
NODE |= {"Links": {"ComputerSystems": [{"@odata.id": "/s/1"}]}}
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # 1.7e9 s after 1970
SYSTEM = {"@odata.type": "#ComputerSystem.v1.ComputerSystem", "Id": "1", "Links": {"Chassis": [{"@odata.id": "/c/1"}]}}


def list_one(path: str, **more: Any) -> dict[str, Any]:
    return {"Members": [{"@odata.id": path}], **more}


GOOD: dict[str, Any] = {"/c": list_one("/c/1"), "/c/1": NODE, "/c/1/P": POWER, "/s": list_one("/s/1"), "/s/1": SYSTEM}


class HostileService:
    """Answer by a function where the good tree has nothing, or instead of it; the clock moves with each answer."""

    def __init__(self, answer: Callable[[str, int], Any], seconds: float = 0.001, size: int = 0) -> None:
        self.asked, self.now_ns = 0, 0
        self._answer, self._step_ns, self._size = answer, round(seconds * 1e9), size

    def get(self, path: str) -> Any:
        self.asked += 1
        self.now_ns += self._step_ns
        assert self.asked <= MOST_ANSWERS, "the search does not end"
        found = self._answer(path, self.asked)
        if found is None:
            found = GOOD.get(path)
        if found is None:
            raise Unavailable("not there", why=path)
        return found

    def open(self, sources: tuple[str, ...] | None = None) -> int:
        """Plan the readings; return the number of streams. Raises JoulelabError."""
        counted = {"now": lambda: self.now_ns, "count_bytes": lambda: self.asked * self._size}
        walker = Walker(self.get, ROOT, **counted)
        found, _ = plan_readings(walker, Wanted({"label": "bmc"}, "bmc", 1.0, sources=sources))
        return len(found)


def page_forever(path: str, number: int, rows: int = 0) -> Any:
    """Answer a collection whose pages never end."""
    if path.startswith("/c") and path != "/c/1" and "/P" not in path:
        return {"Members": [{"@odata.id": f"/m/{number}/{k}"} for k in range(rows)],
                "Members@odata.nextLink": f"/c?page={number}"}  # fmt: skip
    return {} if path.startswith("/m/") else None


def nest(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"Oem": found}
    return found


def test_the_good_tree_is_read() -> None:
    service = HostileService(lambda path, number: None)
    assert service.open() == 1
    assert service.asked < 20


def answer_at(wanted: str, body: Any) -> Callable[[str, int], Any]:
    """Answer one address with something else."""
    return lambda path, number: body if path == wanted else None


def contain_forever(path: str, number: int) -> Any:
    """Answer each chassis with another one in it and around it."""
    inside, around = [{"@odata.id": f"/c/{number}y"}], {"@odata.id": f"/c/{number}x"}
    return NODE | {"Links": {"ContainedBy": around, "Contains": inside}} if re.fullmatch("/c/[^/]+", path) else None


def list_many(path: str, _: int) -> Any:
    """Answer with a collection of 100,000 members."""
    if path == "/c":
        return {"Members": [{"@odata.id": f"/m/{k}"} for k in range(100_000)]}
    return {} if path.startswith("/m") else None


SELF = {"@odata.id": "/c/1"}


@every_row(
    ("name", "answer"),
    [
        ("empty pages without end", page_forever),
        ("full pages without end", lambda path, number: page_forever(path, number, 64)),
        ("a page that leads to itself", answer_at("/c", list_one("/c/1", **{"Members@odata.nextLink": "/c"}))),
        ("links in a circle", answer_at("/c/1", NODE | {"Links": {"ContainedBy": SELF, "Contains": [SELF]}})),
        ("a chassis in a chassis for ever", contain_forever),
        ("deep nesting", answer_at("/c/1", NODE | {"Oem": nest(900)})),
        ("a list for an object", answer_at("/c/1", [])),
        ("text for a list", answer_at("/c", {"Members": "x" * 9999})),
        ("links to another host", answer_at("/c", list_one("https://evil.example/c/1"))),
        ("links that are no addresses", answer_at("/c", list_one("\r\nHost: evil"))),
        ("many members", list_many),
    ],
)
def test_hostile_trees_end(name: str, answer: Callable[[str, int], Any]) -> None:
    for sources in (None, ("node",)):
        service = HostileService(answer)
        with contextlib.suppress(JoulelabError):  # read by what is right in it, or refused in words
            assert service.open(sources) >= 1, name
        assert service.asked <= MOST_ANSWERS


def test_limits_are_those_of_a_search_that_does_not_end() -> None:
    with raises_code("read-failed.endless"):
        HostileService(page_forever).open(("node",))
    with raises_code("read-failed.slow"):
        HostileService(page_forever, seconds=5.0).open(("node",))
    large = HostileService(page_forever, size=4_000_000)
    with raises_code("read-failed.endless"):
        large.open(("node",))
    assert large.asked * 4_000_000 < 2 * MOST_BYTES
    assert MEMBERS < MOST_ANSWERS
    assert LONGEST_S <= 900


# ---- over real connections


@contextlib.contextmanager
def serve(talk: Callable[[socket.socket, int], None]) -> Iterator[int]:
    """Listen on loopback and hand each connection with its number to `talk`, in a thread; return the port."""
    ended = threading.Event()
    numbers = itertools.count()

    def handle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(120)
            talk(connection, next(numbers))

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                threading.Thread(target=handle, args=(place.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as place:
        place.settimeout(0.1)
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            ended.set()
            thread.join(10)


@pytest.mark.system
def test_a_head_that_comes_byte_by_byte_ends_with_the_request() -> None:
    go_on, whole = threading.Event(), threading.Event()

    def drip(connection: socket.socket, _: int) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Filler: ")
        for _ in range(500):
            connection.sendall(b"x")
            if go_on.wait(0.02):
                return
        whole.set()

    with serve(drip) as port, HttpClient(f"http://127.0.0.1:{port}", timeout_s=0.3) as client:
        with raises_code("read-failed.no-answer"):
            client.get_json("/redfish/v1/")
        assert not whole.is_set(), "it waited for the end of the head"
        go_on.set()


@pytest.mark.system
def test_huge_answers_redirects_and_foreign_links_stay_with_the_bmc() -> None:
    asked: list[str] = []

    def answer(connection: socket.socket, _: int) -> None:
        while request := connection.recv(65536).decode():
            path = request.split()[1]
            asked.append(path)
            head, body = "200 OK", json.dumps(ROOT | {"Chassis": {"@odata.id": "//127.0.0.2:1/c"}})
            if path == "/huge":
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b"[" * 65536)
            if path == "/away":
                head, body = "302 Found\r\nLocation: http://127.0.0.2:1/x", ""
            head += f"\r\nDate: {DATE}\r\nContent-Length: {len(body)}"
            connection.sendall(f"HTTP/1.1 {head}\r\n\r\n{body}".encode())

    with serve(answer) as port:
        with HttpClient(f"http://127.0.0.1:{port}", timeout_s=60.0) as client:
            for path, code in (("/huge", "read-failed.too-long"), ("/away", "read-failed.redirect")):
                with raises_code(code):
                    client.get_json(path)
            assert client.read_server_utc_ns() == 1_700_000_000 * 10**9
        config = {"address": f"http://127.0.0.1:{port}", "auth": "none", "timeout_s": 60.0}
        with pytest.raises(JoulelabError):
            redfish.open_meter(config)
    assert "//127.0.0.2:1/c" in asked, "the link of another host is a path of this one"


CONNACK, TOPIC = b"\x20\x02\x00\x00", b"tele/desk/SENSOR"


def publish(payload: bytes, *, flags: int = 0, mid: bytes = b"") -> bytes:
    """Return a PUBLISH packet."""
    body = len(TOPIC).to_bytes(2, "big") + TOPIC + mid + payload
    length, left = b"", len(body)
    while True:
        left, digit = divmod(left, 128)[0], left % 128
        length += bytes([digit | (0x80 if left else 0)])
        if not left:
            return bytes([0x30 | flags]) + length + body


def greet(connection: socket.socket) -> None:
    """Take a CONNECT and a SUBSCRIBE as a broker does."""
    connection.recv(4096)
    connection.sendall(CONNACK)
    subscribe = connection.recv(4096)
    connection.sendall(b"\x90\x03" + subscribe[2:4] + b"\x00")


NASTY: dict[str, bytes] = {
    "garbage": bytes(range(1, 256)) * 8,
    "a packet that is cut off": b"\x30\x01\x00",
    "a length without end": b"\x30\xff\xff\xff\xff\xff",
    "256 MB": b"\x30\xff\xff\xff\x7f" + bytes(4 * PACKET_BYTES),
    "messages that are kept": b"".join(publish(bytes(50_000), flags=4, mid=k.to_bytes(2, "big")) for k in range(1, 9)),
    "a topic that is no text": b"\x30\x05\x00\x02\xff\xfex",
    "retained nonsense": publish(b"{", flags=1),
    "nothing": b"",
}


@pytest.mark.system
def test_a_broker_that_sends_nonsense_is_left_and_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = list(NASTY)

    def talk(connection: socket.socket, number: int) -> None:
        greet(connection)
        if number < len(words):
            connection.sendall(NASTY[words[number]])
            if words[number] in ("retained nonsense", "a topic that is no text", "nothing"):
                return  # and hangs up
        else:
            connection.sendall(publish(b"good"))
        while connection.recv(4096):
            pass

    with serve(talk) as port:
        heard = MqttListener("127.0.0.1", port, (TOPIC.decode(),), timeout_s=60.0)
        monkeypatch.setattr(heard._client, "_reconnect_wait", lambda: None)  # a second or more otherwise
        try:
            until(lambda: heard.get_latest()[0] == b"good", "the good message after all the others")
            assert not heard._client._in_messages
            assert len(heard._client._in_packet["packet"]) <= PACKET_BYTES
        finally:
            heard.close_connection()


def test_reading_from_a_service_that_became_hostile_is_a_gap() -> None:
    class Client:
        label, timeout_s = "bmc", 1.0
        doc: Any = POWER

        def get_json(self, path: str, **_: Any) -> Any:
            return self.doc

    found, _ = plan_readings(Walker(HostileService(lambda path, number: None).get, ROOT), Wanted({}, "bmc", 1.0))
    client, now = Client(), itertools.count(0, 10**9)
    meter = redfish.RedfishMeter(client, found, [], now=lambda: next(now), pause=lambda _: None)  # type: ignore[arg-type]
    (stream,) = meter.streams()
    assert meter.read(stream)[0] == 412
    for doc in ([], None, "x", {}, {"PowerControl": nest(900)}, {"PowerControl": [{"PowerConsumedWatts": "412"}]}):
        client.doc = doc
        with pytest.raises(ReadFailed):
            meter.read(stream)


class ClockedServer:
    """Stand for a connection to a server whose clock shows a time."""

    timeout_s = 1.0

    def __init__(self, utc_ns: int | None) -> None:
        self._utc_ns = utc_ns

    def read_server_utc_ns(self) -> int | None:
        return self._utc_ns


def test_samples_are_refused_while_the_clocks_of_two_hosts_differ() -> None:
    now_ns = 1_700_000_000 * 10**9
    for apart_s in (None, 0, 29, -29):
        server = ClockedServer(None if apart_s is None else now_ns + apart_s * 10**9)
        PrometheusClient(server, "prom").check_clocks(now_ns)  # type: ignore[arg-type]
    for apart_s in (31, -31, 7200, -7200):
        with raises_code("read-failed.clocks-differ"):
            PrometheusClient(ClockedServer(now_ns + apart_s * 10**9), "prom").check_clocks(now_ns)  # type: ignore[arg-type]
