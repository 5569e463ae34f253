"""Work that is followed as it is reported: files that grow, ranks, shells, pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.study.tuning.marks import even, line, write

from joulelab.core.clock import NS
from joulelab.core.marks import MarkWriter
from joulelab.study.tuning.windows import WorkLog, estimate_rate_u, has_pause

if TYPE_CHECKING:
    from pathlib import Path


def test_work_is_followed_as_the_file_grows_and_torn_or_foreign_lines_are_left_out(tmp_path: Path) -> None:
    log = WorkLog(tmp_path)
    log.read_marks()
    assert log.known_ns == 0
    write(tmp_path, "1", *even(10, 12), torn='{"t": 13')
    log.read_marks()
    assert (log.kind, log.known_ns) == ("steps", 12 * NS)
    write(tmp_path, "1", torn='000000000, "mark"\n{"t":1,"mark":"begin"}\nnull\n{"t":2,"mark":"work","amounts":7}\n')
    write(tmp_path, "1", *even(12, 13))
    log.read_marks()
    assert log.known_ns == 13 * NS
    assert log.count_work(10 * NS, 13 * NS) == pytest.approx(30)
    assert log.count_work(round(10.5 * NS), round(11.25 * NS)) == pytest.approx(7.5)
    assert log.count_reports(10 * NS, 13 * NS) == (30, 3)


def test_ranks_add_and_are_known_as_far_as_the_last_of_them(tmp_path: Path) -> None:
    log = WorkLog(tmp_path, "samples")
    write(tmp_path, "1", *even(0, 5))
    write(tmp_path, "2", *even(0, 4))
    log.read_marks()
    assert log.known_ns == 4 * NS
    assert log.count_work(NS, 4 * NS) == pytest.approx(2 * 64 * 30)
    write(tmp_path, "1", *even(5, 20))  # the other one has ended: it is not waited for any more
    log.read_marks()
    assert log.known_ns == 20 * NS


def test_what_a_writer_sums_up_is_read_with_its_times(tmp_path: Path) -> None:
    now = iter(range(0, 100 * NS, NS // 50))
    writer = MarkWriter(tmp_path, now=lambda: next(now))
    for _ in range(500):
        writer.work({"samples": 2})
    writer.close()
    log = WorkLog(tmp_path)
    log.read_marks()
    a, b = 2 * NS, 8 * NS
    assert log.count_work(a, b) == pytest.approx(2 * 50 * 6, rel=0.02)
    assert estimate_rate_u(log, a, b) < 0.005
    assert not has_pause(log, a, b)


def test_reports_of_a_shell_cover_the_time_since_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, "sh-1", *(line(t, t, 3.0) for t in (1, 2, 3)))
    log = WorkLog(tmp_path)
    log.read_marks()
    assert log.count_work(NS, 3 * NS) == pytest.approx(6)
    assert log.count_work(NS, round(2.5 * NS)) == pytest.approx(4.5)


def test_a_pause_is_seen_and_left_out_of_the_stretches(tmp_path: Path) -> None:
    write(tmp_path, "1", *even(0, 3), *even(8, 11))
    log = WorkLog(tmp_path)
    log.read_marks()
    assert has_pause(log, 0, 11 * NS)
    assert not has_pause(log, 0, 3 * NS)
    assert log.find_stretches(0, 11 * NS) == [(0, 3 * NS), (8 * NS, 11 * NS)]


def test_uneven_work_makes_the_rate_unsure_and_too_few_reports_say_nothing(tmp_path: Path) -> None:
    for t in range(8):
        write(tmp_path, "1", *even(t, t + 1, 20.0 if t < 4 else 10.0))
    log = WorkLog(tmp_path)
    log.read_marks()
    assert 0.1 < estimate_rate_u(log, 0, 8 * NS) < 0.5
    assert estimate_rate_u(log, 0, 4 * NS) < 1e-6
    assert estimate_rate_u(log, NS, round(1.05 * NS)) == 1.0
