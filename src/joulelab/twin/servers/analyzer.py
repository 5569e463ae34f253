"""Serve a power analyzer at node.ac: a WT300E behind a raw TCP socket and behind VXI-11, one instrument for both.

An 8-GPU node draws some 45 A at 230 V, beyond any direct input of the family. So the default is a WT310E on the 300 V
and 5 A ranges with a 100:5 A current transformer, whose ratio is set on the instrument (`ct_ratio`): it shows the
node's watts on a range of 30 kW. With `model = "WT333E"` the node's power is split evenly over three elements.
The last ports are stored in the directory, so that a killed server returns on the same ports.
"""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.twin.servers._scpi import ELEMENTS, AnalyzerFlaws, Instrument, WaitTimeout
from joulelab.twin.servers._vxi11 import CoreChannel, DeviceSilence, VxiServer
from joulelab.twin.servers.server_process import ServiceInfo, run_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulelab.twin.truth import Truth

FLAWS = AnalyzerFlaws()
NOISE = bytes((7 * k * k + 13 * k + 200) % 256 for k in range(40))


class InstrumentFront:
    """Stand between a cable and the instrument: latency, silence and garbled answers."""

    def __init__(self, instrument: Instrument) -> None:
        self.instrument = instrument

    def answer_message(self, message: bytes, timeout_s: float) -> bytes | None:
        """Return the answer and its line end, empty without a question, None after a timeout. Raises DeviceSilence."""
        flaws = self.instrument.flaws
        if self.instrument.panel_is_silent:
            if flaws.drop_share > 0:
                return b""
            raise DeviceSilence
        if flaws.latency_s > 0:
            threading.Event().wait(flaws.latency_s)
        try:
            text = self.instrument.execute_message(message.decode("ascii", "replace").strip(), timeout_s)
        except WaitTimeout:
            return None
        if not text:
            return b""
        return (NOISE if self.instrument.panel_is_garbled else text.encode()) + b"\n"


class TextHandler(socketserver.StreamRequestHandler):
    """Serve one client of the raw socket: a message per line."""

    def handle(self) -> None:
        """Answer until the client disconnects."""
        server = self.server
        assert isinstance(server, TextServer)
        if server.front.instrument.flaws.refuse:
            return
        with contextlib.suppress(OSError):  # the client disconnected
            while line := self.rfile.readline(4096):
                try:
                    answer = server.front.answer_message(line, 60.0)
                except DeviceSilence:
                    continue
                if answer:
                    self.wfile.write(answer)


class TextServer(socketserver.ThreadingTCPServer):
    """Listen for clients of the raw socket, each with a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, front: InstrumentFront) -> None:
        self.front = front
        super().__init__(("127.0.0.1", port), TextHandler)


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: AnalyzerFlaws, port: int) -> Iterator[ServiceInfo]:
    """Serve the analyzer; `port` is that of the raw socket, 0 for the last one or a free one. Raises ConfigError."""
    if flaws.model not in ELEMENTS:
        raise ConfigError(
            f"there is no model {flaws.model!r}", where="twin analyzer", next=f"use {', '.join(ELEMENTS)}"
        )
    front = InstrumentFront(Instrument(truth, flaws))
    stored = directory / "ports.json"
    last: dict[str, int] = json.loads(stored.read_text()) if stored.exists() else {}
    with contextlib.ExitStack() as stack:
        text = _open_server(lambda p: TextServer(p, front), port or last.get("socket", 0))
        stack.enter_context(serve_in_thread(text))
        core = CoreChannel(front.answer_message, refuse=flaws.refuse)
        vxi11 = _open_server(lambda p: VxiServer(p, core), last.get("vxi11", 0))
        stack.enter_context(serve_in_thread(vxi11))
        ports = {"socket": text.server_address[1], "vxi11": vxi11.server_address[1]}
        stored.write_text(json.dumps(ports))
        resources = {
            "socket": f"TCPIP::127.0.0.1::{ports['socket']}::SOCKET",
            "vxi11": f"TCPIP::127.0.0.1,{ports['vxi11']}::INSTR",
        }
        entry: dict[str, Any] = {"meter": "analyzer", "resource": resources["vxi11"], "feeds": "node.ac"}
        entry |= {"period_s": flaws.period_s}
        if flaws.ct_ratio != 1:
            entry["ct_gain"] = 0.002
        yield ServiceInfo(entries={"analyzer": entry}, ports=ports, facts=resources)


def _open_server(make: Callable[[int], Any], port: int) -> Any:
    """Listen on a port, or on a free one if the port is taken."""
    try:
        return make(port)
    except OSError:
        if not port:
            raise
        return make(0)


@contextlib.contextmanager
def serve_in_thread(server: socketserver.ThreadingTCPServer) -> Iterator[None]:
    """Serve in a thread until the block ends, then close the server."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(2)


if __name__ == "__main__":
    run_server(serve, FLAWS)
