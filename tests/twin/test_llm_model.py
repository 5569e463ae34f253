"""The simulated inference engine: its times, its power, and the true energy of every request."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from joulelab.core.errors import ConfigError
from joulelab.twin.llm_model import (
    EnginePlace,
    LlmCourse,
    LlmEngine,
    LlmParameters,
    LlmRequest,
    LlmSimulation,
    simulate_requests,
)
from joulelab.twin.model import A100, H100, Cpu, Node
from joulelab.twin.truth import Truth

PLAIN = LlmParameters(
    fixed_s=0.01, prefill_s=1e-4, decode_s=1e-3, context_s=2e-3, busy_w=50.0, prefill_j=0.02, decode_j=0.3,
    context_j=0.5, most_running=4, most_prefill=150,
)  # fmt: skip


def sum_power(course: LlmCourse) -> float:
    """Return the energy above idle of the whole course (J); its last piece is idle."""
    return float(np.diff(course.begins_s) @ np.array(course.watts[:-1]))


def make_requests() -> list[LlmRequest]:
    rng = np.random.default_rng(7)
    lengths = zip(np.sort(rng.uniform(0, 2, 40)), rng.integers(1, 400, 40), rng.integers(1, 60, 40), strict=True)
    return [LlmRequest(float(t), int(prompt), int(output), int(prompt) // 3) for t, prompt, output in lengths]


def test_a_request_alone_bears_its_tokens_their_time_and_the_fixed_time_of_its_iterations() -> None:
    one = LlmRequest(1.0, 100, 3)
    course = simulate_requests(PLAIN, H100, [one])
    contexts = 0.101 + 0.102
    assert one.prefill_j == pytest.approx(100 * (0.02 + 50 * 1e-4))
    assert one.decode_j == pytest.approx(2 * (0.3 + 50 * 1e-3) + contexts * (0.5 + 50 * 2e-3))
    assert one.base_j == pytest.approx(3 * 50 * 0.01)
    assert one.first_s - 1.0 == pytest.approx(0.01 + 100 * 1e-4)
    assert one.last_s - one.first_s == pytest.approx(2 * (0.01 + 1e-3) + contexts * 2e-3)
    assert course.begins_s[1] == 1.0
    assert course.watts[-1] == 0


def test_energies_of_requests_add_up_to_that_of_the_power_with_chunks_caches_batches_and_caps() -> None:
    for cap_w in (math.inf, 200.0):
        requests = make_requests()
        course = simulate_requests(PLAIN, H100, requests, cap_w)
        assert all(request.is_done and request.produced == request.output_tokens for request in requests)
        assert sum(request.energy_j for request in requests) == pytest.approx(sum_power(course), rel=1e-9)
        assert sum(course.tokens) == sum(request.output_tokens for request in requests)
    free, held = (simulate_requests(PLAIN, H100, make_requests(), cap_w) for cap_w in (math.inf, 200.0))
    assert max(held.watts) <= 130 + 1e-9 < max(free.watts)
    assert held.ends_s[-1] > 1.02 * free.ends_s[-1]
    assert max(held.wanted_w) > 130


def test_requests_of_one_iteration_share_its_fixed_time_and_wait_for_a_place() -> None:
    requests = [LlmRequest(0.0, 10, 5) for _ in range(5)]
    simulate_requests(PLAIN, H100, requests)
    assert [one.first_s for one in requests[:4]] == [requests[0].first_s] * 4
    assert requests[4].first_s > requests[0].last_s
    assert requests[0].base_j == pytest.approx(50 * 0.01 * 5 / 4)


def test_a_dropped_request_keeps_its_energy_and_leaves_the_others_right() -> None:
    requests = make_requests()
    simulation = LlmSimulation(LlmEngine(PLAIN, H100))
    simulation.add_requests(requests)
    simulation.advance(1.0)
    left = [*simulation.engine.decoding, *simulation.engine.prefilling, *simulation.engine.waiting]
    gone = left[::2]
    for request in gone:
        simulation.engine.drop_request(request, simulation.now_s)
    assert simulation.finish(3.0)
    assert simulation.engine.is_idle
    assert not any(request.is_done for request in gone)
    assert sum(request.energy_j for request in requests) == pytest.approx(sum_power(simulation.course), rel=1e-9)


def test_the_node_draws_more_at_the_wall_as_its_truth_file_says(tmp_path) -> None:
    node = Node(gpus=(H100,) * 4, cpu=Cpu(idle_w=90, awake_w=120))
    place = EnginePlace(node, 2)
    with Truth.create(tmp_path / "truth", node, start_ns=0) as truth:
        for leaf in place.lines:
            truth.append(leaf, 10**9, *[place.leaf_watts(leaf, np.array([400.0]))] * 2)
        rise_w = truth.power("node.ac", 2 * 10**9) - truth.power("node.ac", 0)
        assert place.wall_w(400.0) == pytest.approx(rise_w, rel=1e-9)
        assert truth.power("gpu:1", 2 * 10**9) - truth.power("gpu:1", 0) == pytest.approx(200)
        assert truth.power("gpu:2", 2 * 10**9) == truth.power("gpu:2", 0)
    assert rise_w > 400
    assert place.wall_w(0.0) == 0
    one = LlmRequest(0.0, 100, 20)
    engine = LlmEngine(replace(PLAIN, gpus=2), place.gpu, place.wall_w)
    simulation = LlmSimulation(engine)
    simulation.add_requests([one])
    simulation.finish()
    course = simulation.course
    walls = np.array([place.wall_w(watts) for watts in course.watts[:-1]])
    assert one.wall_prefill_j + one.wall_decode_j == pytest.approx(np.diff(course.begins_s) @ walls, rel=1e-9)


def test_impossible_engines_are_refused() -> None:
    wrong: list[str] = []
    for changes in ({"decode_j": -1.0}, {"gpus": 0}, {"fixed_s": 0.0}, {"busy_w": math.nan}, {"cached_share": 1.0}):
        try:
            LlmParameters(**changes)
        except ConfigError:
            continue
        wrong.append(str(changes))
    for count, node in ((9, Node()), (2, Node(gpus=(H100, A100)))):
        try:
            EnginePlace(node, count)
        except ConfigError:
            continue
        wrong.append(str(count))
    assert not wrong


def test_a_counter_never_falls_while_iterations_follow_each_other_in_the_truth_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(np, "empty", np.zeros)  # new memory often is, and a time of 0 is before all others
    with Truth.create(tmp_path / "truth", Node(gpus=(H100,)), start_ns=0, room=2000) as truth:
        before = 0.0
        for k in range(1, 400):
            truth.append("cpu:0", (k * 10, k * 10 + 10), (200.0, 90.0), (200.0, 90.0))
            now = truth.energy("cpu:0", 0, k * 10 + 5)
            assert now > before
            before = now
        assert before == pytest.approx((10 * 90 + 3985 * 200) * 1e-9)
