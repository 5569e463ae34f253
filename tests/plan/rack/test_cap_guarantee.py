"""What caps promise: host from what was given, measured or the nameplate; the cap for so many nodes and its price."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.plan.measured_runs import measured, node_run

from joulelab.analysis.study_cells import Note
from joulelab.core.quantity import Quantity
from joulelab.plan.cap_response import CapPoint, CapResponse
from joulelab.plan.plan_tables import NodeKind
from joulelab.plan.rack.cap_guarantee import (
    ACCURACY,
    EFFICIENCIES,
    FOLLOW,
    GPU_ACCURACY,
    PEAKS,
    CapBound,
    CapGuarantee,
    CapOption,
    add_cap_cost,
    find_guarantee,
    find_guaranteed_cap,
    find_measured_cap,
)

if TYPE_CHECKING:
    from pathlib import Path

DGX = NodeKind("dgx", rated_w=10_200.0, gpus=8, gpu_w=700.0)
GPU_ERROR = 2 * 0.05 / math.sqrt(3)  # k = 2 of what `node_run` states of its GPUs, all alike


def made(kind: NodeKind, *runs: Path) -> CapGuarantee:
    found = find_guarantee(kind, [measured(run) for run in runs])
    assert isinstance(found, CapGuarantee), found
    return found


def code_of(option: CapOption) -> str:
    assert option.refusal is not None
    return option.refusal.code


def response(*points: tuple[float, float, float, float]) -> CapResponse:
    """Cap, time ratio, mean and highest power."""
    return CapResponse(
        tuple(
            CapPoint(cap, Quantity(t, {f"t{cap}": 0.01}), Quantity(w, {f"w{cap}": 50.0}), high)
            for cap, t, w, high in points
        ),
        "measured",
    )


SWEPT = response((400.0, 1.3, 5_000.0, 5_600.0), (500.0, 1.1, 6_000.0, 6_600.0), (700.0, 1.0, 7_500.0, 8_480.0))


def test_a_host_that_was_given_goes_through_the_supplies():
    found = made(replace(DGX, host_w=2_000.0, efficiency=0.94))
    assert found.source == "given"
    assert found.bound_node(500.0) == pytest.approx((2_000 + 8 * 500) / 0.94)
    assert found.find_cap(found.bound_node(500.0)) == pytest.approx(500.0)


def test_by_the_nameplate_the_highest_cap_is_the_nameplate():
    found = made(DGX)
    assert found.source == "nameplate"
    assert found.bound_node(700.0) == pytest.approx(10_200.0)


def test_an_efficiency_that_nobody_gave_counts_at_its_worse_end():
    found = made(DGX)
    for share in EFFICIENCIES:
        one = made(replace(DGX, efficiency=share))
        assert all(found.bound_node(cap) >= one.bound_node(cap) - 1e-9 for cap in (300.0, 500.0, 700.0, 900.0))
        assert all(found.find_cap(w) <= one.find_cap(w) + 1e-9 for w in (6_000.0, 8_000.0, 12_000.0))


def test_a_host_that_was_measured_is_what_the_gpus_leave(tmp_path: Path):
    run = node_run(tmp_path, 6_000.0, gpu_w=600.0, gpus=8, seconds=30.0)
    found = made(NodeKind("dgx", gpu_w=700.0, efficiency=0.96), run)
    assert (found.source, found.gpus, found.lacks) == ("measured", 8, ())
    (draw,) = measured(run).draws
    assert draw.gain
    # GPUs that read low draw more than they say, and leave less to the host; and the other way round.
    rests = [6_000 * (1 + draw.gain) - 8 * 600 * (1 + e) / 0.96 for e in (-GPU_ERROR, GPU_ERROR)]
    assert [line.host_w for line in found.bounds] == pytest.approx(rests, rel=2e-3)
    assert found.host_w == pytest.approx(rests[0], rel=2e-3)
    # At what the GPUs drew, the promise is what the node drew, with the meter's gain: their own error cancels.
    assert found.bound_node(600.0) == pytest.approx(6_000 * (1 + draw.gain), rel=2e-3)
    # Below it the least that they may have come down counts.
    assert found.bound_node(600.0) - found.bound_node(500.0) == pytest.approx(
        8 * 100 * (1 - GPU_ERROR) / 0.96, rel=1e-6
    )


def test_above_what_was_seen_fans_follow(tmp_path: Path):
    run = node_run(tmp_path, 6_000.0, gpu_w=600.0, gpus=8, seconds=30.0)
    found = made(NodeKind("dgx", gpu_w=700.0, efficiency=0.96), run)
    seen_w = found.bounds[0].seen_w
    assert seen_w == pytest.approx(600.0, rel=1e-3)
    assert found.bound_node(seen_w + 100) - found.bound_node(seen_w) == pytest.approx(8 * 100 * FOLLOW)
    for cap_w in (400.0, 590.0, 690.0):
        assert found.find_cap(found.bound_node(cap_w)) == pytest.approx(cap_w)
    assert CapBound(1_000.0, 1.3, 500.0).bound_node(600.0, 1) == pytest.approx(
        1_000 + 1.3 * 600
    )  # a steeper slope stays


def test_hidden_peaks_and_other_nodes_raise_the_host_alone(tmp_path: Path):
    run = measured(node_run(tmp_path, 6_000.0, gpu_w=600.0, gpus=8))
    kind = NodeKind("dgx", gpu_w=700.0)
    plain, wider, unknown = (find_guarantee(kind, [run], factor) for factor in (1.0, 1.05, None))
    assert isinstance(plain, CapGuarantee)
    assert isinstance(wider, CapGuarantee)
    assert isinstance(unknown, CapGuarantee)
    assert [b.host_w / a.host_w for a, b in zip(plain.bounds, wider.bounds, strict=True)] == pytest.approx([1.05] * 4)
    assert unknown.bounds == plain.bounds
    assert unknown.lacks == (PEAKS,)


def test_what_nobody_states_is_told_with_the_promise(tmp_path: Path):
    run = node_run(tmp_path, 6_000.0, gpu_w=600.0, gpus=8, gain=None)
    assert made(NodeKind("dgx", gpu_w=700.0), run).lacks == (ACCURACY,)
    assert made(DGX).lacks == (GPU_ACCURACY,)  # no GPU was read
    assert made(replace(DGX, host_w=2_000.0)).lacks == (GPU_ACCURACY,)


def test_behind_the_supplies_all_goes_through_them(tmp_path: Path):
    run = node_run(tmp_path, 6_000.0, gpu_w=600.0, gpus=8, scope="node.dc", seconds=30.0)
    found = made(NodeKind("dgx", gpu_w=700.0, efficiency=0.96), run)
    (draw,) = measured(run).draws
    assert found.bound_node(found.bounds[0].seen_w) == pytest.approx(6_000 * (1 + (draw.gain or 0.0)) / 0.96, rel=2e-3)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (NodeKind("x", rated_w=5_000.0), "rack.gpus-unknown"),
        (NodeKind("x", gpus=8), "rack.host-unknown"),
        (NodeKind("x", gpus=8, gpu_w=700.0, rated_w=5_000.0), "rack.gpus-above-nameplate"),
    ],
)
def test_what_cannot_be_promised_says_what_is_missing(kind: NodeKind, code: str):
    found = find_guarantee(kind, [])
    assert isinstance(found, Note)
    assert found.code == code


def test_the_cap_for_a_power_holds_it_and_costs_what_was_measured():
    guarantee = made(replace(DGX, host_w=2_000.0, efficiency=0.94))
    found = find_guaranteed_cap(guarantee, 6_400.0, SWEPT)
    assert found.cap_w == 502.0  # 6400 x 0.94 - 2000 over eight
    assert guarantee.bound_node(found.cap_w) <= 6_400.0 + 1e-6 < guarantee.bound_node(found.cap_w + 1)
    assert found.slowdown is not None
    assert 1.0 < found.slowdown.value < 1.1
    assert found.energy is not None
    assert found.energy.value < 1
    assert found.energy.expanded


def test_no_cap_is_needed_where_the_highest_fits():
    guarantee = made(replace(DGX, host_w=2_000.0, efficiency=0.94))
    assert not find_guaranteed_cap(guarantee, 9_000.0, SWEPT).is_needed
    assert not find_measured_cap(SWEPT, 9_000.0).is_needed


def test_below_the_lowest_cap_measured_nothing_is_said():
    guarantee = made(replace(DGX, host_w=2_000.0, efficiency=0.94))
    promised = find_guaranteed_cap(guarantee, 5_000.0, SWEPT)
    assert promised.cap_w == 337.0
    assert promised.slowdown is None
    assert code_of(promised) == "rack.cap-outside-figures"
    assert code_of(find_measured_cap(SWEPT, 5_000.0)) == "rack.cap-outside-figures"
    assert code_of(find_guaranteed_cap(guarantee, 2_000.0, SWEPT)) == "rack.host-too-high"
    assert code_of(add_cap_cost(None, 500.0)) == "rack.cost-unknown"


def test_a_cap_that_no_gpu_takes_is_no_answer():
    guarantee = made(replace(DGX, host_w=2_000.0, efficiency=0.94))
    assert guarantee.lowest_cap_w == 200.0
    found = find_guaranteed_cap(guarantee, 3_000.0, SWEPT)
    assert found.cap_w is None
    assert found.refusal == Note("rack.cap-too-low", {"cap_w": 102, "gpu_w": 700.0, "lowest_w": 200.0})
    assert find_guaranteed_cap(replace(guarantee, gpu_w=None), 3_000.0, SWEPT).cap_w == 102.0


def test_where_even_the_reference_had_a_cap_it_has_to_be_set():
    found = find_measured_cap(SWEPT, 9_000.0, is_free=False)
    assert found.is_needed
    assert found.cap_w == 700.0
    assert found.slowdown is not None
    assert found.slowdown.value == 1.0


def test_by_measurement_the_highest_cap_seen_to_fit_counts_with_what_the_meter_may_hide():
    found = find_measured_cap(SWEPT, 6_700.0)
    assert found.cap_w == 500.0
    assert found.slowdown == SWEPT.points[1].slowdown
    assert found.energy is not None
    assert found.energy.value == pytest.approx(1.1 * 6_000 / 7_500)
    assert find_measured_cap(SWEPT, 6_700.0, wider=1.03).cap_w == 400.0


def test_a_noisy_higher_cap_that_fits_does_not_count_above_one_that_does_not():
    noisy = response((400.0, 1.3, 5_000.0, 5_600.0), (500.0, 1.1, 6_000.0, 7_000.0), (700.0, 1.0, 7_500.0, 6_900.0))
    assert find_measured_cap(noisy, 6_950.0).cap_w == 400.0
