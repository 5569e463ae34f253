"""Energy of windows is divided among requests exactly, and near the truth of a simulated server."""

from __future__ import annotations

import numpy as np
import pytest

from joulelab.serving.attribution import (
    EnergyWindows,
    IdlePower,
    compute_token_energy,
    fit_requests,
)
from joulelab.serving.energy_shares import share_energy, split_by_time, split_by_tokens
from joulelab.serving.request_records import Request
from joulelab.serving.window_fit import fit_nonnegative

NS = 1_000_000_000
ITERATION_S, ITERATION_J, PREFILL_J, DECODE_J = 0.02, 1.0, 0.01, 0.2
IDLE_W = 70.0


def serve(
    seed: int, count: int = 120, *, with_progress: bool = True
) -> tuple[list[Request], EnergyWindows, np.ndarray]:
    """Serve requests in iterations of equal length; return them, the energy of windows of 2 s, and each one's truth."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(0.8, count)) + 10
    prompts, outputs = rng.integers(50, 900, count), rng.integers(20, 150, count)
    begin = np.floor(arrivals / ITERATION_S).astype(int) + 1  # the iteration of the prefill
    last = begin + outputs - 1
    total = int(last.max()) + 500
    members = np.zeros(total)
    energy = np.zeros(total)
    for k in range(count):
        members[begin[k] : last[k] + 1] += 1
        energy[begin[k]] += PREFILL_J * prompts[k]
        energy[begin[k] + 1 : last[k] + 1] += DECODE_J
    energy += ITERATION_J * (members > 0)
    share = np.divide(ITERATION_J, members, out=np.zeros(total), where=members > 0)
    true = [
        PREFILL_J * prompts[k] + DECODE_J * (outputs[k] - 1) + share[begin[k] : last[k] + 1].sum() for k in range(count)
    ]
    per_window = round(2 / ITERATION_S)
    windows = len(energy) // per_window
    measured = energy[: windows * per_window].reshape(windows, per_window).sum(axis=1) + 2 * IDLE_W
    requests = []
    for k in range(count):
        first_ns, last_ns = (round((i + 1) * ITERATION_S * NS) for i in (begin[k], last[k]))
        times = (np.arange(1, outputs[k]) * ITERATION_S / 0.25).astype(int)
        progress = tuple(int(n) for n in np.bincount(times)) if with_progress else ()
        sent_ns = round(arrivals[k] * NS)
        requests.append(
            Request(str(k), sent_ns, sent_ns, first_ns, last_ns, int(prompts[k]), int(outputs[k]), progress=progress)
        )
    edges = (np.arange(windows + 1) * 2 * NS).astype(np.int64)
    return requests, EnergyWindows(edges, measured), np.array(true)


@pytest.mark.parametrize("with_progress", [True, False])
def test_tokens_and_requests_get_their_true_energy(with_progress):
    requests, measured, true = serve(1, with_progress=with_progress)
    activity, model = fit_requests(measured, requests)
    assert model.idle.source == "gaps"
    assert model.idle.watts == pytest.approx(IDLE_W, rel=1e-3)
    assert model.lag_s == pytest.approx(0.0, abs=ITERATION_S)
    tokens = compute_token_energy(measured, activity, model)
    assert tokens.prefill_j == pytest.approx(PREFILL_J, rel=0.03)
    parts_j = tokens.prefill_j * tokens.prefill_tokens + tokens.decode_j * tokens.decode_tokens
    assert parts_j == pytest.approx(tokens.active_j, rel=1e-12)
    shares = share_energy(measured, activity, model, with_idle=False)
    error = np.median(np.abs(shares.total_j / true - 1))
    active_j = float(true.sum())
    by_tokens, by_time = (
        np.median(np.abs(split(active_j, requests) / true - 1)) for split in (split_by_tokens, split_by_time)
    )
    assert error < 0.03
    assert error < 0.5 * min(by_tokens, by_time)


@pytest.mark.parametrize("with_idle", [True, False])
def test_shares_add_up_to_the_measured_energy(with_idle):
    requests, measured, _ = serve(2)
    activity, model = fit_requests(measured, requests, IdlePower(IDLE_W, 0.5, "before"))
    shares = share_energy(measured, activity, model, with_idle=with_idle)
    assert shares.total_j.sum() + shares.unassigned_j == pytest.approx(measured.energy_j.sum(), rel=1e-12)
    assert (shares.idle_j > 0).all() == with_idle
    whole, u = shares.sum_requests(range(len(requests)))
    assert whole == pytest.approx(shares.total_j.sum())
    # All requests together get the energy above idle, however it is divided: only idle power is uncertain.
    busy_s = float(measured.seconds[~activity.is_empty].sum())
    assert u == pytest.approx(0.5 * busy_s, rel=0.5)


def test_the_lag_of_a_meter_is_found():
    requests, measured, _ = serve(1)
    late = EnergyWindows(measured.edges_ns + round(0.06 * NS), measured.energy_j)
    activity, model = fit_requests(late, requests)
    assert model.lag_s == pytest.approx(0.06, abs=ITERATION_S)
    assert compute_token_energy(late, activity, model).prefill_j == pytest.approx(PREFILL_J, rel=0.03)


def test_too_few_windows_have_no_model():
    requests, measured, _ = serve(3, count=4)
    short = EnergyWindows(measured.edges_ns[:11], measured.energy_j[:10])
    assert fit_requests(short, requests) is None


def test_requests_without_answer_or_tokens_get_no_prefill():
    requests, measured, _ = serve(4)
    silent = Request(
        "silent", requests[5].sent_ns, requests[5].sent_ns, None, requests[5].last_ns, None, None, "stalled"
    )
    unknown = Request(
        "x", requests[6].sent_ns, requests[6].sent_ns, requests[6].first_ns, requests[6].last_ns, None, None
    )
    every = [*requests, silent, unknown]
    activity, model = fit_requests(measured, every, IdlePower(IDLE_W, 0.1, "before"))
    shares = share_energy(measured, activity, model, with_idle=False)
    assert np.isfinite(shares.total_j).all()
    assert shares.parts_j[-2:, 1:].sum() == 0
    assert shares.total_j.sum() + shares.unassigned_j == pytest.approx(measured.energy_j.sum(), rel=1e-12)


def test_parameters_are_not_negative():
    rng = np.random.default_rng(0)
    design = rng.uniform(0, 1, (50, 3))
    found = fit_nonnegative(design, design @ np.array([2.0, -1.0, 0.5]))
    assert (found >= 0).all()
    assert found[1] == 0
    assert fit_nonnegative(design, design @ np.array([2.0, 1.0, 0.5])) == pytest.approx([2.0, 1.0, 0.5])
