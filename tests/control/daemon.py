"""Run capd as a process of its own, and talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.control.fake import wait_for

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")


class Capd:
    """Run capd as a process of its own."""

    def __init__(self, environ, folder, config=""):
        # Where other users get to: neither pytest's folder nor that of temporary files need be.
        self._place = Path(tempfile.mkdtemp(prefix="joulelab-capd-", dir="/tmp"))
        self._place.chmod(0o755)
        self.config, self.path, self._log = folder / "capd.toml", self._place / "run" / "capd.sock", folder / "capd.log"
        self.config.write_text(config)
        self.config.chmod(0o644)
        self.environ = {**environ, "JOULELAB_CAPD": str(self.path)}
        self.start()

    def start(self):
        self._log.write_text("")
        code = "from joulelab.cli.capd import command; command()"
        command = [sys.executable, "-c", code, "--config", str(self.config), "--socket", str(self.path), "--json"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        wait_for(lambda: "ready" in self._log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self._log.read_text()

    def events(self, name):
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def wait(self, name):
        return wait_for(lambda: self.events(name))[-1]

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.path))  # waits its turn
        sock.settimeout(120)
        return sock

    def ask(self, sock, frame):
        text = frame if isinstance(frame, bytes) else json.dumps(frame).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(text)
        return self.hear(sock)

    def hear(self, sock):
        data = b""
        while not data.endswith(b"\n"):
            try:
                more = sock.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                break
            data += more
        return json.loads(data.splitlines()[0]) if data else None

    def is_well(self):
        """Say whether it still serves."""
        with self.connect() as sock:
            return self.ask(sock, {"id": 9, "do": "status"})["is"] == "status"

    def close(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(timeout=120)
        shutil.rmtree(self._place)
        text = self._log.read_text()
        assert "Traceback" not in text, text
        return code
