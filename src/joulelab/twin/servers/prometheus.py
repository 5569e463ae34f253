"""Serve a twin's exporters in Prometheus' text format, and run Prometheus to scrape them if it is installed."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Unavailable
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel
from joulelab.twin.servers.server_process import ServiceInfo, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.twin.truth import Truth

EXPORTERS = ("dcgm", "ipmi", "snmp", "node", "kepler", "scaphandre")
USER, PASSWORD = "reader", "only for the twin"
# Hashes of that password and of an unknown one, for Prometheus' file of users.
_HASH, _OTHER = (
    "$2b$04$abcdefghijklmnopqrstuu/u3wnSBSeuC21gS83rJjJ.aJbfIM/U2",
    "$2b$04$abcdefghijklmnopqrstuuWrongWrongWrongWrongWrongWrongW",
)
_READY_S = 11.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusFlaws(PanelFlaws):
    """Describe the exporters and the server: seconds between scrapes, and whether a login is required."""

    scrape_s: float = 1.0
    login: bool = False
    child: bool = True  # false: no Prometheus, exporters only


FLAWS = PrometheusFlaws()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: PrometheusFlaws, port: int = 0) -> Iterator[ServiceInfo]:
    """Serve until the block ends; `port` is Prometheus', or the exporters' without Prometheus."""
    program = shutil.which("prometheus") if flaws.child else None
    exporters = _Exporters(truth, flaws)
    with contextlib.ExitStack() as stack:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0 if program else port), _make_handler(exporters))
        stack.callback(server.server_close)
        exported = f"http://127.0.0.1:{server.server_address[1]}"
        child = None
        if program:
            port = port or _find_free_port()
            child = stack.enter_context(_run_prometheus(program, directory, flaws, port, str(server.server_address[1])))
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="exporters")
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        if child is None:
            yield ServiceInfo({}, {"exporters": server.server_address[1]}, facts={"exporters": exported})
            return
        _wait_for_scrape(child, port, flaws)
        facts = {"exporters": exported, "child": child.pid}
        yield ServiceInfo({"prom": _make_entry(directory, flaws, port)}, {"prometheus": port}, facts=facts)


def _make_entry(directory: Path, flaws: PrometheusFlaws, port: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"meter": "prometheus", "address": f"http://127.0.0.1:{port}", "preset": "ipmi"}
    entry |= {"feeds": "node.ac", "period_s": max(flaws.scrape_s, 0.5), "match": 'job="ipmi"'}
    if flaws.login or flaws.refuse:
        secret = directory / "prometheus-password"
        secret.touch(mode=0o600)
        secret.write_text(PASSWORD + "\n")
        entry |= {"user": USER, "password": {"file": str(secret)}}
    return entry


class _Exporters:
    """Write the current page of each exporter."""

    def __init__(self, truth: Truth, flaws: PrometheusFlaws) -> None:
        self.truth, self.flaws = truth, flaws
        board = replace(flaws, quantum_w=0.001, quantum_j=0.001)  # the resolution of sensors on the board
        resolved = {"gpu": board, "cpu": board, "dram": board, "node.ac": flaws, "outlet": flaws}
        self._panels = {
            point: Panel(truth, point, resolved[family], number=60 + n)
            for n, point in enumerate(truth.points)
            if (family := point.split(":")[0]) in resolved
        }
        self.front = self._panels["node.ac"]
        self._pages = {
            "dcgm": self._list_dcgm,
            "ipmi": self._list_ipmi,
            "snmp": self._list_snmp,
            "node": self._list_node,
            "kepler": self._list_kepler,
            "scaphandre": self._list_scaphandre,
        }
        self._random = random.Random(truth.node.seed)  # noqa: S311 noise

    def write_page(self, exporter: str) -> bytes:
        """Return an exporter's page; each line is a metric, its labels and its value."""
        if self.front.is_garbled():
            return self._random.randbytes(300)
        lines: dict[str, list[str]] = {}
        for name, labels, value in self._pages[exporter](monotonic_ns()):
            shown = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
            lines.setdefault(name, []).append(f"{name}{{{shown}}} {value!r}")
        kinds = {name: "counter" if "joules" in name or "energy" in name.lower() else "gauge" for name in lines}
        return "".join(f"# TYPE {n} {kinds[n]}\n" + "\n".join(rows) + "\n" for n, rows in lines.items()).encode()

    def _list_panels(self, family: str) -> list[tuple[str, Panel]]:
        found = [(point.partition(":")[2], panel) for point, panel in self._panels.items()]
        return [(n, panel) for (n, panel) in found if panel.point == f"{family}:{n}"]

    def _list_dcgm(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        for number, panel in self._list_panels("gpu"):
            labels = {"gpu": number, "UUID": self.truth.uuid(int(number)), "device": f"nvidia{number}"}
            labels |= {"modelName": self.truth.node.gpus[int(number)].name, "Hostname": "twin"}
            yield "DCGM_FI_DEV_POWER_USAGE", labels, panel.power_w(now)
            yield "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels, round(panel.energy_j(now) * 1000)

    def _list_ipmi(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        watts = self.front.power_w(now)
        yield "ipmi_dcmi_power_consumption_watts", {}, watts
        yield "ipmi_power_watts", {"id": "77", "name": "Pwr Consumption"}, watts

    def _list_snmp(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        for number, panel in self._list_panels("outlet"):
            labels = {"st4UnitIndex": "1", "st4InputCordIndex": "1", "st4OutletIndex": number}
            yield "st4OutletActivePower", labels, round(panel.power_w(now))
            yield "st4OutletEnergy", labels, round(panel.energy_j(now) / 3600)
        yield "rPDU2DeviceStatusPower", {"rPDU2DeviceStatusIndex": "1"}, round(self.front.power_w(now) / 10)

    def _list_node(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        for family, name in (("cpu", "package"), ("dram", "dram")):
            for number, panel in self._list_panels(family):
                labels = {"index": number, "path": f"/sys/class/powercap/intel-rapl:{number}"}
                yield f"node_rapl_{name}_joules_total", labels, panel.energy_j(now)

    def _list_kepler(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        for family, zone in (("cpu", "package"), ("dram", "dram")):
            panels = [panel for _, panel in self._list_panels(family)]
            labels = {"zone": zone, "node_name": "twin"}
            yield "kepler_node_cpu_joules_total", labels, sum(p.energy_j(now) for p in panels)
            yield "kepler_node_cpu_watts", labels, sum(p.power_w(now) for p in panels)
        yield "kepler_platform_watts", {"source": "redfish", "node_name": "twin"}, self.front.power_w(now)

    def _list_scaphandre(self, now: int) -> Iterator[tuple[str, dict[str, str], float]]:
        panels = [panel for family in ("cpu", "dram") for _, panel in self._list_panels(family)]
        yield "scaph_host_power_microwatts", {}, round(sum(p.power_w(now) for p in panels) * 1e6)
        yield "scaph_host_energy_microjoules", {}, round(sum(p.energy_j(now) for p in panels) * 1e6)


def _make_handler(exporters: _Exporters) -> type[http.server.BaseHTTPRequestHandler]:
    class ExporterHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.strip("/").removesuffix("metrics").strip("/")
            if exporters.flaws.latency_s:
                time.sleep(exporters.flaws.latency_s)
            if exporters.front.is_silent():
                return  # which closes the connection
            if name not in EXPORTERS:
                self._send_page(404, f"exporters: {', '.join(f'/{e}/metrics' for e in EXPORTERS)}\n".encode())
            elif exporters.flaws.refuse:
                self._send_page(401, b"")
            else:
                self._send_page(200, exporters.write_page(name))

        def _send_page(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return ExporterHandler


@contextlib.contextmanager
def _run_prometheus(
    program: str, directory: Path, flaws: PrometheusFlaws, port: int, exporters: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run Prometheus; the kernel kills it when this process ends."""
    directory.mkdir(parents=True, exist_ok=True)
    config, users = directory / "prometheus.yml", directory / "web.yml"
    jobs = "".join(
        f"  - job_name: {name}\n    metrics_path: /{name}/metrics\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{exporters}'], labels: {{node: twin}}}}]\n"
        for name in EXPORTERS
    )
    every = f"{max(round(flaws.scrape_s * 1000), 100)}ms"
    config.write_text(f"global: {{scrape_interval: {every}, scrape_timeout: {every}}}\nscrape_configs:\n{jobs}")
    words = [program, f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}", "--log.level=error"]
    words += [
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=1d",
    ]
    if flaws.login or flaws.refuse:
        users.touch(mode=0o600)
        users.write_text(f"basic_auth_users: {{{USER}: '{_OTHER if flaws.refuse else _HASH}'}}\n")
        words.append(f"--web.config.file={users}")
    with (directory / "prometheus.log").open("wb") as log:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_make_death_request(os.getpid()),  # noqa: PLW1509
            env=os.environ | {"GOMAXPROCS": "1"},
        )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _make_death_request(owner: int) -> Any:
    libc = ctypes.CDLL(None)

    def request_signal() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != owner:
            os._exit(1)

    return request_signal


def _wait_for_scrape(child: subprocess.Popen[bytes], port: int, flaws: PrometheusFlaws) -> None:
    """Wait for the first scrape; with `refuse`, for the refused login. Raises Unavailable."""
    until = monotonic_ns() + round(_READY_S * NS)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://127.0.0.1:{port}/api/v1/query?query=ipmi_dcmi_power_consumption_watts"
    known = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": known})
    while monotonic_ns() < until:
        if child.poll() is not None:
            raise Unavailable("prometheus ended at once", why=f"status {child.returncode}", next="see prometheus.log")
        try:
            with opener.open(request, timeout=1) as answer:
                if json.load(answer)["data"]["result"]:
                    return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 401 and flaws.refuse:
                return
        except (OSError, ValueError):
            pass  # it is starting
        time.sleep(0.05)
    if flaws == FLAWS:
        raise Unavailable("prometheus did not scrape in time", why=f"{_READY_S:g} s", next="see prometheus.log")


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    run_server(serve, FLAWS)
