"""Make small runs for the tests of the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import ClockPair, read_boot_id
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.store.journal import HeaderFields, JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import create_run, end_run

if TYPE_CHECKING:
    from pathlib import Path

START_NS = 5_000_000_000
UTC_NS = 1_700_000_000_000_000_000
BOOT = "11111111-2222-3333-4444-555555555555"
# Larger than any pid of Linux: an owner that is dead in this boot.
NOBODY = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": read_boot_id()}
STARTED = {"mono_ns": START_NS, "utc_ns": UTC_NS, "width_ns": 400, "kernel_error_ns": None, "boot_id": BOOT}
ENDED = {**STARTED, "mono_ns": START_NS + 10**9, "utc_ns": UTC_NS + 10**9}
assert ClockPair(**STARTED).mono_ns == START_NS

ENERGY = Spec("energy", "energy", "J", kind="counter", update_s=0.1, accuracy=Accuracy("assumed", gain=0.05))
POWER = Spec("power", "power", "W", kind="power", update_s=0.1, window_s=0.025, limits=(20.0, 700.0))
Row = tuple[int, int, int, Sequence[float]]


def gpus(count: int = 2, channels: Sequence[Spec] = (ENERGY, POWER), table: str = "fast") -> list[Stream]:
    return [
        Stream(f"gpu{i}", table, f"gpu:{i}", 0.1, tuple(channels), parent="node.dc", device=f"GPU-{i}")
        for i in range(count)
    ]


def make_run(runs: Path, **meta: Any) -> Path:
    """Create a run whose owner is dead: killed until it is ended."""
    return create_run(
        runs, {"host": "node1", "command": ["python", "train.py"], "owner": NOBODY, "started": STARTED, **meta}
    )


def close_run(run: Path, **end: Any) -> None:
    end_run(
        run,
        {"outcome": "exit", "exit_code": 0, "ended": ENDED, "start_ns": START_NS, "end_ns": START_NS + 10**9, **end},
    )


def fields(segment: int = 0, meter: str = "nvml", table: str = "fast", host: str = "node1") -> HeaderFields:
    return {"meter": meter, "table": table, "segment": segment, "host": host, "boot_id": BOOT}


def open_journal(
    run: Path, streams: Sequence[Stream], segment: int = 0, meter: str = "nvml", host: str = "node1"
) -> JournalWriter:
    table = streams[0].table
    (run / host).mkdir(exist_ok=True)
    return JournalWriter(
        make_journal_path(run / host, meter, table, segment), fields(segment, meter, table, host), streams
    )


def write_rows(run: Path, streams: Sequence[Stream], rows: Iterable[Row], **where: Any) -> Path:
    with open_journal(run, streams, **where) as journal:
        journal.append_rows(b"".join(pack_row(journal.row, *row) for row in rows))
        return journal.path


def ramp(count: int, streams: int = 2, start_ns: int = START_NS, channels: int = 2) -> list[Row]:
    """Return readings in turn from each stream, every value different."""
    return [
        (k % streams, start_ns + k * 1000, start_ns + k * 1000 + 300, [float(k) + c / 8 for c in range(channels)])
        for k in range(count)
    ]
