"""Serve a PDU for tests of the SNMP meter, and open it as the recorder would: with credentials in plain text."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from joulelab import instruments as meters
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth


def need_snmpd() -> None:
    """Skip where snmpd or cryptography is missing."""
    pytest.importorskip("cryptography", reason="pip install 'joulelab[snmp]'")
    if not any(shutil.which("snmpd", path=p) for p in (None, "/usr/sbin")):
        pytest.skip("snmpd is not installed: apt install snmpd")


class Bench:
    """Hold a truth file with a constant load, and serve PDUs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth = Truth.create(folder / "truth", Node(), profiles={"gpu": profile.constant(0.5)})
        self.cords = len(self.truth.node.supply.cords)
        self._count = 0

    @contextlib.contextmanager
    def served(self, **flaws: Any):
        """Serve one PDU; give the server and the configuration that reads it."""
        self._count += 1
        directory = self.folder / f"pdu{self._count}"
        with ServerProcess("pdu", self.folder / "truth", directory, flaws=flaws) as server:
            yield server, config(server)

    @contextlib.contextmanager
    def changed(self, server: ServerProcess, **flaws: Any):
        """Let the device return on its port with other flaws; the login stays."""
        server.stop()
        directory = Path(server.served.entries["pdu1"]["password"]["file"]).parent
        port = server.served.ports["snmp"]
        with ServerProcess("pdu", self.folder / "truth", directory, flaws=flaws, port=port):
            yield


def config(server: ServerProcess) -> dict[str, Any]:
    """Return the served entry with its credentials read, as the configuration layer does it."""
    entry = dict(server.served.entries["pdu1"])
    assert entry.pop("meter") == "snmp"
    plain = {k: Path(v["file"]).read_text() if isinstance(v, dict) else v for k, v in entry.items()}
    return plain | {"label": "pdu1", "timeout_s": 60.0}


@contextlib.contextmanager
def opened(settings: dict[str, Any], **more: Any):
    """Open the meter and close it at the end."""
    meter: Any = meters.open_meter("snmp", settings | more)
    try:
        yield meter
    finally:
        meter.close()


def rows(meter: Any, table: str = "power") -> dict[str, dict[str, float]]:
    """Return one reading of every stream of a table, by stream and channel."""
    return {
        s.name: dict(zip([c.name for c in s.channels], meter.read(s), strict=True))
        for s in meter.streams()
        if s.table == table
    }
