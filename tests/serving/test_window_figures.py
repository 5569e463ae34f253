"""Steady windows of a load have energies per token and request, and the best one is found."""

from __future__ import annotations

import json

import pytest

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.goals import Goal
from joulelab.report.terminal import write_blocks
from joulelab.serving.serving_tables import lay_out_windows
from joulelab.serving.window_figures import choose_best_window, find_widest_scope, list_window_figures
from joulelab.store.run_reader import open_run
from joulelab.twin.llm_run import NVML, WALL_METERS, LlmScenario, write_llm_run
from joulelab.twin.model import H100, Node


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    meters = {"nvml": NVML, "analyzer": WALL_METERS["analyzer"]}
    scenario = LlmScenario(node=Node(gpus=(H100,)), rates=(1.0, 4.0), requests=60, seed=7, meters=meters)
    truth = write_llm_run(tmp_path_factory.mktemp("runs"), scenario)
    with open_run(truth.run) as run:
        return truth, analyse_run(run)


def test_windows_have_the_true_energy_per_token(served):
    truth, result = served
    figures = list_window_figures(result)
    assert [(one.title, one.load) for one in figures] == [("rate 1", 1.0), ("rate 4", 4.0)]
    assert find_widest_scope(figures) == "wall"
    for one, step in zip(figures, truth.steps, strict=True):
        a_ns = result.start_ns + round(one.start_s * 1e9)
        b_ns = a_ns + round(one.duration_s * 1e9)
        assert one.duration_s == pytest.approx(step.drain_s - step.steady_s, rel=1e-6)
        for scope, point in (("gpu", "gpu"), ("wall", "node.ac")):
            true = truth.find_energy_j(point, a_ns, b_ns)
            found = one.scopes[scope]
            assert abs(found.energy.value - true) <= found.energy.expanded
            idle = truth.find_idle_w(point) * one.duration_s
            assert abs(found.net.value - (true - idle)) <= 1.5 * found.net.expanded
        per = one.scopes["wall"].per_unit
        assert per["output_token"].value == pytest.approx(one.scopes["wall"].energy.value / one.work["output_tokens"])
        assert per["token"].value < per["output_token"].value < per["request"].value
        assert one.facts["ttft_p99"] > 0


def test_the_best_window_is_within_the_limit(served):
    figures = list_window_figures(served[1])
    free = choose_best_window(figures, Goal.parse("j_per_output_token"))
    assert free.cell == "rate 4"
    limit = (figures[0].facts["ttft_p99"] + figures[1].facts["ttft_p99"]) / 2
    limited = choose_best_window(figures, Goal.parse(f"j_per_output_token@ttft_p99<{limit:.6f}s"))
    assert limited.cell == min(figures, key=lambda one: one.facts["ttft_p99"]).title
    assert choose_best_window(figures, Goal.parse("j_per_output_token@ttft_p99<0.1ms")) is None


def test_the_table_fits_into_80_columns(served):
    figures = list_window_figures(served[1])
    best = choose_best_window(figures, Goal.parse("j_per_output_token"))
    text = write_blocks(lay_out_windows(figures, best, "j_per_output_token"), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "rate 4 (best)" in text
    json.dumps([one.to_json() for one in figures])
