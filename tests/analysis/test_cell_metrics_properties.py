"""Hold what must be so for any study."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.studies import by_cap, cell, trial

from joulelab.analysis.cell_metrics import StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.study_cells import Cell, Trial, compute_means

if TYPE_CHECKING:
    from joulelab.core.quantity import Quantity

POSITIVE = st.floats(1.0, 1e4)
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=1, max_size=4)
STUDIES = st.dictionaries(st.sampled_from([100.0, 150.0, 200.0, 250.0, 260.0]), PAIRS, min_size=2, max_size=5)
FEW = settings(max_examples=40)
pytestmark = pytest.mark.no_cover  # hundreds of studies of what others trace
GOALS = [Goal.parse(g) for g in ("energy", "time", "edp", "ed2p", "eds:1.5", "eds:2", "gain-loss")]


def _close(a: Quantity | None, b: Quantity | None, tolerance: float = 1e-9) -> bool:
    if a is None or b is None:
        return a is b
    size = max(1.0, abs(a.value))
    return math.isclose(a.value, b.value, rel_tol=1e-9, abs_tol=1e-9 * size) and math.isclose(
        a.u, b.u, rel_tol=1e-6, abs_tol=tolerance * size
    )


def _scaled(cells: list[Cell], factor: float) -> list[Cell]:
    def of(t: Trial) -> Trial:
        assert t.energy is not None
        return replace(t, energy=t.energy * factor)

    return [replace(c, trials=tuple(of(t) for t in c.trials)) for c in cells]


def _choices(summary: StudySummary) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(b.goal.text, b.cell, b.tied) for b in summary.best]


@pytest.mark.system  # pure, and slow
@FEW
@given(STUDIES, st.floats(0.25, 4.0))
def test_one_factor_on_all_energies_changes_no_gain(
    points: dict[float, list[tuple[float, float]]], factor: float
) -> None:
    cells = by_cap(points, gain=0.03, edge=0.001)
    a, b = summarise_cells(cells), summarise_cells(_scaled(cells, factor))
    for one, other in zip(a.cells, b.cells, strict=True):
        assert _close(one.gain, other.gain)
        assert _close(one.edp_gain, other.edp_gain)
        assert _close(one.ed2p_gain, other.ed2p_gain)
        assert _close(one.gain_minus_loss, other.gain_minus_loss)
        assert all(_close(one.eds[k], other.eds[k]) for k in a.ks)


@pytest.mark.system  # pure, and slow
@FEW
@given(STUDIES, st.floats(0.001, 0.2))
def test_a_gain_error_cancels_wherever_cells_are_compared(
    points: dict[float, list[tuple[float, float]]], gain: float
) -> None:
    exact, wrong = summarise_cells(by_cap(points), goals=GOALS), summarise_cells(by_cap(points, gain=gain), goals=GOALS)
    for one, other in zip(exact.cells, wrong.cells, strict=True):
        assert one.energy is not None
        assert other.energy is not None
        assert other.energy.u >= gain * other.energy.value * (1 - 1e-9)
        for name in ("gain", "loss", "gain_minus_loss", "edp_gain", "ed2p_gain"):
            assert _close(getattr(one, name), getattr(other, name), 1e-7)
    assert [choice[:2] for choice in _choices(exact)] == [choice[:2] for choice in _choices(wrong)]


@pytest.mark.system  # pure, and slow
@FEW
@given(STUDIES)
def test_the_gain_by_eds_2_is_half_of_gain_minus_loss(points: dict[float, list[tuple[float, float]]]) -> None:
    found = summarise_cells(by_cap(points, gain=0.01, edge=0.002), goals=GOALS)
    for each in found.cells:
        assert each.gain_minus_loss is not None
        assert _close(each.eds_gain[2.0], each.gain_minus_loss * 0.5)
    halves = found.best_for(Goal("eds", 2.0)), found.best_for(Goal("gain-loss"))
    assert halves[0] is not None
    assert halves[1] is not None
    scores = [found.cell(h.cell).gain_minus_loss for h in halves if h is not None]
    assert _close(scores[0], scores[1]) or halves[0].cell == halves[1].cell


@pytest.mark.system  # pure, and slow
@FEW
@given(STUDIES)
def test_the_best_is_never_dominated_and_is_on_the_front(points: dict[float, list[tuple[float, float]]]) -> None:
    found = summarise_cells(by_cap(points), goals=GOALS)
    values = {c.key: (c.energy.value, c.time.value) for c in found.cells if c.energy and c.time}
    for best in found.best:
        e, t = values[best.cell]
        assert not any(a < e * (1 - 1e-9) and b < t * (1 - 1e-9) for a, b in values.values())
        assert best.cell not in best.tied
    front = found.front_for()
    assert front is not None
    assert front.cells
    assert not set(front.cells) & set(front.unsure)
    for key in front.cells:
        assert not any(o != values[key] and o[0] <= values[key][0] and o[1] <= values[key][1] for o in values.values())


@FEW
@given(PAIRS, st.integers(2, 5), st.floats(0, 50), st.floats(0, 50), st.floats(0, 50))
def test_more_repeats_never_widen_without_more_spread(
    pairs: list[tuple[float, float]], times: int, gain: float, edge: float, unseen: float
) -> None:
    if len(pairs) == 1:
        times = 3 if times == 2 else times
    runs = [trial(e, t, gain=gain, edge=edge, unseen=unseen) for e, t in pairs]
    few, many = compute_means(cell("a", runs)), compute_means(cell("a", runs * times))
    assert few is not None
    assert many is not None
    assert few.energy is not None
    assert many.energy is not None
    assert many.energy.u <= few.energy.u * (1 + 1e-9) + 1e-12
    assert many.time.u <= few.time.u * (1 + 1e-9) + 1e-12
    assert math.isclose(few.energy.value, many.energy.value, rel_tol=1e-9)


@pytest.mark.system  # pure, and slow
@FEW
@given(STUDIES)
def test_the_order_of_cells_and_repeats_does_not_matter(points: dict[float, list[tuple[float, float]]]) -> None:
    cells = by_cap(points, gain=0.01)
    turned = [replace(c, trials=tuple(reversed(c.trials))) for c in reversed(cells)]
    a, b = summarise_cells(cells), summarise_cells(turned)
    for each in a.cells:
        assert _close(each.gain, b.cell(each.key).gain)
        assert _close(each.edp, b.cell(each.key).edp)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("test", "drawn"),
    [
        (test_one_factor_on_all_energies_changes_no_gain, (STUDIES, st.floats(0.25, 4.0))),
        (test_a_gain_error_cancels_wherever_cells_are_compared, (STUDIES, st.floats(0.001, 0.2))),
        (test_the_gain_by_eds_2_is_half_of_gain_minus_loss, (STUDIES,)),
        (test_the_best_is_never_dominated_and_is_on_the_front, (STUDIES,)),
        (test_more_repeats_never_widen_without_more_spread, (PAIRS, st.integers(2, 5), *[st.floats(0, 50)] * 3)),
        (test_the_order_of_cells_and_repeats_does_not_matter, (STUDIES,)),
    ],
)
def test_with_more_examples(test: Any, drawn: tuple[st.SearchStrategy[Any], ...]) -> None:
    settings(max_examples=300)(given(*drawn)(test.hypothesis.inner_test))()
