"""Limits of energy: how they are written, how energy is counted, when the signal is sent."""

from __future__ import annotations

import json
import math
import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.codes import raises_code
from tests.rows import every_row

import joulelab
from joulelab.core.clock import NEVER_NS
from joulelab.run import energy_limit, workload_process
from joulelab.run.energy_limit import (
    EnergyLimit,
    EnergyReading,
    LimitAction,
    LimitGuard,
    LimitLedger,
    LimitNews,
    find_overlap,
    list_processes_of_run,
    parse_limit,
    read_action,
    remaining,
)
from joulelab.run.workload_process import WorkloadEnd
from joulelab.site.footprint import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SITE = Site("DE", "Germany", 400.0, 2023, price=0.25, currency="EUR", pue=1.25)
KWH = 3.6e6


@every_row(
    ("text", "joules", "name", "phase"),
    [
        ("2kWh", 2 * KWH, "2 kWh", None),
        (" 2 kwh ", 2 * KWH, "2 kWh", None),
        ("500kJ", 5e5, "500 kJ", None),
        ("1.5MWh", 1500 * KWH, "1.5 MWh", None),
        ("1e3J", 1e3, "1,000 J", None),
        ("300g", 300 / 500 * KWH, "300 g CO2e", None),
        ("0.5kgCO2e", KWH, "0.5 kg CO2e", None),
        ("5EUR", 5 / 0.3125 * KWH, "5 EUR", None),
        ("5€", 5 / 0.3125 * KWH, "5 EUR", None),
        ("€5", 5 / 0.3125 * KWH, "5 EUR", None),
        ("train=1kWh", KWH, "1 kWh", "train"),
        ("a=b=5eur", 5 / 0.3125 * KWH, "5 EUR", "a=b"),
    ],
)
def test_a_limit_becomes_joules_at_the_rates_of_the_site(
    text: str, joules: float, name: str, phase: str | None
) -> None:
    limit = parse_limit(text, SITE)
    assert limit.joules == pytest.approx(joules)
    assert (limit.name, limit.phase) == (name, phase)


@every_row(
    ("text", "site", "code"),
    [
        ("", SITE, "config.limit"),
        ("2", SITE, "config.limit"),
        ("kWh", SITE, "config.limit"),
        ("-2kWh", SITE, "config.limit"),
        ("0kWh", SITE, "config.limit"),
        ("2mWh", SITE, "config.limit"),
        ("2kW", SITE, "config.limit"),
        ("=2kWh", SITE, "config.limit"),
        ("train=", SITE, "config.limit"),
        ("2kWh;reboot", SITE, "config.limit"),
        ("5USD", SITE, "config.limit-rate"),
        ("5EUR", None, "config.limit-rate"),
        ("5EUR", Site(g_per_kwh=400.0), "config.limit-rate"),
        ("300g", Site(price=0.2, currency="EUR"), "config.limit-rate"),
        ("300g", None, "config.limit-rate"),
    ],
)
def test_a_limit_that_cannot_be_watched_is_refused(text: str, site: Site | None, code: str) -> None:
    with raises_code(code) as caught:
        parse_limit(text, site)
    assert caught.value.next


@every_row(
    ("then", "found"),
    [
        (None, (signal.SIGTERM, "")),
        ("SIGUSR1", (signal.SIGUSR1, "")),
        ("int", (signal.SIGINT, "")),
        ("touch stop", (None, "touch stop")),
    ],
)
def test_the_action_is_a_signal_or_a_command(then: str | None, found: tuple[int | None, str]) -> None:
    action = read_action(then, 5.0)
    assert (action.signal, action.command, action.grace_s) == (*found, 5.0)
    for wrong in (" ", "SIGUSR", "SIGTERN", "15"):  # a typing error must not become a command that stops nothing
        with raises_code("config.limit-action"):
            read_action(wrong, None)


def test_a_stored_action_has_no_secret() -> None:
    action = read_action("curl -u user:Tr0ub4dor https://example.org/stop", None)
    assert action.name == "curl -u user:*** https://example.org/stop"
    assert "Tr0ub4dor" in action.command


def test_energy_is_counted_to_the_limit() -> None:
    ledger = LimitLedger([EnergyLimit(1000.0, "J", 1000.0)])
    assert not ledger.add(EnergyReading(0.5, None))  # no readings yet
    codes = []
    for second in range(1, 12):
        news = ledger.add(EnergyReading(float(second), 100.0 * second, 100.0, covers=("gpu:0",)))
        codes += [(each.code, each.elapsed_s) for each in news]
        if second == 4:
            rest = ledger.find_rest()
            assert (rest.share, rest.amount, rest.joules, rest.seconds) == pytest.approx((0.6, 600.0, 600.0, 6.0))
            assert ledger.find_next_s() == pytest.approx(6.0)
    assert codes == [("watching", 1.0), ("near", 8.0), ("reached", 10.0)]
    rest = ledger.find_rest()
    assert (rest.is_reached, rest.share, rest.seconds) == (True, 0.0, 0.0)


def test_of_several_limits_the_first_one_counts() -> None:
    ledger = LimitLedger([EnergyLimit(1.0, "kJ", 1000.0), EnergyLimit(100.0, "J", 100.0, "train")])
    assert ledger.phases == ["train"]
    first = LimitLedger(ledger.limits).add(EnergyReading(1.0, 1.0, 1.0))
    assert [(each.code, each.limit.phase) for each in first] == [("watching", None), ("watching", "train")]
    for second in range(1, 5):  # the phase lasts from 1.5 to 2.5 s
        ledger.add(EnergyReading(float(second), 60.0 * second, 60.0, {"train": [(1.5, 2.5)]}))
    assert ledger.used_j == pytest.approx([240.0, 60.0])
    assert ledger.find_rest().phase == "train"
    assert ledger.find_next_s() == pytest.approx(760 / 60)  # the phase is over: only the run goes on
    news = ledger.add(EnergyReading(5.0, 300.0, 60.0, {"train": [(1.5, 2.5), (4.0, math.inf)]}))
    assert [each.code for each in news] == ["reached"]
    assert ledger.reached is not None
    assert ledger.reached.phase == "train"


def test_silence_ends_no_job_and_is_reported_once() -> None:
    ledger = LimitLedger([EnergyLimit(1000.0, "J", 1000.0)])
    ledger.add(EnergyReading(1.0, 900.0, 900.0))
    codes = [each.code for t in range(2, 30) for each in ledger.add(EnergyReading(float(t), 5000.0, math.nan))]
    assert codes == ["lost"]
    assert not ledger.find_rest().is_watched
    assert ledger.find_next_s() > 1e6
    found = [each.code for each in ledger.add(EnergyReading(31.0, 950.0, 10.0))]
    assert found == ["found"]
    assert ledger.is_watched
    assert [each.code for each in ledger.add(EnergyReading(40.0, 1001.0, 10.0))] == ["reached"]


@every_row(
    ("spans", "share"),
    [
        ([], 0.0),
        ([(0, 20)], 1.0),
        ([(10, math.inf)], 1.0),
        ([(12, 14)], 0.2),
        ([(12, 14), (13, 15)], 0.3),
        ([(12, 18), (13, 15)], 0.6),
        ([(0, 11), (19, 30)], 0.2),
        ([(0, 5), (25, 30)], 0.0),
    ],
)
def test_phases_that_overlap_count_once(spans: list[tuple[float, float]], share: float) -> None:
    assert find_overlap(spans, 10.0, 20.0) == pytest.approx(share)
    assert find_overlap(spans, 10.0, 10.0) == 0.0


class FakeRecording:
    """Stand in for the recording of a run: its folder, and the events that are stored."""

    def __init__(self, run: Path | None) -> None:
        self.run, self.workload_pid = run, 4242
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.problems: list[str] = []

    @property
    def folder(self) -> Path:
        assert self.run is not None
        return self.run

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))

    def environment(self) -> dict[str, str]:
        return {} if self.run is None else {"JOULELAB_RUN": str(self.run)}

    def report_problem(self, problem: str) -> None:
        self.problems.append(problem)


def make_guard(run: Path | None, action: LimitAction) -> tuple[LimitGuard, FakeRecording, list[LimitNews]]:
    told: list[LimitNews] = []

    def fail(*_: Any) -> Any:
        raise AssertionError("no thread in this test")

    guard = LimitGuard([EnergyLimit(1.0, "kJ", 1000.0)], action, follow=fail, report=told.append)
    recording: Any = FakeRecording(run)
    guard.prepare(recording)
    return guard, recording, told


def test_the_guard_tells_the_workload_then_sends_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULELAB_RUN", str(tmp_path))
    guard, recording, told = make_guard(tmp_path, LimitAction(signal.SIGUSR1, grace_s=0.0))
    left = joulelab.remaining(is_fresh=True)
    assert left is not None
    assert (left.limit, left.share, left.then, left.seconds) == ("1 kJ", 1.0, "SIGUSR1", None)
    sent: list[int] = []
    guard._add(EnergyReading(1.0, 500.0, 500.0, covers=("gpu:0",)))
    guard.serve(sent.append)
    assert (sent, [news.code for news in told], guard.due_ns) == ([], ["watching"], NEVER_NS)
    guard._add(EnergyReading(2.0, 1010.0, 500.0))
    left = remaining(is_fresh=True)
    assert left is not None
    assert left.is_reached
    guard.serve(sent.append)
    assert sent == [signal.SIGUSR1, signal.SIGKILL]  # no grace
    assert [news.code for news in told[1:]] == ["reached", "killed"]
    assert [name for name, _ in recording.events] == ["limit", "limit-reached", "limit-killed"]
    reached = recording.events[1][1]
    assert (reached["limit"], reached["limit_j"], reached["used_j"]) == ("1 kJ", 1000.0, 1010.0)
    guard.end()
    assert remaining(is_fresh=True) is None
    guard._add(EnergyReading(3.0, 1010.0, 500.0))  # late news of the thread
    assert not (tmp_path / energy_limit.FILE).exists()


def test_a_command_of_then_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, recording, _ = make_guard(tmp_path, LimitAction(None, "false"))
    monkeypatch.setattr(workload_process, "start_workload", lambda *_: 77)
    ends = iter([None, WorkloadEnd(3, None, 0.0, 0.0, 0)])
    monkeypatch.setattr(workload_process, "poll_workload", lambda _: (next(ends), None))
    guard._add(EnergyReading(2.0, 1010.0, 500.0))
    for _ in range(3):
        guard.serve(lambda _: None)
    assert recording.problems == ["the command of --then failed (exit 3): it may not have stopped anything"]


def test_processes_that_outlive_a_stopped_command_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = f"JOULELAB_RUN={tmp_path}"
    for pid, names in {"7": [run, "A=1"], "8": [run, "JOULELAB_WORKLOAD_PID=7"], "9": ["A=1"], "self": [run]}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").write_text("\0".join(names))
    (tmp_path / "10").mkdir()  # it has ended
    assert list_processes_of_run(str(tmp_path), tmp_path) == [7]
    guard, recording, _ = make_guard(tmp_path, LimitAction())
    monkeypatch.setattr(energy_limit, "SURVIVE_S", 0.0)
    monkeypatch.setattr(energy_limit, "list_processes_of_run", lambda _: [7, 11])
    guard.end()
    assert recording.problems == []  # no limit was reached
    guard._add(EnergyReading(2.0, 1010.0, 500.0))
    guard.end()
    assert "2 processes of the command went on after the limit" in recording.problems[0]
    assert "kill 7 11 (" in recording.problems[0]


def test_without_a_record_the_limit_is_not_watched_and_that_is_reported() -> None:
    guard, _, told = make_guard(None, LimitAction())
    guard.begin(0, os.environ, ())
    assert [news.code for news in told] == ["lost"]
    guard.end()


def test_a_workload_without_a_limit_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULELAB_RUN", raising=False)
    assert remaining(is_fresh=True) is None
    monkeypatch.setenv("JOULELAB_RUN", str(tmp_path))
    for text in ("", "[]", "{}", json.dumps({"wrong": 1})):
        (tmp_path / energy_limit.FILE).write_text(text)
        assert remaining(is_fresh=True) is None


def test_a_source_that_fails_is_reported_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's own loop, without its pauses."""
    monkeypatch.setattr(energy_limit, "FIRST_S", 0.0)
    monkeypatch.setattr(energy_limit, "EVERY_S", 0.0)
    guard, recording, told = make_guard(tmp_path, LimitAction())
    reads = iter([EnergyReading(1.0, 10.0, 1.0), OSError("gone"), OSError("gone"), OSError("gone")])

    def read() -> EnergyReading:
        found = next(reads)
        if isinstance(found, OSError):
            raise found
        return found

    source: Any = SimpleNamespace(read=read, close=lambda: None)
    follow: Callable[..., Any] = lambda *_: source  # noqa: E731
    guard._follow = follow
    guard._watch(tmp_path, tmp_path, 0)
    guard.serve(lambda _: None)
    assert [news.code for news in told] == ["watching", "lost"]
    assert ("limit-failed", {"error": "OSError: gone"}) in recording.events
    guard.end()
