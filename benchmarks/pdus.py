"""Print what polling 500 PDUs once a second costs one process: the recorder; our client, gufo-snmp and pysnmp alone.

A recorder polls 500 SNMP meters, each with its own thread and socket. They are answered by one process that keeps every
answer ready; its CPU does not count. The clients alone ask for the same 27 values. gufo-snmp is no dependency of
joulelab: pip install gufo-snmp to have it in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import importlib.util
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from joulelab.core.errors import ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.client import Community, Session, User
from joulelab.instruments.snmp.device import DeviceRow
from joulelab.instruments.snmp.security import CommunitySecurity
from joulelab.instruments.snmp.tables import Level, find_maker
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable

PORTS = 16
COMMUNITY = "bench"
VENDOR = "sentry4"
ROWS = {"unit": ["1.1"], "phase": ["1.1.1", "1.1.2", "1.1.3"], "bank": ["1.1.1", "1.1.2"]}
OUTLETS = [f"1.1.{n}" for n in range(1, 25)]
CLIENTS = ("ours", "gufo", "pysnmp")
HAS_GUFO = importlib.util.find_spec("gufo") is not None


class Responder:
    """Answer v2c requests for one PDU of 24 outlets; every answer is made once and then only gets its request id."""

    def __init__(self) -> None:
        self._tree: dict[tuple[int, ...], bytes] = {}
        self._add("1.3.6.1.2.1.1.1.0", ber.encode_element(ber.OCTETS, b"bench"))
        self._add("1.3.6.1.2.1.1.2.0", ber.encode_element(ber.OID, ber.encode_oid("1.3.6.1.4.1.1718.4")))
        for name, level in find_maker(VENDOR).levels.items():
            self._add_level(level, ROWS.get(name, OUTLETS))
        self._names = sorted(self._tree)
        self._ready: dict[tuple[bytes, int], tuple[bytes, bytes]] = {}

    def _add_level(self, level: Level, rows: list[str]) -> None:
        for row in rows:
            for column in level.names:
                self._add(f"{column}.{row}", ber.encode_element(ber.OCTETS, f"outlet {row}".encode()))
            for column in level.columns:
                self._add(DeviceRow(row).locate_channel(column), ber.encode_integer(98))

    def _add(self, oid: str, value: bytes) -> None:
        self._tree[tuple(map(int, oid.split(".")))] = value

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a request."""
        at, stop = _find_id(data)
        key = data[:at] + data[stop:], stop - at
        if key not in self._ready:
            self._ready[key] = self._make_answer(data)
        before, after = self._ready[key]
        return before + data[at:stop] + after

    def _make_answer(self, data: bytes) -> tuple[bytes, bytes]:
        at, end = ber.expect_element(data, 0, len(data), ber.SEQUENCE)
        head = at
        _, at = ber.read_integer(data, at, end)
        _, at = ber.read_octets(data, at, end)
        head_bytes = data[head:at]
        tag, at, end = ber.find_element(data, at, end)
        request_id, at = ber.read_integer(data, at, end)
        _, at = ber.read_integer(data, at, end)
        repetitions, at = ber.read_integer(data, at, end)
        at, end = ber.expect_element(data, at, end, ber.SEQUENCE)
        asked = []
        while at < end:
            at, stop = ber.expect_element(data, at, end, ber.SEQUENCE)
            start, here = ber.expect_element(data, at, stop, ber.OID)
            asked.append(tuple(map(int, ber.decode_oid(data[start:here]).split("."))))
            at = stop
        pairs = b"".join(self._pairs(tag, asked, repetitions))
        body = (
            ber.encode_integer(request_id)
            + ber.encode_integer(0)
            + ber.encode_integer(0)
            + ber.encode_element(ber.SEQUENCE, pairs)
        )
        whole = ber.encode_element(ber.SEQUENCE, head_bytes + ber.encode_element(ber.RESPONSE, body))
        at, stop = _find_id(whole)
        return whole[:at], whole[stop:]

    def _pairs(self, tag: int, asked: list[tuple[int, ...]], repetitions: int) -> list[bytes]:
        if tag == ber.GET:
            return [_pair(name, self._tree.get(name, b"\x81\x00")) for name in asked]
        pairs = []
        for name in asked:
            at = bisect.bisect_right(self._names, name)
            found = self._names[at : at + max(repetitions, 1)]
            pairs += [_pair(one, self._tree[one]) for one in found] or [_pair(name, b"\x82\x00")]
        return pairs


def _pair(name: tuple[int, ...], value: bytes) -> bytes:
    return ber.encode_element(
        ber.SEQUENCE, ber.encode_element(ber.OID, ber.encode_oid(".".join(map(str, name)))) + value
    )


def _find_id(data: bytes) -> tuple[int, int]:
    """Return where the bytes of the request id begin and end."""
    at, end = ber.expect_element(data, 0, len(data), ber.SEQUENCE)
    _, at = ber.read_integer(data, at, end)
    _, at = ber.read_octets(data, at, end)
    _, at, end = ber.find_element(data, at, end)
    return ber.expect_element(data, at, end, ber.INTEGER)


def respond() -> None:
    """Answer on some ports until standard input ends; the ports are printed first."""
    responder, selector = Responder(), selectors.DefaultSelector()
    ports = []
    for _ in range(PORTS):
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.bind(("127.0.0.1", 0))
        ports.append(opened.getsockname()[1])
        selector.register(opened, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print(json.dumps(ports), flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            data, client = key.fileobj.recvfrom(65_535)
            try:
                answer = responder.answer(data)
            except ReadFailed:
                continue  # SNMPv3, which a meter tries when it heard nothing
            key.fileobj.sendto(answer, client)


def cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process in s."""
    return sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat")) * 1e-9


def polled(count: int, ports: list[int], seconds: float) -> dict[str, float]:
    """Let a recorder poll the meters; return CPU s/s, memory in MB, shares of late and missed polls, gaps."""
    meters = [
        {
            "meter": "snmp",
            "name": f"pdu{n}",
            "config": {"address": f"127.0.0.1:{ports[n % PORTS]}", "community": COMMUNITY, "outlets": [1, 2]}
            | {"label": f"pdu{n}", "period_s": 1.0, "parts": 2},
        }
        for n in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        pipe = subprocess.PIPE
        recorder = subprocess.Popen([sys.executable, "-m", "joulelab.recorder"], stdin=pipe, stdout=pipe)
        assert recorder.stdin is not None
        assert recorder.stdout is not None
        plan = {"host_dir": folder, "host": "bench", "owner_pid": os.getpid(), "meters": meters, "period_s": 1.0}
        began = time.monotonic()
        recorder.stdin.write(json.dumps(plan | {"ready_s": 60}).encode() + b"\n")
        recorder.stdin.flush()
        recorder.stdout.readline()
        opening = time.monotonic() - began
        time.sleep(2)
        begin, used = time.monotonic(), cpu_s(recorder.pid)
        time.sleep(seconds)
        spent, took = cpu_s(recorder.pid) - used, time.monotonic() - begin
        memory = psutil.Process(recorder.pid).memory_info().rss / 1e6
        recorder.stdin.write(b'{"do":"finish","tail_s":0.1,"id":1}\n')
        recorder.stdin.flush()
        recorder.stdout.read()
        recorder.wait(30)
        lines = (Path(folder) / "events.0.jsonl").read_text().splitlines()
    return {"cpu": spent / took, "memory": memory, "opening": opening} | counted([json.loads(line) for line in lines])


def counted(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the shares of late and missed polls, how many meters opened, and how many readings failed."""
    late = [e for e in events if e["event"] == "late"]
    ticks = max(sum(e["ticks"] + e["missed"] for e in late), 1)
    return {
        "late": sum(e["count"] for e in late) / ticks,
        "missed": sum(e["missed"] for e in late) / ticks,
        "ticks": ticks,
        "open": len({e["meter"] for e in events if e["event"] == "meter" and e["status"] == "open"}),
        "gaps": sum(e["event"] == "gap" for e in events),
    }


def list_oids() -> list[str]:
    """Return as many names as a meter of two outlets asks for."""
    columns = [c for level in find_maker(VENDOR).levels.values() for c in level.columns][:27]
    return [DeviceRow("1.1.1").locate_channel(column) for column in columns]


def make_client(kind: str, port: int) -> Callable[[], Any]:
    """Return a function that asks one device once."""
    oids = list_oids()
    if kind == "ours":
        session = Session("127.0.0.1", port, Community(COMMUNITY), timeout_s=2, where="bench")
        return lambda: session.get(oids)
    if kind == "gufo":
        from gufo.snmp.sync import SnmpSession

        theirs = SnmpSession("127.0.0.1", port, COMMUNITY, timeout=2)
        return lambda: theirs.get_many(oids)
    names = ber.encode_names([ber.encode_oid(oid) for oid in oids])
    request = ber.encode_request(ber.GET, 1 << 25, names)
    message = CommunitySecurity(Community(COMMUNITY)).frame_request(request, 1 << 25)
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.connect(("127.0.0.1", port))
    opened.settimeout(2)

    def ask() -> bytes:
        opened.send(message)
        return opened.recv(65_535)

    return ask


def poll_with_threads(kind: str, count: int, ports: list[int], seconds: float) -> int:
    """Ask each device once a second in a thread of its own; return how many requests were answered."""
    answered = [0] * count
    until = time.monotonic() + seconds

    def poll(number: int) -> None:
        ask = make_client(kind, ports[number % PORTS])
        due = time.monotonic() + number / count
        while due < until:
            time.sleep(max(due - time.monotonic(), 0))
            ask()
            answered[number] += 1
            due = max(due + 1, time.monotonic() - 1)

    threads = [threading.Thread(target=poll, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


async def poll_with_pysnmp(count: int, ports: list[int], seconds: float) -> int:
    """Ask each device once a second in a task of its own, by one engine; return how many requests were answered."""
    from pysnmp.hlapi.v3arch import asyncio as hlapi

    engine, oids, answered = hlapi.SnmpEngine(), list_oids(), 0
    until = time.monotonic() + seconds

    async def poll(number: int) -> None:
        nonlocal answered
        target = await hlapi.UdpTransportTarget.create(("127.0.0.1", ports[number % PORTS]), timeout=2, retries=0)
        due = time.monotonic() + number / count
        while due < until:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            asked = [hlapi.ObjectType(hlapi.ObjectIdentity(oid)) for oid in oids]
            login = hlapi.CommunityData(COMMUNITY)
            wrong, *_ = await hlapi.get_cmd(engine, login, target, hlapi.ContextData(), *asked, lookupMib=False)
            answered += not wrong
            due = max(due + 1, time.monotonic() - 1)

    await asyncio.wait([asyncio.create_task(poll(number)) for number in range(count)], timeout=seconds + 5)
    return answered


def run_client(kind: str, count: int, ports: list[int], seconds: float) -> None:
    """Let one kind of client poll all devices; print what it took as JSON."""
    begin, used = time.monotonic(), time.process_time()
    if kind == "pysnmp":
        answered = asyncio.run(poll_with_pysnmp(count, ports, seconds))
    else:
        answered = poll_with_threads(kind, count, ports, seconds)
    took = time.monotonic() - begin
    memory = psutil.Process().memory_info().rss / 1e6
    cpu = time.process_time() - used
    print(
        json.dumps({"cpu": cpu / took, "share": answered / (count * seconds), "ms": 1e3 * cpu / answered, "mb": memory})
    )


def print_single(repeats: int) -> None:
    """Print the CPU time of one request for 20 values to net-snmp's snmpd, by each client."""
    columns = [c for level in find_maker(VENDOR).levels.values() for c in level.columns if "8.3.1" in c.oid]
    oids = [DeviceRow(f"1.1.{n}").locate_channel(column) for n in range(1, 5) for column in columns]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Truth.create(folder / "truth", Node()).close()
        with ServerProcess("pdu", folder / "truth", folder / "pdu") as server:
            known = json.loads((folder / "pdu" / "credentials.json").read_text())
            port = server.served.ports["snmp"]
            user = User("meter", "SHA", known["password"], "AES", known["privacy_password"])
            print(f"one request for {len(oids)} values to snmpd, CPU ms of the client")
            for kind, login in (("v2c", Community(known["community"])), ("v3 authPriv", user)):
                session = Session("127.0.0.1", port, login, timeout_s=5, where="bench")
                found = {"ours": _time_cpu(lambda session=session: session.get(oids), repeats)}  # type: ignore[misc]
                if HAS_GUFO:
                    found["gufo"] = _time_cpu(_make_gufo(port, login, oids), repeats)
                found["pysnmp"] = asyncio.run(_time_pysnmp(port, login, oids, repeats))
                print(f"  {kind:12s}" + "".join(f"  {client} {ms:6.3f}" for client, ms in found.items()))


def _make_gufo(port: int, login: Community | User, oids: list[str]) -> Callable[[], Any]:
    from gufo.snmp import Aes128Key, Sha1Key
    from gufo.snmp import User as GufoUser
    from gufo.snmp.sync import SnmpSession

    if isinstance(login, Community):
        session = SnmpSession("127.0.0.1", port, login.name, timeout=5)
    else:
        auth, priv = Sha1Key(login.auth_password.encode()), Aes128Key(login.priv_password.encode())
        session = SnmpSession("127.0.0.1", port, user=GufoUser(login.name, auth_key=auth, priv_key=priv), timeout=5)
        session.refresh()
    return lambda: session.get_many(oids)


def _time_cpu(ask: Callable[[], Any], repeats: int) -> float:
    ask()
    used = time.thread_time()
    for _ in range(repeats):
        ask()
    return (time.thread_time() - used) / repeats * 1e3


async def _time_pysnmp(port: int, login: Community | User, oids: list[str], repeats: int) -> float:
    from pysnmp.hlapi.v3arch import asyncio as hlapi

    auth: Any = hlapi.CommunityData(login.name)
    if isinstance(login, User):
        keys = {"authProtocol": hlapi.USM_AUTH_HMAC96_SHA, "privProtocol": hlapi.USM_PRIV_CFB128_AES}
        auth = hlapi.UsmUserData(login.name, login.auth_password, login.priv_password, **keys)
    engine = hlapi.SnmpEngine()
    target = await hlapi.UdpTransportTarget.create(("127.0.0.1", port))
    used = 0.0
    for number in range(repeats + 1):
        asked = [hlapi.ObjectType(hlapi.ObjectIdentity(oid)) for oid in oids]
        wrong, status, _, _ = await hlapi.get_cmd(engine, auth, target, hlapi.ContextData(), *asked, lookupMib=False)
        assert not wrong, wrong
        assert not status, status
        if not number:
            used = time.process_time()  # the first one loads its MIBs
    spent = time.process_time() - used
    engine.close_dispatcher()
    return spent / repeats * 1e3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--respond", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.respond:
        respond()
        return
    if options.client:
        run_client(options.client, options.count, options.ports, options.seconds)
        return
    again = [sys.executable, "-m", "benchmarks.pdus"]
    found: dict[str, dict[str, float]] = {}
    with subprocess.Popen([*again, "--respond"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as responder:
        assert responder.stdin is not None
        assert responder.stdout is not None
        ports = json.loads(responder.stdout.readline())
        for kind in ("bare", *(kind for kind in CLIENTS if kind != "gufo" or HAS_GUFO)):
            words = ["--client", kind, "--ports", json.dumps(ports), "--count", str(options.count)]
            words += ["--seconds", str(options.seconds)]
            found[kind] = json.loads(subprocess.run([*again, *words], check=True, capture_output=True).stdout)
        result = polled(options.count, ports, options.seconds)
        responder.stdin.close()
    print(f"{options.count} PDUs at 1 Hz from one process, {options.seconds:g} s; 2 outlets, 3 phases, 2 banks each")
    print(f"{'':24s}{'CPU s/s':>9s}{'ms each':>9s}{'answered':>10s}{'MB':>8s}")
    for kind, one in found.items():
        name = "bare UDP round trips" if kind == "bare" else f"client alone: {kind}"
        print(f"{name:24s}{one['cpu']:9.3f}{one['ms']:9.3f}{one['share']:10.1%}{one['mb']:8.1f}")
    polls = result["ticks"]
    print(f"{'recorder (ours)':24s}{result['cpu']:9.3f}{'':9s}{1 - result['missed']:10.1%}{result['memory']:8.1f}")
    print(f"recorder: {result['open']:.0f} open within {result['opening']:.1f} s, {result['gaps']:.0f} gaps;", end=" ")
    print(f"{result['late']:.2%} of {polls:.0f} polls late")
    print_single(100)


if __name__ == "__main__":
    main()
