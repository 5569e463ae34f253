from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from tests.analysis.studies import by_cap
from tests.rows import every_row

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import Goal, QualityLimit, choose_best, refuse_work_goal
from joulelab.analysis.study_cells import CellMeans
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity


@every_row(
    ("text", "goal"),
    [
        ("energy", Goal("energy")),
        ("time", Goal("time")),
        (" EDP ", Goal("edp")),
        ("ed2p", Goal("ed2p")),
        ("eds:1.5", Goal("eds", 1.5)),
        ("eds:2", Goal("eds", 2.0)),
        ("gain-loss", Goal("gain-loss")),
        ("energy@slowdown=5%", Goal("energy", slowdown=0.05)),
        ("edp@slowdown=12.5%", Goal("edp", slowdown=0.125)),
        ("eds:1", Goal("eds", 1.0)),
        ("energy@accuracy>=0.98", Goal("energy", quality=(QualityLimit("accuracy", ">=", 0.98),))),
        (
            "edp@slowdown=5%@mape<=5.65@top 5>=0.9",
            Goal("edp", None, 0.05, (QualityLimit("mape", "<=", 5.65), QualityLimit("top 5", ">=", 0.9))),
        ),
    ],
)
def test_a_goal_is_read_and_written(text: str, goal: Goal) -> None:
    assert Goal.parse(text) == goal
    assert goal.text == text.strip().lower()
    assert Goal.parse(goal.text) == goal


def test_short_forms() -> None:
    assert Goal.parse("eds") == Goal("eds", 2.0)
    assert Goal.parse("energy@slowdown=0.05") == Goal.parse("energy@slowdown=5%")
    assert Goal.parse("Energy @ F1 >= .9 @ Slowdown=5%").text == "energy@slowdown=5%@F1>=0.9"


@every_row(
    ("texts", "code"),
    [
        (("", "watts", "edp:2"), "config.goal-unknown"),
        (("eds:x", "eds:", "eds:0.9", "eds:nan", "eds:inf"), "config.goal-k"),
        (("energy@", "energy@slower=5%", "energy@slowdown=fast"), "config.goal-limit"),
        (("energy@accuracy", "energy@slowdown=5%@slowdown=6%"), "config.goal-limit"),
        (("energy@slowdown<=0.05", "energy@slowdown<=5%", "energy@ Slowdown >= 1"), "config.goal-limit"),
        (("energy@accuracy>=98kg", "energy@accuracy>=nan"), "config.goal-quality-limit"),
        (("energy@slowdown=-1%", "energy@slowdown=inf"), "config.goal-slowdown"),
        (("energy@slowdown=5",), "config.goal-percent"),
    ],
)
def test_what_is_no_goal_is_refused(texts: tuple[str, ...], code: str) -> None:
    for text in texts:
        with pytest.raises(ConfigError) as caught:
            Goal.parse(text)
        assert caught.value.code == code, text


def test_a_search_refuses_goals_by_work_and_limits_that_are_no_numbers() -> None:
    refuse_work_goal(Goal.parse("energy"))
    with pytest.raises(ConfigError) as refused:
        refuse_work_goal(Goal.parse("j_per_output_token"))
    assert refused.value.code == "config.goal-unknown"
    with pytest.raises(ConfigError) as refused:
        Goal.parse("energy@ttft_p99<1e")
    assert refused.value.code == "config.goal-quality-limit"


def _score(text: str, energy_ratio: float, time_ratio: float) -> float:
    return Goal.parse(text).score(Quantity(energy_ratio), Quantity(time_ratio)).value


def test_scores_are_one_at_the_reference_and_small_is_good() -> None:
    for text in ("energy", "time", "edp", "ed2p", "eds:1.5", "eds:2", "eds:1", "gain-loss"):
        assert _score(text, 1.0, 1.0) == pytest.approx(1.0)
    assert _score("energy", 0.8, 1.1) == 0.8
    assert _score("time", 0.8, 1.1) == 1.1
    assert _score("edp", 0.8, 1.1) == pytest.approx(0.88)
    assert _score("ed2p", 0.8, 1.1) == pytest.approx(0.968)
    assert _score("eds:4", 0.8, 1.1) == pytest.approx(0.75 * 0.8 + 0.25 * 1.1)
    assert _score("eds:1", 0.8, 1.1) == 1.1
    assert _score("gain-loss", 0.8, 1.1) == pytest.approx(1 - (0.2 - 0.1))


def test_what_a_goal_needs() -> None:
    assert [g for g in ("energy", "time", "edp", "eds:1", "eds:2", "gain-loss") if Goal.parse(g).needs_energy] == [
        "energy",
        "edp",
        "eds:2",
        "gain-loss",
    ]
    needing = ("eds:2", "gain-loss", "energy@slowdown=5%")
    assert all(Goal.parse(g).needs_reference for g in needing)
    assert not any(Goal.parse(g).needs_reference for g in ("energy", "time", "edp", "ed2p"))


def test_a_slowdown_is_within_the_limit_surely_possibly_or_not() -> None:
    goal = Goal.parse("energy@slowdown=5%")
    assert goal.judge_slowdown(Quantity(0.03, {"a": 0.005})) == "surely"
    assert goal.judge_slowdown(Quantity(0.045, {"a": 0.005})) == "possibly"
    assert goal.judge_slowdown(Quantity(0.055, {"a": 0.005})) == "possibly"
    assert goal.judge_slowdown(Quantity(0.07, {"a": 0.005})) == "not"
    assert goal.judge_slowdown(Quantity(0.05)) == "surely"
    assert goal.judge_slowdown(Quantity(0.01, {}, known=False)) == "possibly"
    assert Goal.parse("energy").judge_slowdown(Quantity(9.0)) == "surely"


def test_the_bars_of_a_cell_and_of_the_best_add_up_to_the_uncertainty_of_their_difference() -> None:
    def make_means(energy: float, spread: float, key: str) -> CellMeans:
        terms = {"gain:m": 0.05 * energy, f"repeats:energy@{key}": spread}
        return CellMeans(Quantity(energy, terms), Quantity(1.0), spread=True, meters=frozenset({"m"}))

    cells = {"a": make_means(100.0, 1.0, "a"), "b": make_means(102.0, 1.0, "b"), "c": make_means(110.0, 3.0, "c")}
    best = choose_best(Goal("energy"), None, cells, None)
    assert best is not None
    assert (best.cell, best.tied) == ("a", ("b",))
    assert best.bars["a"] + best.bars["b"] == pytest.approx(2 * math.hypot(1, 100 / 102))  # the gain cancels
    assert best.bars["a"] + best.bars["c"] == pytest.approx(2 * math.hypot(1, 3 * 100 / 110))
    alone = choose_best(Goal("energy"), None, {"a": cells["a"]}, None)
    assert alone is not None
    assert alone.bars == {}


@every_row(
    ("quality", "verdict"),
    [
        (Quantity(0.99, {"a": 0.001}), "surely"),
        (Quantity(0.98), "surely"),
        (Quantity(0.981, {"a": 0.001}), "possibly"),
        (Quantity(0.99, known=False), "possibly"),
        (Quantity(0.979, {"a": 0.001}), "possibly not"),
        (Quantity(0.9, known=False), "possibly not"),
        (Quantity(0.97, {"a": 0.001}), "not"),
        (Quantity(math.nan), "unknown"),
        (None, "unknown"),
    ],
)
def test_a_quality_is_judged_by_its_mean_and_its_interval(quality: Quantity | None, verdict: str) -> None:
    assert QualityLimit("accuracy", ">=", 0.98).judge(quality) == verdict
    mirrored = None if quality is None else Quantity(-quality.value, quality.terms, quality.known)
    assert QualityLimit("error", "<=", -0.98).judge(mirrored) == verdict


def test_a_cell_that_misses_the_quality_is_neither_best_nor_as_good() -> None:
    cells = {k: CellMeans(Quantity(e), Quantity(10.0), spread=True) for k, e in {"a": 1.0, "b": 1.0, "c": 2.0}.items()}
    quality = {"a": {"f1": Quantity(0.8)}, "b": {"f1": Quantity(0.9), "mape": Quantity(5.0)}, "c": {"f1": Quantity(1)}}
    found = choose_best(Goal.parse("energy@f1>=0.85"), None, cells, None, quality)
    assert found is not None
    assert (found.cell, found.tied, found.reached) == ("b", (), {"a": "not", "b": "surely", "c": "surely"})
    both = choose_best(Goal.parse("energy@f1>=0.85@mape<=4"), None, cells, None, quality)
    assert both is None
    assert Goal.parse("energy@f1>=0.85@mape<=4").judge_quality(quality["c"]) == "unknown"


def test_verdicts_agree_with_the_gain_of_the_same_report_at_large_scatter() -> None:
    """Whether the best or the other cell is the reference: tied exactly if the gain between them is not resolved."""
    draw = random.Random(22)
    seen = Counter[tuple[bool, bool]]()
    for _ in range(60):
        points = {
            cap: [(base * draw.gauss(1, 0.12), 10 * draw.gauss(1, 0.12)) for _ in range(3)]
            for cap, base in ((100.0, draw.uniform(60, 140)), (200.0, 100.0))
        }
        summary = summarise_cells(by_cap(points), goals=[Goal.parse(g) for g in ("energy", "edp", "ed2p")])
        other = next(c for c in summary.cells if c.key != summary.lines[0].reference)
        for best, gain in zip(summary.best, (other.gain, other.edp_gain, other.ed2p_gain), strict=True):
            assert gain is not None
            assert gain.expanded is not None
            assert bool(best.tied) == (abs(gain.value) <= gain.expanded)
            seen[best.cell == other.key, bool(best.tied)] += 1
    assert len(seen) == 4
