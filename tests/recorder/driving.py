"""Drive a real recorder process from a test, and read what it wrote."""

from __future__ import annotations

import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from joulelab.core.errors import StoreError
from joulelab.store.journal import read_header

FAKE = str(Path(__file__).with_name("fake.py"))
SRC = str(Path(__file__).parents[2] / "src")


def fake(**config: Any) -> dict[str, Any]:
    return {"meter": FAKE, "config": config}


class Driven:
    """A recorder of the test's own: `with Driven(tmp_path, [fake()]) as r:`; whatever is left is killed by its pid."""

    def __init__(self, folder: Path, meters: list[dict[str, Any]], **plan: Any) -> None:
        self.folder = folder
        base = {"host_dir": str(folder), "host": "h", "owner_pid": os.getpid(), "segment": 0, "meters": meters}
        self.plan = base | {"ready_s": 60.0} | plan  # meters open late on a busy machine

    def __enter__(self) -> Driven:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "joulelab.recorder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SRC},
            process_group=0,
        )
        self.said: list[dict[str, Any]] = []
        self._buffer = b""
        self.say(self.plan)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.stdout.close()

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, kind: str, within_s: float = 120.0) -> dict[str, Any]:
        """Return the next message of a kind, and forget it."""
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        until = time.monotonic() + within_s
        while True:
            for message in self.said:
                if message["is"] == kind:
                    self.said.remove(message)
                    return message
            left = until - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise TimeoutError(f"no {kind} in {within_s} s; said: {self.said}")
            data = os.read(fd, 65536)
            if not data:
                raise EOFError(f"the recorder ended; said: {self.said}")
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]

    def finish(self, tail_s: float = 60.0) -> int:
        """Let it read what is due, for at most `tail_s`, and end; return its exit code."""
        self.say({"do": "finish", "tail_s": tail_s, "id": 9})
        assert self.hear("finished")["id"] == 9
        return self.process.wait(120)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return events_of(self.folder / f"events.{self.plan['segment']}.jsonl", kind)

    def rows(self, meter: str = "fake", table: str = "power") -> list[tuple[float, ...]]:
        return rows_of(self.folder / f"{meter}.{table}.{self.plan['segment']}.journal")


def events_of(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [e for e in events if kind in (None, e["event"])]


def rows_of(path: Path) -> list[tuple[float, ...]]:
    try:
        header = read_header(path)
    except (OSError, StoreError):  # not begun yet
        return []
    layout = struct.Struct(f"<qqq{len(header.columns)}d")
    data = path.read_bytes()[header.data_offset :]
    return list(layout.iter_unpack(data[: len(data) // layout.size * layout.size]))
