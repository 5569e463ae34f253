"""The words of reports: captions, verdicts, notes and lines below tables, with the numbers that they hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.analysis.studies import by_cap, cell, trial
from tests.codes import list_error_codes, list_given_codes
from tests.report.synthetic import UNKNOWN, make_run
from tests.report.test_agreement import result
from tests.rows import every_row

from joulelab.analysis.cell_metrics import Cell, summarise_cells
from joulelab.analysis.result import CapResult, Check, GroupResult, RatedDevice, RatedResult
from joulelab.analysis.results_file import load_result
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.cap_tables import list_cap_facts
from joulelab.report.comparison import (
    RunComparison,
    compare_quantities,
    compare_runs,
    format_figure_change,
    limit_difference,
)
from joulelab.report.messages import COMPARISON, word_check, word_checks, word_notes
from joulelab.report.paper_tables import Spread, list_paper_tables
from joulelab.report.run_summary import name_ending
from joulelab.report.run_tables import describe_rated, format_rated_power

if TYPE_CHECKING:
    from pathlib import Path

MEANS = "Mean ± standard deviation of"


CODES = """
check-failed config.missing-field config.no-intensity config.no-work config.wrong-field data-differ different-devices
executor gate-progress in-step one-run-each one-run-group other-twin points-differ runs-left-out runs-not-succeeded
runs-shared runs-without-energy same-devices same-devices.groups simulated simulated-differ
store.mixed-runs store.no-energy store.no-host store.overlapping-runs store.still-recording work-lacking
"""


def test_codes_of_errors_and_notes_stay() -> None:
    assert sorted(list_error_codes("report") | list_given_codes("report", "Note")) == sorted(CODES.split())


def by_two(*, runs: int, work: float | None = None) -> list[Cell]:
    """Return two cells by the meters of two families, the second with twice the work."""
    meter = "nvml power GPU-1; rapl energy package-0"
    trials = [trial(e, 60.0, meter=meter, gain=0.01 * e) for e in (5000.0, 5100.0, 5200.0)[:runs]]
    done = ({} if work is None else {"samples": work * k} for k in (1, 2))
    return [cell(f"{w}", [replace(t, work=w) for t in trials], batch=k) for k, w in enumerate(done)]


@pytest.mark.parametrize(
    ("cells", "spread", "caption"),
    [
        (
            by_two(runs=2),
            "deviation",
            f"{MEANS} 2 repeats. Energy of gpu, by nvml, rapl; the meters' own 2 % (k = 2) comes on top of ±.",
        ),
        (
            by_two(runs=1),
            "deviation",
            (
                "One run of each; how much runs differ is not known. Energy of gpu, by nvml, rapl; "
                "each is known to 2 % (k = 2)."
            ),
        ),
        (
            by_two(runs=3, work=9.0),
            "interval",
            (
                "Mean ± half of Student's 95 % interval of the mean of 3 repeats. Energy of gpu, by nvml, rapl; "
                "the meters' own 2 % (k = 2) comes on top of ±. "
                "Figures are those of whole runs; they are compared per sample."
            ),
        ),
    ],
)
def test_the_caption_says_what_was_measured_by_what_and_how_well(
    cells: list[Cell], spread: Spread, caption: str
) -> None:
    assert list_paper_tables(summarise_cells(cells), spread=spread, scope="gpu")[0].caption == caption


def test_the_caption_explains_its_marks() -> None:
    values = (100.0, 100.5, 99.5, 100.2, 99.9, 180.0)
    odd, guess, loose = by_cap({1.0: [(v, 9.0) for v in values], 2.0: [(90.0, 9.0)], 3.0: [(90.0, 9.0)]})
    guess = replace(guess, trials=tuple(replace(t, estimate=True) for t in guess.trials))
    uncapped = (Check("cap-not-enforced", "failed", "gpu:0"),)
    loose = replace(loose, trials=tuple(replace(t, uncapped=uncapped) for t in loose.trials))
    assert list_paper_tables(summarise_cells([odd, guess, loose]))[0].caption.startswith(
        f"{MEANS} 6 repeats; one run where there is no ±."
    )
    assert list_paper_tables(summarise_cells([odd, guess, loose]))[0].caption.endswith(
        " † a repeat differs from the others; it is used. ~ is an estimate, not measured. ! the cap was not in force."
    )


def pair(ratio: float, u: float | None, *, time: float = 1.0, estimate: bool = False) -> RunComparison:
    """Return a comparison of which only the ratios matter."""
    energy = replace(
        compare_quantities("energy", "J", Quantity(1.0), Quantity(ratio), ()),
        ratio=Quantity(ratio, {"x": u or 0.0}, known=u is not None),
        estimates=(estimate, estimate),
    )
    return RunComparison(
        result(), result(), (energy, compare_quantities("time", "s", Quantity(1.0), Quantity(time), ())), False
    )


@every_row(
    ("found", "verdict"),
    [
        (pair(0.8, 0.01), "B uses 20 ± 2 % less"),
        (pair(1.2, 0.01, time=1.1), "B uses 20 ± 2 % more; it takes 10.0 % longer"),
        (pair(1.01, 0.01), "No significant difference in energy: at most 3.0 %"),
        (
            pair(1.25, None, time=0.9),
            "B reads 25.0 % more, but the accuracy is unknown, so no interval; it takes 10.0 % less time",
        ),
        (pair(0.8, 0.01, estimate=True), "B uses 20 ± 2 % less (an estimate)"),
    ],
)
def test_a_verdict_is_one_sentence(found: RunComparison, verdict: str) -> None:
    assert found.word_verdict() == verdict


def test_energies_that_are_smaller_than_their_intervals_are_not_compared() -> None:
    energy = compare_quantities("energy", "J", Quantity(1.0, {"edge:a": 1.0}), Quantity(2.0, {"gap:b": 1.5}), ())
    groups = [GroupResult("measured", ("gpu:0",), Quantity(1.0), Quantity(1.0), None)]
    found = RunComparison(result(groups=groups), result(groups=groups), (energy,), False)
    words = "The energies cannot be compared: A is too short to measure and B is not resolved"
    assert found.word_verdict() == words
    assert format_figure_change(energy) == fmt.NOT_RESOLVED
    assert limit_difference(energy) == ""


def test_why_two_runs_cannot_be_compared_is_said(runs: Path) -> None:
    dark = load_result(make_run(runs, gpus=0, cpus=0))
    lit = load_result(make_run(runs, accuracy=UNKNOWN))
    assert (
        compare_runs(dark, dark).word_verdict() == "The energies cannot be compared: no power meter was read in A and B"
    )
    assert compare_runs(dark, lit).word_verdict() == "The energies cannot be compared: no power meter was read in A"
    damaged = replace(dark, checks=(Check("damaged", "failed", "node1/x", texts={"what": "it is missing"}),))
    assert compare_runs(lit, damaged).word_verdict() == (
        "The energies cannot be compared: files of B cannot be read or are missing"
    )
    notes = compare_runs(replace(lit, facts={"data": "xray"}), replace(damaged, twin="mine")).list_notes()
    assert word_notes(notes, COMPARISON) == [
        "! A and B have different sources: A measured; B simulated: twin mine, virtual time.",
        "! A and B did not use the same data (A: xray, B: unknown). Differences may come from the data.",
        "B failed a check: damaged: node1/x has changed since it was recorded: it is missing",
        (
            "Each has only one run, so the uncertainties do not include the spread between runs. "
            "Repeat both runs to measure the spread."
        ),
    ]


def rated(
    *watts: float, seconds: float = 600.0, measured: Quantity | None = None, unknown: tuple[str, ...] = ()
) -> RatedResult:
    return RatedResult(
        tuple(RatedDevice("node1", f"gpu:{k}", w, "told") for k, w in enumerate(watts)), seconds, measured, unknown
    )


HOW = "is not recorded; set rated_w = WATTS below [node] of joulelab.toml"


@every_row(
    ("found", "words"),
    [
        (
            rated(700.0, 700.0, 350.5, measured=Quantity(1.8e6, {"gain": 5e4})),
            "(2 x 700 W + 350.5 W) x 10.0 min = 1.05 MJ (0.292 kWh): 0.58 ± 0.03 times the measured energy (told)",
        ),
        (
            RatedResult((RatedDevice("node1", "gpu:0", 260.0, "told"),), 600.0, Quantity(78e3), unused=("gpu:1",)),
            "260 W x 10.0 min = 156 kJ: 2.000 times the energy of gpu (told; without gpu:1, not shown to the workload)",
        ),
        (rated(unknown=("node.ac",)), f"unknown: the rated power of node.ac {HOW}"),
        (
            rated(unknown=tuple(f"cpu:{k}" for k in range(6))),
            f"unknown: the rated power of cpu:0, cpu:1, cpu:2, cpu:3 and 2 more {HOW}",
        ),
        (rated(), "none: no measured energy to compare it with"),
    ],
)
def test_what_runtime_times_rated_power_would_have_said(found: RatedResult, words: str) -> None:
    assert describe_rated(found) == words
    assert format_rated_power(rated(10200.0)) == "10,200 W"


@every_row(
    ("found", "words"),
    [
        (rated(5.0, seconds=2.0, measured=Quantity(4.0, known=False)), "5 W x 2.00 s = 10.0 J: 2.500 ± ? times"),
        (rated(5600.0, seconds=86_400.0, measured=Quantity(4e8)), "x 24.0 h = 484 MJ (134 kWh): 1.210 times"),
        (rated(1e6, seconds=86_400.0, measured=Quantity(1e10, {"x": 4e9})), "86.4 GJ (24,000 kWh): 9 ± 7 times"),
        (
            rated(700.0, seconds=1234.5, measured=Quantity(1e5, {"x": 2e3})),
            "x 20.6 min = 864 kJ (0.240 kWh): 8.6 ± 0.3",
        ),
        (rated(700.0, measured=Quantity(1e5), unknown=("cpu:0",)), " times the energy of gpu ("),
    ],
)
def test_numbers_are_told_in_the_units_of_their_size(found: RatedResult, words: str) -> None:
    assert words in describe_rated(found)


@every_row(
    ("code", "numbers", "words"),
    [
        ("mlperf.mean", {"stated_w": 5639.4948, "found_w": 5639.2196}, "5,639.495 W, the log gives 5,639.22 W"),
        (
            "mlperf.range",
            {"low_w": 2406.5, "high_w": 6219.0, "found_low_w": 2406.4, "found_high_w": 6219.0},
            "2,406.5 to 6,219 W, the log has 2,406.4 to 6,219 W",
        ),
        ("codecarbon.rate", {"found": 0.0125, "stated": 0.0225}, "0.0125 mg/s, but emissions_rate states 0.0225 mg/s"),
    ],
)
def test_figures_that_do_not_follow_are_printed_with_their_difference(
    code: str, numbers: dict[str, float], words: str
) -> None:
    assert words in word_check(Check(code, "failed", "line 2", numbers)).text


def test_devices_with_equal_caps_share_a_line() -> None:
    caps = [CapResult("n", f"gpu:{n}", 170.0, 250.0, "W", 0, "restored") for n in range(3)]
    caps += [CapResult("n", "gpu:3", 200.0, 250.0, "W", 2, "left")]
    caps += [CapResult("n", "gpu:3", 1.2e9, None, "Hz", 0, "")]
    assert list_cap_facts(replace(result(), caps=tuple(caps))) == [
        ("caps", "gpu:0-2 capped at 170 W; 250 W before, restored"),
        ("caps", "gpu:3 capped at 200 W, the last of 3 tried; 250 W before, left as another program set it"),
        ("caps", "gpu:3 clocks locked at 1,200 MHz; free before, not restored yet"),
    ]


@every_row(
    ("end", "words"),
    [
        ({"outcome": "exit", "exit_code": 3}, "exit 3"),
        ({"outcome": "signal", "signal": 9}, "killed by SIGKILL"),
        ({"outcome": "signal", "signal": 40}, "killed by signal 40"),
        ({"outcome": "not-started", "exit_code": 127}, "could not be started"),
        ({"outcome": "interrupted", "signal": 2}, "interrupted before it began"),
        ({"outcome": "live"}, "still running"),
        ({"outcome": "killed"}, "joulelab was killed"),
    ],
)
def test_endings(end: dict[str, Any], words: str) -> None:
    assert name_ending(replace(result(), **{"exit_code": None, "signal": None, **end})).startswith(words)


def gap(place: str) -> Check:
    return Check("gaps", "failed", place, {"lost_share": 0.52})


@every_row(
    ("checks", "message"),
    [
        (
            [Check("idle-drifted", "warning", f"gpu:{k}", {"drift_w": k + 0.5}) for k in range(3)],
            "gpu:0: idle power drifted by +500 mW while it was measured; similar: gpu:1,2",
        ),
        (
            [Check("recorder.stuck", "warning")] * 2,
            "the recorder did not answer at the end and was stopped (2 times)",
        ),
        (
            [Check("throttled.power-cap", "note", f"gpu:{k}", {"share": 0.33}) for k in range(4)],
            "gpu:0-3: slowed down by the power cap in 33 % of the readings",
        ),
        (
            [gap(f"n1/{scope}") for scope in ("gpu:0", "gpu:1", "gpu:2", "node.ac")],
            "gpu:0-2, node.ac of n1: no readings in 52 % of the time",
        ),
        (
            [gap(f"n{n}/gpu:{g}") for n in range(1, 65) for g in range(8)] + [gap("n1/node.ac")],
            "gpu:0-7, node.ac of n1; gpu:0-7 of n2, n3, n4 and 60 more: no readings in 52 % of the time",
        ),
        ([gap("n2/node.ac")], "n2/node.ac: no readings in 52 % of the time"),
        # A part of a device is no host.
        ([gap("gpu:0/mig:1"), gap("gpu:0/mig:2")], "gpu:0/mig:1,2: no readings in 52 % of the time"),
    ],
)
def test_equal_checks_of_several_scopes_and_hosts_become_one_line(checks: list[Check], message: str) -> None:
    assert [check.text for check in word_checks(checks)] == [message]
