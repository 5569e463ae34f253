"""Runs that stay open for zooming: few of them, and no more rows than fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import make_run

from joulelab.web.heavy import OpenRuns

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("most", "most_rows", "kept"), [(2, 10**9, 2), (9, 1, 1), (9, 10**9, 3)])
def test_the_longest_unused_are_closed(tmp_path: Path, most: int, most_rows: int, kept: int) -> None:
    runs = [make_run(tmp_path, seconds=2.0) for _ in range(3)]
    opened = OpenRuns(most, most_rows)
    for run in runs:
        assert opened.use(run, lambda found: found.rows) > 0
    assert list(opened._runs) == runs[-kept:]
    again = opened.use(runs[-1], lambda found: found)
    assert opened.use(runs[-1], lambda found: found) is again
    opened.close()
    assert not opened._runs
