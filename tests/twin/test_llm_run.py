"""Runs of the simulated inference server in virtual time: as any run to its readers, and judged by the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from joulelab.analysis.analyse import analyse_run
from joulelab.serving.request_records import PROGRESS_NS, list_requests
from joulelab.store.run_reader import open_run
from joulelab.twin.llm_model import EnginePlace, LlmParameters
from joulelab.twin.llm_run import GPU, NVML, WALL, WALL_METERS, LlmScenario, TokenLengths, draw_scenario, write_llm_run
from joulelab.twin.model import H100, Node

SMALL = LlmScenario(
    node=Node(name="small", gpus=(H100,) * 2, packages=1),
    parameters=LlmParameters(gpus=2, busy_w=150, cached_share=0.2, most_running=16),
    rates=(2.0, 5.5),
    requests=40,
    prompt=TokenLengths(200),
    output=TokenLengths(40),
    cap_w=400.0,
    meters={"nvml": NVML, "analyzer": WALL_METERS["analyzer"]},
    warm_up_s=4.0,
    seed=3,
)


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    return write_llm_run(tmp_path_factory.mktemp("runs"), SMALL)


def test_true_energies_of_requests_add_up_at_the_gpus_and_at_the_wall(truth) -> None:
    start_ns, end_ns = truth.timeline.start_ns, truth.timeline.end_ns
    for scope in (GPU, WALL):
        above_j = truth.find_energy_j(scope, start_ns, end_ns) - truth.find_idle_w(scope) * (end_ns - start_ns) * 1e-9
        assert sum(one.find_energy_j(scope) for one in truth.requests) == pytest.approx(above_j, rel=1e-6)
    tokens = [sum(getattr(one, name) for one in truth.requests) for name in ("prefill_tokens", "decode_tokens")]
    parts = truth.find_prefill_j() * tokens[0] + truth.find_decode_j() * tokens[1]
    assert parts == pytest.approx(sum(one.find_energy_j() for one in truth.requests))


def test_the_run_is_analysed_as_any_other(truth) -> None:
    with open_run(truth.run) as run:
        result = analyse_run(run)
        requests = list_requests(run.marks())
    start_ns, end_ns = truth.timeline.start_ns, truth.timeline.end_ns
    names = [(phase.name, phase.n) for phase in result.phases]
    parts = [("warm-up", None), ("steady", None), ("drain", None)]
    assert names == [("rate", 2), *parts, ("rate 5.5", None), *parts]
    assert result.work["output_tokens"] == sum(one.output_tokens for one in requests)
    assert result.work["prompt_tokens"] == sum(one.prompt_tokens for one in requests)
    assert result.work["requests"] == len(requests) == len(truth.requests)
    for scope, point in (("gpu", GPU), ("node.ac", WALL)):
        found = [one.energy for one in result.scopes if one.scope == scope or one.scope.startswith(f"{scope}:")]
        true_j = truth.find_energy_j(point, start_ns, end_ns)
        assert sum(one.value for one in found) == pytest.approx(true_j, abs=sum(one.expanded for one in found))


def test_records_tell_what_a_client_sees(truth) -> None:
    with open_run(truth.run) as run:
        requests = list_requests(run.marks())
        facts = [line["facts"] for line in run.marks() if line["mark"] == "fact"]
    assert [one.id for one in sorted(requests, key=lambda one: one.id)] == [one.id for one in truth.requests]
    true = {one.id: one for one in truth.requests}
    for one in requests:
        assert one.status == "ok"
        assert one.prompt_tokens - one.cached_tokens == true[one.id].prefill_tokens
        assert one.output_tokens - 1 == true[one.id].decode_tokens == sum(one.progress)
        assert len(one.progress) <= math.ceil((one.last_ns - one.first_ns + 1) / PROGRESS_NS)
    steady = [one for one in requests if truth.steps[0].steady_s <= (one.sent_ns - truth.timeline.start_ns) * 1e-9]
    steady = [one for one in steady if (one.sent_ns - truth.timeline.start_ns) * 1e-9 < truth.steps[0].drain_s]
    assert facts[0]["requests_ok"] == len(steady)
    assert facts[0]["ttft_p50"] == pytest.approx(np.median([one.ttft_s for one in steady]), abs=0.002)


def test_requests_that_an_overloaded_server_cannot_end_are_cancelled(tmp_path) -> None:
    scenario = replace(SMALL, rates=(40.0,), requests=60, drain_s=1.0, cap_w=200.0)
    truth = write_llm_run(tmp_path, scenario)
    with open_run(truth.run) as run:
        requests = list_requests(run.marks())
    cancelled = [one for one in requests if one.status == "cancelled"]
    assert 5 < len(cancelled) < len(requests) == len(truth.requests)
    assert any(one.first_ns is None for one in cancelled)
    assert {one.output_tokens for one in cancelled} == {None}
    start_ns, end_ns = truth.timeline.start_ns, truth.timeline.end_ns
    above_j = truth.find_energy_j(GPU, start_ns, end_ns) - truth.find_idle_w(GPU) * (end_ns - start_ns) * 1e-9
    assert sum(one.find_energy_j() for one in truth.requests) == pytest.approx(above_j, rel=1e-6)


def test_drawn_scenarios_are_wide_and_physical() -> None:
    drawn = [draw_scenario(seed) for seed in range(100)]
    for scenario in drawn:
        p = scenario.parameters
        gpu = EnginePlace(scenario.node, p.gpus).gpu
        range_w = p.gpus * (gpu.max_w - gpu.idle_w)
        assert p.busy_w + p.prefill_j / p.prefill_s < 1.05 * range_w
        assert p.busy_w + p.decode_j / p.decode_s < 20 * range_w
        assert min(p.decode_j, p.context_j) > 0
        assert len(scenario.rates) * scenario.requests >= 500
    assert {len(scenario.meters) for scenario in drawn} == {1, 2}
    assert 15 < sum(scenario.cap_w is not None for scenario in drawn) < 60
    assert max(s.rates[-1] for s in drawn) / min(s.rates[0] for s in drawn) > 30
    assert draw_scenario(5) == draw_scenario(5)
