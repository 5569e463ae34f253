"""The sentences of a limit while a run goes on, and the line of its result."""

from __future__ import annotations

import signal

from tests.outside import make_home
from tests.report.synthetic import START, make_run
from tests.rows import every_row

from joulelab.analysis.results_file import load_result
from joulelab.core.clock import NS
from joulelab.report.limit_text import find_used_energy, list_limit_facts, word_limit_news
from joulelab.report.run_summary import list_answer_facts, list_notes
from joulelab.run.energy_limit import EnergyLimit, LimitAction, LimitNews

LIMIT = EnergyLimit(2.0, "kWh", 7.2e6)
REACHED = {"t": START + 9 * NS, "event": "limit-reached", "limit": "6 kJ", "elapsed_s": 9.0, "then": "SIGTERM"}


@every_row(
    ("news", "text"),
    [
        (
            LimitNews("watching", LIMIT, covers=("gpu:0", "gpu:1")),
            "limit of 2 kWh: SIGTERM is sent when it is reached (counted: gpu:0,1, middle values)",
        ),
        (
            LimitNews("near", LIMIT, 5.8e6, 1500.0, 360.0),
            "80.6 % of the limit of 2 kWh is used (1.611 kWh after 25 min 00 s); about 6 min 00 s left",
        ),
        (
            LimitNews("near", LIMIT, 5.8e6, 1500.0),
            "80.6 % of the limit of 2 kWh is used (1.611 kWh after 25 min 00 s)",
        ),
        (
            LimitNews("reached", EnergyLimit(5.0, "EUR", 3e5, "train"), 3e5, 60.0),
            "the limit of 5 EUR in train is reached (5 EUR, 300 kJ after 60.00 s): SIGTERM is sent",
        ),
        (
            LimitNews("near", EnergyLimit(1000.0, "kg", 3.6e9), 2.9e9, 3600.0),
            "80.6 % of the limit of 1,000 kg CO2e is used (806 kg CO2e, 805.6 kWh after 1 h 00 min)",
        ),
        (
            LimitNews("near", EnergyLimit(0.02, "kWh", 72e3), 60e3, 30.0),
            "83.3 % of the limit of 0.02 kWh is used (0.01667 kWh after 30.00 s)",
        ),
        (
            LimitNews("lost", LIMIT, 5.8e6, 1500.0),
            "the limit of 2 kWh can no longer be watched: a meter gives no readings; the command goes on",
        ),
        (
            LimitNews("lost", LIMIT),
            "the limit of 2 kWh cannot be watched: no meter gives readings; the command goes on",
        ),
        (LimitNews("found", LIMIT, 5.8e6, 1500.0), "the limit of 2 kWh is watched again (1.611 kWh after 25 min 00 s)"),
        (LimitNews("killed", LIMIT), "SIGKILL is sent: the command still ran 30.00 s after its limit"),
    ],
)
def test_each_event_is_one_sentence(news: LimitNews, text: str) -> None:
    assert word_limit_news(news, LimitAction(grace_s=30.0)) == text


def test_a_command_is_named_in_place_of_a_signal() -> None:
    action = LimitAction(None, "touch stop")
    assert word_limit_news(LimitNews("reached", LIMIT, 7.2e6, 9.0), action).endswith(": running: touch stop")
    assert LimitAction(signal.SIGUSR2).name == "SIGUSR2"


def test_the_result_has_the_energy_above_the_limit() -> None:
    """10 s of two GPUs of 300 W and a CPU of 90 W: 6.9 kJ."""
    result = load_result(make_run(make_home(), events=[REACHED | {"limit_j": 6000.0}]))
    ((label, text),) = list_limit_facts(result)
    assert label == "limit"
    assert result.energy is not None
    above = result.energy.value - 6000
    assert text.startswith("6 kJ reached after 9.000 s, SIGTERM; it ended 1.000 s later with 6.")
    assert text.endswith(f", {above:.0f} J ({above / 60:.1f} %) above the limit")
    assert ("limit", text) in list_answer_facts(result, 80)
    assert not any("limit" in note for _, note in list_notes(result))  # it is said once


@every_row(
    ("limit", "limit_j", "text"),
    [
        ("0.002 EUR", 6000.0, "with 0.00229 EUR (6.88 kJ), 0.000292 EUR (14.6 %) above the limit"),
        ("0.002 EUR", 0.0, "it ended 1.000 s later"),
        ("much EUR", 6000.0, "with 6.88 kJ, 876 J (14.6 %) above the limit"),
    ],
)
def test_a_limit_in_money_has_its_excess_in_money(limit: str, limit_j: float, text: str) -> None:
    """A changed file may have any limit."""
    result = load_result(make_run(make_home(), events=[REACHED | {"limit": limit, "limit_j": limit_j}]))
    assert list_limit_facts(result)[0][1].endswith(text)


def test_of_a_phase_its_outermost_time_counts() -> None:
    span = {"n": None, "labels": {}, "thread": 1, "rank": 0}
    marks = [
        {"t": START + 2 * NS, "mark": "begin", "id": "1-1", "name": "train", "parent": None, **span},
        {"t": START + 3 * NS, "mark": "begin", "id": "1-2", "name": "inner", "parent": "1-1", **span},
        {"t": START + 4 * NS, "mark": "begin", "id": "1-3", "name": "train", "parent": "1-2", **span},
        {"t": START + 5 * NS, "mark": "end", "id": "1-3"},
        {"t": START + 6 * NS, "mark": "end", "id": "1-2"},
        {"t": START + 7 * NS, "mark": "end", "id": "1-1"},
    ]
    events = [REACHED | {"limit_j": 4000.0, "phase": "train"}]
    result = load_result(make_run(make_home(), events=events, marks=marks))
    used = find_used_energy(result, "train")
    assert used is not None
    assert abs(used.value - 5 * 690) < 40
    assert "6 kJ in train reached" in list_limit_facts(result)[0][1]
    assert list_limit_facts(result)[0][1].endswith("below the limit")
    assert find_used_energy(result, "predict") is None
