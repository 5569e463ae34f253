"""Serve a smart plug on the node's cord: a Shelly (/rpc/...) and a Tasmota (/cm?cmnd=...) on one port.

A node that draws more than a plug can carry is served too, but has no entry.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from joulelab.core.clock import NS, read_utc_ns
from joulelab.twin.flaws import PanelFlaws
from joulelab.twin.readings import Panel
from joulelab.twin.servers._http import FlawedHandler, serve_handler
from joulelab.twin.servers.server_process import ServiceInfo, keep_file, run_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulelab.twin.truth import Truth

CARRIES_W = 3700.0
USER, REALM = "admin", "shellypro-twin"
VOLTS = 230.0
_PAIR = re.compile(r'(\w+)="?([^",]+)"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class PlugFlaws(PanelFlaws):
    """Describe a plug: with or without a password, a switch or a clamp."""

    quantum_w: float = 0.1
    quantum_j: float = 3.6
    base_j: float = 3.6e6
    password: bool = True
    clamp: bool = False  # an em1 instead of a switch


FLAWS = PlugFlaws()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: PlugFlaws, port: int) -> Iterator[ServiceInfo]:
    """Serve the plug at the node's AC side."""
    file = directory / "password"
    password = keep_file(file, lambda: secrets.token_urlsafe(9).encode()).decode()
    secret = password if flaws.password else ""
    panel = Panel(truth, "node.ac", flaws, number=700)
    handler = type("PlugHandler", (_PlugHandler,), {"panel": panel, "flaws": flaws, "secret": secret})
    with serve_handler(handler, port) as at:
        entry: dict[str, Any] = {
            "meter": "plug",
            "kind": "shelly",
            "address": f"127.0.0.1:{at}",
            "feeds": "node.ac",
            "period_s": 1.0,
        }
        if flaws.password:
            entry |= {"user": USER, "password": {"file": str(file.resolve())}}
        entries = {"plug": entry} if find_full_w(truth) < CARRIES_W else {}
        yield ServiceInfo(entries, ports={"plug": at}, facts={"entry": entry})


def find_full_w(truth: Truth) -> float:
    """Return the wall power of the node at full load, in W."""
    node = truth.node
    dc = sum(node.range_w(leaf)[1] for leaf in node.list_leaves() if not leaf.startswith("core"))
    outputs, inputs = node.supply.list_knots()
    return float(np.interp(dc, outputs, inputs))


class _PlugHandler(FlawedHandler):
    flaws: PlugFlaws
    secret: str

    def make_response(self, method: str, body: bytes) -> tuple[int, Any, dict[str, str]]:  # noqa: ARG002 plugs are only read
        parts = urlsplit(self.path)
        query = {key: rows[-1] for key, rows in parse_qs(parts.query).items()}
        if parts.path == "/cm":
            return self._answer_tasmota(query)
        if not parts.path.startswith("/rpc/"):
            return 404, None, {}
        if parts.path != "/rpc/Shelly.GetDeviceInfo" and not self._is_known(method):
            nonce = secrets.token_hex(8)
            challenge = f'Digest qop="auth", realm="{REALM}", nonce="{nonce}", algorithm=SHA-256'
            return 401, {"code": 401, "message": "unauthorized"}, {"WWW-Authenticate": challenge}
        return self._answer_shelly(parts.path.removeprefix("/rpc/"), query)

    def _is_known(self, method: str) -> bool:
        if self.flaws.refuse:
            return False
        if not self.secret:
            return True
        login = dict(_PAIR.findall(self.headers.get("Authorization") or ""))
        if not {"nonce", "nc", "cnonce", "qop", "uri", "response"} <= set(login):
            return False
        first = _hash_text(f"{USER}:{REALM}:{self.secret}")
        second = _hash_text(f"{method}:{login['uri']}")
        right = _hash_text(f"{first}:{login['nonce']}:{login['nc']}:{login['cnonce']}:{login['qop']}:{second}")
        return login["uri"] == self.path and secrets.compare_digest(login["response"], right)

    def _answer_shelly(self, name: str, query: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        whole = self._list_components()
        if name == "Shelly.GetDeviceInfo":
            return 200, {"id": REALM, "model": "twin", "gen": 2, "auth_en": bool(self.secret)}, {}
        if name == "Shelly.GetStatus":
            return 200, whole, {}
        kind = {"Switch.GetStatus": "switch", "EM1.GetStatus": "em1", "EM1Data.GetStatus": "em1data"}.get(name)
        found = whole.get(f"{kind}:{query.get('id', '')}")
        if kind is None or found is None:
            return (404, None, {}) if kind is None else (500, {"code": -105, "message": "no such component"}, {})
        return 200, found, {}

    def _list_components(self) -> dict[str, Any]:
        watts, hours = round(self.panel.power_w(), 3), round(self.panel.energy_j() / 3600, 3)
        amps = round(watts / VOLTS, 3)
        if self.flaws.clamp:
            clamp = {"id": 1, "current": amps, "voltage": VOLTS, "act_power": watts, "aprt_power": watts, "pf": 1}
            none = {"id": 0, "current": 0, "voltage": VOLTS, "act_power": 0, "aprt_power": 0, "pf": 0}
            totals = {"em1data:0": {"id": 0, "total_act_energy": 0}, "em1data:1": {"id": 1, "total_act_energy": hours}}
            return {"em1:0": none, "em1:1": clamp, **totals, "sys": {"uptime": 1000}}
        switch = {
            "id": 0,
            "output": True,
            "apower": watts,
            "voltage": VOLTS,
            "current": amps,
            "pf": 1.0,
            "aenergy": {"total": hours, "by_minute": [0, 0, 0]},
        }
        return {"switch:0": switch, "sys": {"uptime": 1000}}

    def _answer_tasmota(self, query: dict[str, str]) -> tuple[int, Any, dict[str, str]]:
        wrong = self.secret and (query.get("user"), query.get("password")) != (USER, self.secret)
        if wrong or self.flaws.refuse:
            return 401, {"WARNING": "Need user=<username>&password=<password>"}, {}
        command = query.get("cmnd", "").lower().replace(" ", "")
        if command not in ("status8", "status10"):
            return 200, {"Command": "Unknown"}, {}
        watts = round(self.panel.power_w())
        local = datetime.fromtimestamp(read_utc_ns() // NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        energy = {
            "Total": round(self.panel.energy_j() / 3.6e6, 3),
            "Power": watts,
            "ApparentPower": watts,
            "Factor": 1.0,
            "Voltage": round(VOLTS),
            "Current": round(watts / VOLTS, 3),
        }
        return 200, {"StatusSNS": {"Time": local, "ENERGY": energy}}, {}


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    run_server(serve, FLAWS)
