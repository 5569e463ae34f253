"""Start Debian's prometheus and victoria-metrics with known samples, on free ports, and end them by their pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# No proxies of the environment.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt install {'prometheus' if name == 'promtool' else name}")
    return found


@contextlib.contextmanager
def running(words: list[str], ready: str, log: Path):
    with log.open("ab") as out:
        child = subprocess.Popen(words, stdout=out, stderr=out, env=os.environ | {"GOMAXPROCS": "1"})
    try:
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), OPENER.open(ready, timeout=2) as answer:
                if answer.status == 200:
                    break
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield child
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def prometheus(folder: Path, openmetrics: str):
    """Serve samples that are put into its store before it starts; gives its address."""
    binary, tool = program("prometheus"), program("promtool")
    (folder / "samples").write_text(openmetrics + "# EOF\n")
    words = [tool, "tsdb", "create-blocks-from", "openmetrics", str(folder / "samples"), str(folder / "data")]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    address = f"127.0.0.1:{free_port()}"
    command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error", "--storage.tsdb.retention.time=30d"]
    with running(command, f"http://{address}/-/ready", folder / "log"):
        yield f"http://{address}"


@contextlib.contextmanager
def victoria(folder: Path, port: int = 0):
    """Serve an empty store, or what it held before; gives its address. The newest 30 s are hidden, as by default."""
    address = f"127.0.0.1:{port or free_port()}"
    command = [program("victoria-metrics"), f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}"]
    with running(
        [*command, "-retentionPeriod=1", "-memory.allowedBytes=60MB"], f"http://{address}/health", folder / "log"
    ):
        yield f"http://{address}"


def put(address: str, lines: str) -> None:
    """Import samples (time in ms) into VictoriaMetrics, and have them searchable."""
    request = urllib.request.Request(f"{address}/api/v1/import/prometheus", lines.encode(), method="POST")
    with OPENER.open(request, timeout=60) as answer:
        assert answer.status == 204
    with OPENER.open(f"{address}/internal/force_flush", timeout=60):
        pass
