"""Goals of energy per unit of work, with limits of numbers that runs report."""

from __future__ import annotations

import pytest

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.analysis.study_cells import Cell, Trial
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity


def test_goals_of_work_are_read_and_written():
    texts = {
        "j_per_output_token@ttft_p99<0.5s": "j_per_output_token@ttft_p99<=0.5",
        "j_per_tokens": "j_per_token",
        "J_per_request@latency_p99<=300ms@slowdown=5%": "j_per_request@slowdown=5%@latency_p99<=0.3",
        "j_per_sample@late_sends<1%@accuracy>0.9": "j_per_sample@late_sends<=0.01@accuracy>=0.9",
        "energy@accuracy>=0.98": "energy@accuracy>=0.98",
    }
    wrong = {text: Goal.parse(text).text for text in texts if Goal.parse(text).text != texts[text]}
    assert not wrong
    assert all(Goal.parse(text) == Goal.parse(Goal.parse(text).text) for text in texts)
    for text, code in {"j_per_": "config.goal-unknown", "j_per_token@ttft<soon": "config.goal-quality-limit"}.items():
        with pytest.raises(ConfigError) as caught:
            Goal.parse(text)
        assert caught.value.code == code


def test_kinds_of_work_with_a_common_last_word_count_together():
    work = {"prompt_tokens": 30.0, "output_tokens": 12.0, "requests": 2.0}
    found = {
        name: Goal.parse(f"j_per_{name}").find_work(work) for name in ("output_token", "token", "request", "sample")
    }
    assert found == {"output_token": 12.0, "token": 42.0, "request": 2.0, "sample": None}


def make_cell(cap: int, joules: float, tokens: float, ttft_s: float) -> Cell:
    trials = tuple(
        Trial(
            Quantity(joules * (1 + d), {"gain:m": 0.01 * joules}),
            60.0,
            {"output_tokens": tokens},
            f"{cap}{d}",
            facts={"ttft_p99": ttft_s * (1 + d)},
        )
        for d in (-0.004, 0.0, 0.004)
    )
    return Cell(f"c{cap}", {"cap": cap}, trials)


def test_the_best_cell_is_that_with_the_least_energy_per_token_within_the_limit():
    cells = [
        make_cell(400, 900.0, 1000.0, 0.8),
        make_cell(500, 1000.0, 1050.0, 0.4),
        make_cell(600, 1005.0, 1050.0, 0.39),
        make_cell(700, 1300.0, 1100.0, 0.3),
    ]
    goals = [
        Goal.parse("j_per_output_token"),
        Goal.parse("j_per_output_token@ttft_p99<500ms"),
        Goal.parse("j_per_sample"),
    ]
    summary = summarise_cells(cells, goals=goals)
    free, limited = (summary.best_for(goal) for goal in goals[:2])
    assert (free.cell, free.score.value) == ("c400", pytest.approx(0.9))
    assert (limited.cell, limited.tied) == ("c500", ("c600",))
    assert summary.best_for(goals[2]) is None
    assert "work.lacking" in [note.code for note in summary.notes]
