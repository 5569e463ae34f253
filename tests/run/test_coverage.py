"""How far a live run's readings have reached the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.spec import Spec, Stream
from joulelab.run.coverage import covered
from joulelab.store.journal import HeaderFields, JournalWriter, pack_row

if TYPE_CHECKING:
    from pathlib import Path

POWER = (Spec("p", "power", "W", "power"),)


def begin(host: Path, table: str, stream: Stream, segment: int = 0) -> JournalWriter:
    header: HeaderFields = {"meter": "m", "table": table, "segment": segment, "host": "h", "boot_id": "b"}
    return JournalWriter(host / f"m.{table}.{segment}.journal", header, [stream])


def add(journal: JournalWriter, t: int) -> None:
    journal.append_rows(pack_row(journal.row, 0, t, t + 1, [1.0]))


def test_it_waits_for_every_fast_table_of_power(tmp_path: Path) -> None:
    host = tmp_path / "h"
    host.mkdir()
    assert not covered(tmp_path, 100)
    with (
        begin(host, "power", Stream("a", "power", "gpu:0", 0.1, POWER)) as power,
        begin(host, "slow", Stream("b", "slow", "outlet:1", 60.0, POWER)),
        begin(host, "state", Stream("c", "state", "gpu:0", 1.0, (Spec("x", "x", "1"),))),
    ):
        add(power, 100)
        assert not covered(tmp_path, 100)  # the recorder has not finished its first round
        (host / "events.0.jsonl").write_text("{}\n")
        assert covered(tmp_path, 100)
        assert not covered(tmp_path, 101)
        with begin(host, "power", Stream("a", "power", "gpu:0", 0.1, POWER), segment=1) as restarted:
            assert not covered(tmp_path, 100)
            add(restarted, 200)
            assert covered(tmp_path, 200)
    (host / "m.new.0.journal").write_bytes(b"JL")
    assert not covered(tmp_path, 100)
