"""Which work has a figure for each unit, and where it was done."""

from __future__ import annotations

import pytest

from joulelab.analysis.marked_phases import find_work_phase, list_figure_kinds
from joulelab.analysis.result import PhaseResult


def phase(name: str, start_s: float, duration_s: float, samples: float, last: int | None = None) -> PhaseResult:
    return PhaseResult(name, name, None, start_s, duration_s, {}, {"samples": samples}, last=last)


def test_what_was_judged_has_a_figure_only_where_it_is_all_that_was_done() -> None:
    assert list_figure_kinds(["validated", "samples", "FLOP", "samples"]) == ["samples", "FLOP"]
    assert list_figure_kinds({"predicted": 1.0, "FLOP": 2.0}) == ["predicted", "FLOP"]
    assert list_figure_kinds([]) == []


def test_work_is_done_in_the_phases_that_hold_it_and_little_else() -> None:
    epochs = [phase("epoch", 10.0, 5.0, 50.0), phase("epoch", 20.0, 5.0, 50.0)]
    around = [phase("warm-up", 0.0, 1.0, 5.0), phase("train", 0.0, 40.0, 105.0), phase("step", 10.0, 1.0, 10.0, 1)]
    assert find_work_phase([*epochs, *around], "samples") == ("epoch", pytest.approx(10.0))
    assert find_work_phase(epochs, "tokens") is None
    assert find_work_phase([phase("epoch", 0.0, 0.0, 1.0)], "samples") is None
    assert phase("epoch", 0.0, 0.0, 1.0).rates == {}


def test_phases_that_go_on_at_the_same_time_count_once() -> None:
    nodes = [phase("epoch", 0.0, 4.0, 40.0), phase("epoch", 1.0, 4.0, 40.0), phase("epoch", 2.0, 1.0, 20.0)]
    assert find_work_phase(nodes, "samples") == ("epoch", pytest.approx(20.0))
