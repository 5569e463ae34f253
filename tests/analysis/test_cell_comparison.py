"""Samples of repeats and pairs of cells: by hand, by identities, and by simulation."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.simulated import NUMBERS, coverage, family_error, settled
from tests.analysis.studies import by_cap, cell, sweep, trial

from joulelab.analysis.cell_comparison import (
    CellPair,
    RepeatSample,
    compare_cells,
    correct_p_values,
    make_sample,
    make_samples,
)
from joulelab.analysis.cell_metrics import ALL_PAIRS, summarise_cells
from joulelab.analysis.study_cells import Cell, Trial, average_lasting, compute_idle_energy, compute_means
from joulelab.core.quantity import Quantity


def test_a_sample_has_number_mean_deviation_median_and_student_s_interval() -> None:
    sample = make_sample([98.0, 100.0, 105.0])
    assert (sample.n, sample.mean, sample.median) == (3, 101.0, 100.0)
    assert sample.deviation == pytest.approx(math.sqrt(13.0))
    assert sample.half_width == pytest.approx(4.302653 * math.sqrt(13.0 / 3), rel=1e-6)
    assert sample.interval == pytest.approx((101.0 - sample.half_width, 101.0 + sample.half_width))


def test_moments_alone_give_the_same_interval() -> None:
    values = make_sample([98.0, 100.0, 105.0])
    told = RepeatSample(3, values.mean, values.deviation)
    assert told.interval == values.interval
    assert told.median is None
    assert told.outliers == ()
    assert not told.outliers_seen


def test_one_repeat_or_no_deviation_has_no_interval() -> None:
    assert make_sample([7.0]).interval is None
    assert make_sample([7.0]).deviation is None
    assert RepeatSample(5, 7.0).interval is None
    assert RepeatSample(1, 7.0, 0.5).interval is None
    with pytest.raises(ValueError, match="needs a value"):
        make_sample([])


def test_a_cell_has_energy_power_and_time_with_the_meter_beside() -> None:
    trials = [trial(e, t, gain=0.02 * e, offset=0.01 * e, edge=9.0) for e, t in ((100.0, 10.0), (120.0, 12.0))]
    found = make_samples(cell("a", trials))
    assert found["energy"].values == (100.0, 120.0)
    assert found["power"].values == (10.0, 10.0)
    assert found["power"].deviation == 0.0
    assert found["time"].mean == 11.0
    # Gain and offset, k = 2; the edge is of each run and in the scatter.
    assert found["energy"].meter == pytest.approx(2 * math.hypot(0.02, 0.01))
    assert found["power"].meter == found["energy"].meter
    assert found["time"].meter == 0.0


def test_what_is_not_known_is_not_there() -> None:
    assert make_samples(cell("a", [])) == {}
    assert set(make_samples(cell("a", [trial(None, 3.0)]))) == {"time"}
    assert set(make_samples(cell("a", [trial(5.0, 0.0)]))) == {"energy", "time"}
    assert make_samples(cell("a", [trial(5.0, 1.0, known=False)]))["energy"].meter is None
    assert make_samples(cell("a", [trial(0.0, 1.0, gain=1.0)]))["energy"].meter is None
    with pytest.raises(ValueError, match="no energy"):
        average_lasting(cell("a", [trial(None, 1.0)]))


def test_per_unit_of_work_and_moments_that_tell_no_work() -> None:
    done = Trial(Quantity(100.0), 10.0, {"samples": 50.0})
    found = make_samples(Cell("a", {}, (done,)), "samples")
    assert (found["energy"].mean, found["power"].mean, found["time"].mean) == (2.0, 10.0, 0.2)
    told = Cell("b", {}, moments={"energy": RepeatSample(5, 1.0), "time": RepeatSample(5, 1.0)})
    assert make_samples(told) == dict(told.moments)
    assert make_samples(told, "samples") == {}
    assert compute_means(told, "samples") is None


def test_means_of_moments() -> None:
    told = {
        "energy": RepeatSample(5, 100.0, 2.0, meter=0.02, terms={"gain:x": 0.01}),
        "time": RepeatSample(5, 10.0, 0.1),
    }
    found = compute_means(Cell("a", {}, moments=told))
    assert found is not None
    assert found.energy is not None
    half = told["energy"].half_width
    assert half is not None
    assert found.energy.expanded == pytest.approx(math.hypot(half, 2.0))
    assert found.spread
    assert found.time.known
    bare = compute_means(Cell("a", {}, moments={"time": RepeatSample(5, 10.0)}))
    assert bare is not None
    assert bare.energy is None
    assert not bare.time.known
    assert compute_means(Cell("a", {}, moments={"energy": RepeatSample(5, 10.0)})) is None


def test_idle_devices_energy_has_a_mean() -> None:
    trials = [Trial(Quantity(100.0), 10.0, idle_energy=Quantity(v, {"gain:m": 0.1}), idle=("gpu:1",)) for v in (20, 30)]
    found = compute_idle_energy(Cell("a", {}, tuple(trials)))
    assert found is not None
    assert found.value == 25.0
    assert found.terms["gain:m"] == pytest.approx(0.1)
    assert compute_idle_energy(cell("a", [trial(1.0, 1.0)])) is None
    summary = summarise_cells([Cell("a", {}, tuple(trials))])
    assert summary.cell("a").idle_energy == found


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("n", NUMBERS[:1])
def test_intervals_hold_the_truth_in_95_of_100(n: int) -> None:
    found = coverage(n, 1500)
    assert all(0.93 < share < 0.97 for share in found.values()), found


@pytest.mark.campaign
@pytest.mark.parametrize("ratio", [1.2, 80.0])
@pytest.mark.parametrize("n", NUMBERS)
def test_intervals_hold_the_truth_in_95_of_100_at_length(n: int, ratio: float) -> None:
    found = coverage(n, 30_000, ratio)
    print(n, ratio, found)
    assert all(0.938 < share < 0.962 for share in found.values()), found


def _one(a: RepeatSample, b: RepeatSample) -> CellPair:
    (pair,) = compare_cells({"a": a, "b": b}, [("a", "b")], "energy")
    return pair


def test_welch_s_test_by_hand() -> None:
    pair = _one(RepeatSample(4, 12.0, 2.0), RepeatSample(9, 10.0, 1.5))
    error = math.sqrt(4 / 4 + 2.25 / 9)
    assert pair.freedom == pytest.approx(1.25**2 / (1 / 3 + 0.0625 / 8))
    assert pair.difference == 2.0
    assert pair.ratio == 1.2
    # t = 1.789 with 4.58 degrees of freedom.
    assert pair.p == pytest.approx(0.13901, abs=1e-5)
    assert pair.difference_interval is not None
    assert pair.difference_interval[0] == pytest.approx(2.0 - 2.643099 * error, abs=1e-5)
    assert pair.verdict == "no significant difference"


def test_fieller_by_hand_where_the_degrees_of_freedom_do_not_depend_on_the_ratio() -> None:
    # The denominator is known as good as exactly: the ratio's interval is the numerator's.
    pair = _one(RepeatSample(3, 200.0, 3.0), RepeatSample(1000, 100.0, 1e-6))
    assert pair.ratio_interval is not None
    half = 4.302653 * 3.0 / math.sqrt(3) / 100
    assert pair.ratio_interval == pytest.approx((2 - half, 2 + half), abs=1e-3)


def test_a_denominator_that_may_be_zero_leaves_the_ratio_open() -> None:
    pair = _one(RepeatSample(3, 5.0, 0.1), RepeatSample(3, 1.0, 2.0))
    assert pair.ratio == 5.0
    assert pair.ratio_interval is None
    assert pair.difference_interval is not None
    assert _one(RepeatSample(3, 5.0, 0.1), RepeatSample(3, 0.0, 0.1)).ratio is None


@given(
    st.floats(80, 130), st.floats(0.1, 8), st.floats(0.1, 8), st.integers(2, 12), st.integers(2, 12), st.floats(0, 0.1)
)
def test_p_and_both_intervals_say_one_thing(mean: float, s: float, r: float, n: int, m: int, meter: float) -> None:
    a = RepeatSample(n, mean, s, meter=meter, devices=frozenset("x"))
    pair = _one(a, RepeatSample(m, 100.0, r, meter=meter, devices=frozenset("y")))
    assert pair.p is not None
    assert pair.difference_interval is not None
    if abs(pair.p - 0.05) < 1e-5:
        return
    told = pair.p < 0.05
    assert (not pair.difference_interval[0] <= 0 <= pair.difference_interval[1]) == told
    if pair.ratio_interval is not None:
        assert (not pair.ratio_interval[0] <= 1 <= pair.ratio_interval[1]) == told
    assert (pair.verdict in ("more", "less")) == told
    assert (pair.more_repeats is None and not pair.more_than_100) == told


def test_turning_a_pair_round_turns_its_ratio_round() -> None:
    a, b = RepeatSample(5, 300.0, 5.0), RepeatSample(5, 100.0, 4.0)
    there, back = _one(a, b), _one(b, a)
    assert (there.verdict, back.verdict) == ("more", "less")
    assert there.p == pytest.approx(back.p or 0.0)
    assert there.ratio_interval is not None
    assert back.ratio_interval is not None
    assert there.ratio_interval[0] == pytest.approx(1 / back.ratio_interval[1], rel=1e-6)


def test_one_run_beside_repeats_is_taken_to_scatter_as_they_do() -> None:
    pair = _one(RepeatSample(1, 110.0), RepeatSample(5, 100.0, 2.0))
    assert pair.assumed
    assert pair.freedom == pytest.approx(4.0)
    # 10 / hypot(2.2, 2 / sqrt 5) = 4.2 with four degrees of freedom.
    assert pair.p == pytest.approx(0.0136, abs=2e-4)
    assert pair.verdict == "more"
    assert _one(RepeatSample(5, 100.0, 2.0), RepeatSample(1, 110.0)).verdict == "less"
    near = _one(RepeatSample(1, 101.0), RepeatSample(5, 100.0, 2.0))
    assert near.verdict == "no significant difference"
    assert near.more_repeats is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (RepeatSample(1, 5.0), RepeatSample(1, 9.0)),
        (RepeatSample(5, 5.0), RepeatSample(5, 9.0, 0.1)),
        (RepeatSample(5, 5.0, 0.1), RepeatSample(5, 9.0)),
        (RepeatSample(5, 0.0, 0.0), RepeatSample(5, 0.0, 0.0)),
    ],
)
def test_what_is_not_known_is_said(a: RepeatSample, b: RepeatSample) -> None:
    pair = _one(a, b)
    assert pair.verdict == "not known"
    assert pair.difference == a.mean - b.mean
    assert pair.p is pair.p_corrected is pair.more_repeats is None


def test_a_cell_without_the_figure_is_not_known() -> None:
    (pair,) = compare_cells({"a": RepeatSample(5, 1.0, 0.1)}, [("a", "b")], "energy")
    assert pair == CellPair("a", "b", "energy", "not known")


def test_repeats_that_are_all_the_same_are_told_apart_from_others() -> None:
    assert _one(make_sample([5.0, 5.0]), make_sample([6.0, 6.0])).verdict == "less"
    same = _one(make_sample([5.0, 5.0]), make_sample([5.0, 5.0]))
    assert same.verdict == "no significant difference"
    assert (same.more_repeats, same.more_than_100) == (None, True)
    assert not same.by_meters


def test_a_gain_that_both_share_cancels_and_others_do_not() -> None:
    a, b = RepeatSample(5, 104.0, 1.0, meter=0.1), RepeatSample(5, 100.0, 1.0, meter=0.1)
    assert _one(a, b).verdict == "more"
    other = _one(replace(a, devices=frozenset("x")), replace(b, devices=frozenset("y")))
    assert other.verdict == "no significant difference"
    assert other.by_meters
    assert (other.more_repeats, other.more_than_100) == (None, True)
    # In joules the shared gain stretches the difference, and its sign stays.
    shared, none = (
        _one(a, b).difference_interval,
        _one(replace(a, meter=0.0), replace(b, meter=0.0)).difference_interval,
    )
    assert shared is not None
    assert none is not None
    assert shared == pytest.approx((none[0] * 0.9, none[1] * 1.1))


def test_terms_of_one_source_cancel_by_source() -> None:
    both = {"gain:wt": 0.05}
    a = RepeatSample(5, 104.0, 1.0, meter=0.1, terms=both)
    assert _one(a, RepeatSample(5, 100.0, 1.0, meter=0.1, terms=both)).verdict == "more"
    assert _one(a, RepeatSample(5, 100.0, 1.0, meter=0.1, terms={"gain:pdu": 0.05})).by_meters


def test_an_unknown_accuracy_cancels_on_the_same_devices_only() -> None:
    a, b = RepeatSample(5, 104.0, 1.0), RepeatSample(5, 100.0, 1.0)
    assert _one(a, b).verdict == "more"
    assert _one(replace(a, devices=frozenset("x")), replace(b, devices=frozenset("x"))).verdict == "more"
    assert _one(replace(a, devices=frozenset("x")), replace(b, devices=frozenset("y"))).verdict == "not known"
    assert _one(replace(a, devices=frozenset("xy")), replace(b, devices=frozenset("xy"))).verdict == "not known"


def test_holm_by_hand() -> None:
    assert correct_p_values([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert correct_p_values([0.9, 0.8]) == [1.0, 1.0]
    assert correct_p_values([]) == []


def test_more_comparisons_make_it_harder() -> None:
    samples = {"a": RepeatSample(3, 103.0, 1.0), "b": RepeatSample(3, 100.0, 1.0)} | {
        f"c{k}": RepeatSample(3, 100.0, 1.0) for k in range(9)
    }
    (alone,) = compare_cells(samples, [("a", "b")])
    among = compare_cells(samples, [("a", "b"), *((f"c{k}", "b") for k in range(9))])[0]
    assert (alone.verdict, among.verdict) == ("more", "no significant difference")
    assert alone.p == among.p
    assert alone.ratio_interval == among.ratio_interval
    assert among.more_repeats is not None
    assert 0 < among.more_repeats < 20


def test_the_repeats_that_are_named_settle_it_in_four_of_five() -> None:
    more, often = settled(3, 0.03, 400)
    assert more == 6
    assert 0.74 < often < 0.95


@pytest.mark.campaign
@pytest.mark.parametrize(("n", "share"), [(3, 0.02), (3, 0.03), (5, 0.02), (5, 0.01)])
def test_the_repeats_that_are_named_settle_it_in_four_of_five_at_length(n: int, share: float) -> None:
    more, often = settled(n, share, 4000)
    print(n, share, more, often)
    assert 0.78 < often < 0.9


def test_a_tiny_difference_asks_for_more_repeats_than_are_counted() -> None:
    pair = _one(RepeatSample(5, 100.01, 2.0), RepeatSample(5, 100.0, 2.0))
    assert (pair.more_repeats, pair.more_than_100) == (None, True)
    assert not _one(RepeatSample(5, 101.0, 2.0), RepeatSample(5, 100.0, 2.0)).more_than_100


def test_no_interval_of_a_ratio_goes_below_zero() -> None:
    pair = _one(RepeatSample(2, 5.0, 5.6), RepeatSample(2, 9.0, 0.1))
    assert pair.ratio_interval is not None
    assert pair.ratio_interval[0] == 0.0
    assert pair.difference_interval is not None
    assert pair.difference_interval[0] < -9.0


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("n", NUMBERS[:1])
def test_of_equal_cells_hardly_a_study_tells_any_apart(n: int) -> None:
    corrected, plain = family_error(n, 200)
    assert corrected <= 0.1  # 5 % and three deviations of so few studies
    assert plain > 0.2


@pytest.mark.campaign
@pytest.mark.parametrize("n", NUMBERS)
def test_of_equal_cells_hardly_a_study_tells_any_apart_at_length(n: int) -> None:
    corrected, plain = family_error(n, 6000)
    print(n, corrected, plain)
    assert corrected <= 0.0575
    assert plain > 0.3


def test_a_study_has_each_cell_against_its_reference_and_short_lines_all_pairs() -> None:
    few = summarise_cells(sweep(gpus=(8,), caps=(100, 180, 260), n=3))
    assert {p.figure for p in few.pairs} == {"energy", "power", "time"}
    assert [(p.cell, p.against) for p in few.pairs if p.figure == "time"] == [
        ("g8c100", "g8c260"),
        ("g8c180", "g8c260"),
        ("g8c180", "g8c100"),
    ]
    caps = [100 + 10 * k for k in range(ALL_PAIRS + 1)]
    many = summarise_cells(sweep(gpus=(8,), caps=caps, n=2))
    assert len(many.pairs) == 3 * ALL_PAIRS
    assert {p.against for p in many.pairs} == {f"g8c{caps[-1]}"}


def test_pairs_are_per_unit_of_work_where_the_line_is() -> None:
    cells = [
        Cell(
            f"b{b}", {"batch": b}, tuple(replace(trial(e * b, 2.0 * b), work={"samples": 10.0 * b}) for e in (9.0, 9.1))
        )
        for b in (1, 2)
    ]
    found = summarise_cells(cells)
    assert found.lines[0].per == "samples"
    pairs = {p.figure: p for p in found.pairs}
    assert pairs["energy"].ratio == pytest.approx(1.0)
    assert found.statistics["b2"]["energy"].mean == pytest.approx(18.1)


def test_a_line_without_its_reference_still_has_its_pairs() -> None:
    cells = [
        cell(f"{g}-{c}", [trial(9.0 + c, 2.0)] * 2, gpus=g, cap=float(c)) for g, c in ((1, 1000), (1, 900), (2, 900))
    ]
    found = summarise_cells(cells, reference={"cap": 1000.0})
    assert [line.reference for line in found.lines] == ["1-1000", None]
    assert len(found.pairs) == 3


def test_a_summary_with_statistics_is_plain_data() -> None:
    plain = summarise_cells(by_cap({260.0: [(9.0, 1.0), (9.2, 1.0)], 200.0: [(8.0, 1.1)]}, gain=0.01)).to_json()
    text = json.loads(json.dumps(plain, allow_nan=False))
    energy = text["statistics"]["c260"]["energy"]
    assert energy["interval"][0] < 9.1 < energy["interval"][1]
    assert energy["meter"] == pytest.approx(0.02)
    assert text["statistics"]["c200"]["energy"]["interval"] is None
    assert text["pairs"][0]["verdict"]
