"""Make small run folders by the store's own means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.analysis.virtual import BASE, NS, TOOK, accuracy, ns, stamps

from joulelab.core.clock import read_boot_id
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import create_run, end_run, identify_owner
from joulelab.store.run_reader import Run, open_run

if TYPE_CHECKING:
    from pathlib import Path

UTC = 1_700_000_000 * NS
STARTED = {"mono_ns": BASE, "utc_ns": UTC, "width_ns": 400, "kernel_error_ns": None, "boot_id": "b"}
NOBODY = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": read_boot_id()}  # larger than any pid of Linux: dead
NVML = accuracy(0.05, shared="nvml:H100", quantum=0.001)
RAPL = accuracy(0.05, shared="rapl:package")
METER = accuracy(0.01, shared="bmc")


def gpu(index: int, *, period_s: float = 0.1, given: Accuracy = NVML, seen: float = 1.0, **more: Any) -> Stream:
    window = 0.1 * seen
    channels = (
        Spec("energy_j", "energy", "J", "counter", 0.001, None, seen, limits=(0.0, 700.0), accuracy=given),
        Spec("power_instant_w", "power", "W", "power", 0.1, window, seen, limits=(0.0, 700.0), accuracy=given),
    )
    return Stream(f"gpu:{index}.power", "power", f"gpu:{index}", period_s, channels, model="H100", **more)


def state(index: int, *names: str) -> Stream:
    channels = tuple(Spec(n, "state", "1") for n in names)
    return Stream(f"gpu:{index}.state", "state", f"gpu:{index}", 1.0, channels, model="H100")


def counter(scope: str, parent: str | None = None, given: Accuracy = RAPL, **more: Any) -> Stream:
    spec = Spec("energy_j", "energy", "J", "counter", 0.001, accuracy=given, **more)
    return Stream(scope, "energy", scope, 0.1, (spec,), parent)


def power(scope: str, parent: str | None = None, given: Accuracy = METER, **more: Any) -> Stream:
    spec = Spec("power_w", "power", "W", "power", 0.1, 0.1, limits=(0.0, 9000.0), accuracy=given, **more)
    return Stream(scope, "power", scope, 0.1, (spec,), parent)


class Folder:
    """Hold a run folder that is being made; second 0 is the start of the record."""

    def __init__(self, runs: Path, *, live: bool = False, **meta: Any) -> None:
        given = {"host": "node1", "command": ["python", "train.py"], "started": STARTED, **meta}
        self.path = create_run(runs, given | {"owner": identify_owner() if live else NOBODY})
        self._events: list[dict[str, Any]] = []

    def add(self, meter: str, stream: Stream, seconds, *columns, host: str = "node1") -> Folder:
        """Write one stream in a table of its own."""
        (self.path / host).mkdir(exist_ok=True)
        table = f"t{len(list((self.path / host).glob('*.journal')))}"
        fields = {"meter": meter, "table": table, "segment": 0, "host": host, "boot_id": "b"}
        t0 = stamps(seconds) - TOOK // 2
        with JournalWriter(make_journal_path(self.path / host, meter, table, 0), fields, [stream]) as journal:
            rows = zip(t0.tolist(), *(np.asarray(c, dtype=float).tolist() for c in columns), strict=True)
            journal.append_rows(b"".join(pack_row(journal.row, 0, t, t + TOOK, v) for t, *v in rows))
        return self

    def event(self, second: float, kind: str, **more: Any) -> Folder:
        self._lines("events.run.jsonl", [{"t": ns(second), "event": kind, **more}])
        return self

    def marks(self, name: str, *lines: dict[str, Any]) -> Folder:
        self._lines(f"marks/{name}.jsonl", lines)
        return self

    def _lines(self, name: str, lines) -> None:
        with (self.path / "node1" / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def close(self, start: float | None = None, end: float | None = None, **more: Any) -> Folder:
        given = {"outcome": "exit", "exit_code": 0, "ended": STARTED, **more}
        given |= {} if start is None else {"start_ns": ns(start)}
        end_run(self.path, given | ({} if end is None else {"end_ns": ns(end)}))
        return self

    def open(self) -> Run:
        return open_run(self.path)
