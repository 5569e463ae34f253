"""Look at runs that go on, and add to what they have recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.report.synthetic import HOST, START

from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.report.watch.watched_run import RunWatch, WatchView
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def watch(run: Path, **options: Any) -> WatchView:
    watched = RunWatch(run, 1.0, **options)
    try:
        watched.read()
        return watched.read()
    finally:
        watched.close()


def plain(lines: Sequence[Any]) -> str:
    return "\n".join(text.plain for text in lines)


def write(run: Path, meter: str, stream: Stream, rows: Sequence[tuple[float, Sequence[float]]]) -> None:
    """Add a journal with rows at seconds after the start."""
    folder = run / HOST
    fields: Any = {"meter": meter, "table": stream.table, "segment": 0, "host": HOST, "boot_id": "x"}
    with JournalWriter(make_journal_path(folder, meter, stream.table, 0), fields, [stream]) as writer:
        for at, values in rows:
            t = START + round(at * NS)
            writer.append_rows(pack_row(writer.row, 0, t, t, values))


def power(scope: str, period_s: float = 0.1, **more: Any) -> Stream:
    spec = Spec("power_w", "power", "W", "power", period_s, period_s, accuracy=Accuracy("datasheet", gain=0.01))
    return Stream(scope, "power", scope, period_s, (spec,), **more)
