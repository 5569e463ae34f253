"""Print what polling 500 PDUs once a second costs one process, as a ratio to as many bare UDP round trips.

A recorder polls 500 SNMP meters, each with its own thread and socket. They are answered by one process that keeps every
answer ready; its CPU does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
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
from typing import Any

import psutil

from joulelab.core.errors import ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.client import Community, Poll, Session, User
from joulelab.instruments.snmp.tables import Level, find_maker
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

PORTS = 16
COMMUNITY = "bench"
VENDOR = "sentry4"
ROWS = {"unit": ["1.1"], "phase": ["1.1.1", "1.1.2", "1.1.3"], "bank": ["1.1.1", "1.1.2"]}
OUTLETS = [f"1.1.{n}" for n in range(1, 25)]
ID_BYTES = 4


class Responder:
    """Answer v2c requests for one PDU of 24 outlets; every answer is made once and then only gets its request id."""

    def __init__(self) -> None:
        self._tree: dict[tuple[int, ...], bytes] = {}
        self._add("1.3.6.1.2.1.1.1.0", ber.wrap(ber.OCTETS, b"bench"))
        self._add("1.3.6.1.2.1.1.2.0", ber.wrap(ber.OID, ber.oid_bytes("1.3.6.1.4.1.1718.4")))
        for name, level in find_maker(VENDOR).levels.items():
            self._add_level(level, ROWS.get(name, OUTLETS))
        self._names = sorted(self._tree)
        self._ready: dict[bytes, tuple[bytes, bytes]] = {}

    def _add_level(self, level: Level, rows: list[str]) -> None:
        for row in rows:
            for column in level.names:
                self._add(f"{column}.{row}", ber.wrap(ber.OCTETS, f"outlet {row}".encode()))
            for column in level.columns:
                self._add(column.at(row), ber.integer(98))

    def _add(self, oid: str, value: bytes) -> None:
        self._tree[tuple(map(int, oid.split(".")))] = value

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a request."""
        at = _id_at(data)
        key = data[:at] + data[at + ID_BYTES :]
        if key not in self._ready:
            self._ready[key] = self._made(data)
        before, after = self._ready[key]
        return before + data[at : at + ID_BYTES] + after

    def _made(self, data: bytes) -> tuple[bytes, bytes]:
        at, end = ber.expect(data, 0, len(data), ber.SEQUENCE)
        head = at
        _, at = ber.small(data, at, end)
        _, at = ber.octets(data, at, end)
        head_bytes = data[head:at]
        tag, at, end = ber.element(data, at, end)
        request_id, at = ber.small(data, at, end)
        _, at = ber.small(data, at, end)
        repetitions, at = ber.small(data, at, end)
        at, end = ber.expect(data, at, end, ber.SEQUENCE)
        asked = []
        while at < end:
            at, stop = ber.expect(data, at, end, ber.SEQUENCE)
            start, here = ber.expect(data, at, stop, ber.OID)
            asked.append(tuple(map(int, ber.dotted(data[start:here]).split("."))))
            at = stop
        pairs = b"".join(self._pairs(tag, asked, repetitions))
        body = ber.integer(request_id) + ber.integer(0) + ber.integer(0) + ber.wrap(ber.SEQUENCE, pairs)
        whole = ber.wrap(ber.SEQUENCE, head_bytes + ber.wrap(ber.RESPONSE, body))
        cut = _id_at(whole)
        return whole[:cut], whole[cut + ID_BYTES :]

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
    return ber.wrap(ber.SEQUENCE, ber.wrap(ber.OID, ber.oid_bytes(".".join(map(str, name)))) + value)


def _id_at(data: bytes) -> int:
    """Return where the four bytes of the request id are."""
    at, end = ber.expect(data, 0, len(data), ber.SEQUENCE)
    _, at = ber.small(data, at, end)
    _, at = ber.octets(data, at, end)
    _, at, end = ber.element(data, at, end)
    start, stop = ber.expect(data, at, end, ber.INTEGER)
    assert stop - start == ID_BYTES
    return start


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


def bare(count: int, ports: list[int], seconds: float) -> None:
    """Send and receive once a second in as many threads, with a request like that of the meter; print CPU s/s."""
    columns = [c for level in find_maker(VENDOR).levels.values() for c in level.columns][:27]
    names = ber.asked([ber.oid_bytes(column.at("1.1.1")) for column in columns])
    body = ber.request(ber.GET, 1 << 25, names)
    message = ber.wrap(ber.SEQUENCE, b"\x02\x01\x01" + ber.wrap(ber.OCTETS, COMMUNITY.encode()) + body)
    until = time.monotonic() + seconds

    def one(number: int) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
            opened.connect(("127.0.0.1", ports[number % PORTS]))
            opened.settimeout(2)
            due = time.monotonic() + number / count
            while due < until:
                time.sleep(max(due - time.monotonic(), 0))
                opened.send(message)
                opened.recv(65_535)
                due += 1

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    begin, used = time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print((time.process_time() - used) / (time.monotonic() - begin))


def single(repeats: int) -> None:
    """Print the CPU time of one request for 20 values to the simulated PDU: by us, and by pysnmp as it is."""
    columns = [c for level in find_maker(VENDOR).levels.values() for c in level.columns if "8.3.1" in c.oid]
    oids = [column.at(f"1.1.{n}") for n in range(1, 5) for column in columns]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Truth.create(folder / "truth", Node()).close()
        with ServerProcess("pdu", folder / "truth", folder / "pdu") as server:
            known = json.loads((folder / "pdu" / "credentials.json").read_text())
            port = server.served.ports["snmp"]
            user = User("meter", "SHA", known["password"], "AES", known["privacy_password"])
            print(f"one request for {len(oids)} values, CPU ms of the client")
            for kind, login in (("v2c", Community(known["community"])), ("v3 authPriv", user)):
                ours = _cpu_ms(Poll(Session("127.0.0.1", port, login, timeout_s=5, where="bench"), oids), repeats)
                theirs = asyncio.run(_pysnmp_ms(port, login, oids, repeats))
                print(f"  {kind:12s} {ours:6.2f}   pysnmp's own GET {theirs:6.2f}   ratio {ours / theirs:.2f}")


def _cpu_ms(poll: Poll, repeats: int) -> float:
    poll.read()
    used = time.thread_time()
    for _ in range(repeats):
        poll.read()
    return (time.thread_time() - used) / repeats * 1e3


async def _pysnmp_ms(port: int, login: Community | User, oids: list[str], repeats: int) -> float:
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
    parser.add_argument("--bare", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.respond:
        respond()
        return
    if options.bare:
        bare(options.count, options.bare, options.seconds)
        return
    again = [sys.executable, "-m", "benchmarks.pdus"]
    with subprocess.Popen([*again, "--respond"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as responder:
        assert responder.stdin is not None
        assert responder.stdout is not None
        ports = json.loads(responder.stdout.readline())
        few = ["--bare", json.dumps(ports), "--count", str(options.count), "--seconds", "10"]
        plain = float(subprocess.run([*again, *few], check=True, capture_output=True, text=True).stdout)
        result = polled(options.count, ports, options.seconds)
        responder.stdin.close()
    print(f"{options.count} PDUs at 1 Hz from one process, {options.seconds:g} s; 2 outlets, 3 phases, 2 banks each")
    print(f"CPU s per s             {result['cpu']:8.3f}")
    print(f"  bare UDP round trips  {plain:8.3f}   ratio {result['cpu'] / plain:.1f}")
    print(f"memory                  {result['memory']:8.1f} MB")
    print(f"open                    {result['open']:8.0f}      within {result['opening']:.1f} s")
    print(f"late                    {result['late']:8.2%}      of {result['ticks']:.0f} polls")
    print(f"missed                  {result['missed']:8.2%}")
    print(f"gaps                    {result['gaps']:8.0f}")
    single(100)


if __name__ == "__main__":
    main()
