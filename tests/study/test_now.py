from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from joulelab.core.spec import Spec, Stream
from joulelab.store.journal import HeaderFields, JournalWriter, make_journal_path, pack_row
from joulelab.study.results import read_power_now

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
POWER = Spec("power_w", "power", "W", "power")
COUNTER = Spec("energy_j", "energy", "J", "counter")


def write(folder: Path, table: str, streams: list[Stream], rows: list[tuple[int, int, float]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header: HeaderFields = {"meter": "m", "table": table, "segment": 0, "host": folder.name, "boot_id": "b"}
    with JournalWriter(make_journal_path(folder, "m", table, 0), header, streams) as journal:
        for index, t_ns, value in rows:
            journal.append_rows(pack_row(journal.row, index, t_ns, t_ns, [value]))


def stream(scope: str, spec: Spec, **more: str) -> Stream:
    return Stream(scope, "t", scope, 0.1, (spec,), **more)  # type: ignore[arg-type]


def test_powers_are_averaged_and_counters_subtracted(tmp_path: Path) -> None:
    gpus = [stream("gpu:0", POWER), stream("gpu:1", POWER)]
    write(tmp_path / "n1", "gpu", gpus, [(0, 1 * S, 900.0), (0, 8 * S, 100.0), (0, 9 * S, 200.0), (1, 9 * S, 50.0)])
    write(tmp_path / "n1", "cpu", [stream("cpu:0", COUNTER)], [(0, n * S // 4, 10.0 * n) for n in range(24, 41)])
    assert read_power_now(tmp_path) == pytest.approx(150 + 50 + 40)


def test_nothing_counts_twice_and_every_host_counts(tmp_path: Path) -> None:
    inside, node = stream("gpu:0", POWER), stream("node.dc", POWER)
    for host in ("n1", "n2"):
        write(tmp_path / host, "t", [inside, node], [(0, S, 100.0), (1, S, 300.0)])
    assert read_power_now(tmp_path) == 600.0


@pytest.mark.parametrize(
    "spec", [COUNTER, Spec("temperature_c", "temperature", "degC"), Spec("p", "power", "W", "power", estimate=True)]
)
def test_what_tells_no_power_counts_for_nothing(tmp_path: Path, spec: Spec) -> None:
    write(tmp_path / "n1", "t", [stream("gpu:0", spec)], [(0, S, 5.0)])
    assert read_power_now(tmp_path) is None


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "n1", "a", [stream("gpu:0", POWER)], [(0, S, 5.0), (0, 2 * S, float("nan"))])
    (tmp_path / "n1" / "m.b.0.journal").write_bytes(b"torn")
    write(tmp_path / "n1", "job", [stream("job", POWER)], [(0, S, 5000.0)])
    with (tmp_path / "n1" / "m.a.0.journal").open("ab") as file:
        file.write(b"half a row")
    assert read_power_now(tmp_path) == 5.0
    assert read_power_now(tmp_path / "none") is None
