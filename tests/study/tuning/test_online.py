"""Tuning inside a run: work that is followed as it is reported, windows, drift, and what goes wrong."""

from __future__ import annotations

import io
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.store.make import START_NS, close_run, gpus, make_run, write_rows
from tests.study.tuning.marks import line, write

from joulelab.analysis.analyse import analyse
from joulelab.analysis.goal import Goal
from joulelab.analysis.terms import Quantity
from joulelab.control.client import Held, Wish
from joulelab.core.clock import NS
from joulelab.core.errors import Denied, JoulelabError, Refused
from joulelab.core.marks import MarkWriter
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.report.console import make_console
from joulelab.report.tune import print_tuned
from joulelab.store.lines import read_lines
from joulelab.store.run import open_run
from joulelab.study.tuning.account import account
from joulelab.study.tuning.grid import Grid
from joulelab.study.tuning.online import Online
from joulelab.study.tuning.search import Choice
from joulelab.study.tuning.window import Window, drawn, energy_of, find_scopes, read_scopes
from joulelab.study.tuning.worklog import WorkLog
from joulelab.study.values import caps
from joulelab.supervisor.options import RunOptions
from joulelab.supervisor.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.study.tuning.tuned import Tuned

GRID = Grid(("gpu:0", "gpu:1"), {float(v.value): v for v in caps("100,180,260")})
ENERGY = Goal.parse("energy")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than anybody needs to."""
    monkeypatch.setattr("joulelab.study.tuning.online.POLL_S", 0.03)


def window(cap: float, at_s: float, *, energy: float, time_s: float = 5.0, work: float = 100.0) -> Window:
    terms = {"gain:nvml": 0.05 * energy, "edge:x": 0.002 * energy, "unseen:x": 0.1 * energy}
    start = round(at_s * NS)
    return Window(cap, start, start + round(time_s * NS), work, Quantity(energy, terms), 0.002)


def online(**more: float) -> Online:
    return Online(GRID, ENERGY, window_s=0.2, settle_s=0.0, **more)  # type: ignore[arg-type]


def test_windows_of_a_workload_that_changed_by_itself_are_corrected(tmp_path: Path) -> None:
    tuning = online()
    tuning.state.windows = [
        window(260, 0, energy=1000),
        window(180, 50, energy=900, time_s=5.5),
        window(260, 100, energy=1210, time_s=6.05),
    ]
    tuning.state.drift = (1.21, 1.21)
    first, middle, last = tuning.corrected()
    assert first.energy_per.value == pytest.approx(10)
    assert last.energy_per.value == pytest.approx(10)
    assert last.time_per.value == pytest.approx(0.05)
    assert middle.energy_per.value == pytest.approx(9 / 1.1)
    assert middle.time_per.value == pytest.approx(0.055 / 1.1)
    # Nobody knows when it happened: it may have been before the window, or after it.
    assert 0.5 * math.log(1.21) < 2 * middle.time_per.u / middle.time_per.value < math.log(1.21)
    assert "drift" not in first.time_per.budget()
    # The two are made equal, so they are worth one.
    row = account(tuning, None, "CMD").row(260)
    assert row is not None
    assert row.time.u / row.time.value == pytest.approx(0.002)
    tuning.state.notes.append("it changed")
    told = account(tuning, None, "CMD")
    assert told.choice == 180
    assert not told.complete
    assert "it changed" in told.notes
    assert told.row(260).n == 2  # type: ignore[union-attr]
    assert "unseen" not in told.row(180).energy.budget()  # type: ignore[union-attr]


def test_equal_windows_agree_and_what_they_share_cancels() -> None:
    tuning = online()
    tuning.state.windows = [window(260, 0, energy=1000), window(180, 50, energy=800, time_s=5.25)]
    tuning.state.choice = Choice(180.0, (), 2, "because", 0.8, 1.05)
    row = account(tuning, None, "python train.py").row(180)
    assert row is not None
    assert row.gain is not None
    assert row.gain.value == pytest.approx(0.2)
    assert (row.gain.expanded or 1) < 0.012
    assert row.loss is not None
    assert row.loss.value == pytest.approx(0.05)


class Capped:
    """Stand for the caps of a run: take what is wished, or refuse it."""

    def __init__(self, refuse: Callable[[float], JoulelabError | None]) -> None:
        self.wishes: list[list[Wish]] = []
        self._refuse = refuse

    def set(self, wishes: Sequence[Wish]) -> list[Held]:
        error = self._refuse(wishes[0].value)
        if error is not None:
            raise error
        self.wishes.append(list(wishes))
        asked = [w.value for w in wishes]
        return [
            Held(w.device, w.device, "GPU", "power", a, a, 0.9 * a, 250.0, 260.0, "W")
            for w, a in zip(wishes, asked, strict=True)
        ]

    def serve(self) -> None:
        """Hear nothing."""


def recorded(tmp_path: Path, capped: Capped, tuning: Online, until: Callable[[], object]) -> Recording:
    """Tune a run without meters whose work is reported all the time, until something is the case."""
    recording = Recording(RunOptions(runs=tmp_path), ["true"], os.environ)
    writer = MarkWriter(recording.folder / "marks")
    tuning.begin(recording, capped)  # type: ignore[arg-type]
    end = time.monotonic() + 30
    while not until():
        writer.work({"steps": 1})
        writer.flush()
        assert time.monotonic() < end
        time.sleep(0.02)
    tuning.end()
    writer.close()
    recording.close({"outcome": "exit", "exit_code": 0})
    return recording


def events(recording: Recording) -> list[str]:
    return [str(e["event"]) for e in read_lines(recording.folder / "events.run.jsonl")[0]]


def test_caps_that_are_denied_end_the_tuning_and_nothing_else(tmp_path: Path) -> None:
    tuning = online()
    capped = Capped(lambda _: Denied("no", where="gpu:0", next="run as root"))
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem)
    assert "tune-failed" in events(recording)
    assert recording.problems == ["tuning failed: gpu:0: no; run as root"]
    assert not capped.wishes
    told = account(tuning, recording.run, "CMD")
    assert told.choice is None
    assert told.problems == ("tuning failed: gpu:0: no; run as root",)


def test_without_a_meter_tuning_goes_back_to_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.study.tuning.online.COVER_NS", NS // 10)
    tuning = online()
    capped = Capped(lambda _: None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem and len(capped.wishes) > 1)
    assert "no power meter was read often enough" in recording.problems[0]
    assert [w[0].value for w in capped.wishes] == [260.0, 250.0]
    assert any("enforces 234 W where 260 W are asked for" in note for note in tuning.state.notes)


def measured(tuning: Online, told: Callable[[float, int], tuple[float, float]], *, pauses: int = 0) -> list[Window]:
    """Let windows have energy (J) and time (s) per work by their cap and number, as meters would tell them.

    Work stands still in the first windows. All windows are returned, as they are made.
    """
    made: list[Window] = []

    def window(cap: float) -> Window:
        assert tuning.log is not None
        a = tuning._until_report(0)
        b = tuning._until_report(a)
        work = tuning.log.done(a, b)
        energy, time_s = told(cap, len(made))
        span = round(work * time_s * NS)
        paused = len(made) < pauses
        made.append(Window(cap, a, a + span, work, Quantity(energy * work, {"edge:x": 0.001}), 0.001, paused))
        return made[-1]

    tuning._window = window  # type: ignore[method-assign]
    return made


TRUE = {260.0: (500.0, 1.0), 180.0: (384.0, 1.08), 100.0: (520.0, 2.6)}


def test_a_cap_that_the_device_refuses_is_left_out(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: TRUE[cap])
    capped = Capped(lambda watts: Refused("out of range") if watts == 100 else None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert tuning.state.choice is not None
    assert tuning.state.choice.cap == 180
    assert 100.0 not in {w[0].value for w in capped.wishes}
    assert "tune-choice" in events(recording)


def scaled(cap: float, by: float) -> tuple[float, float]:
    energy, time_s = TRUE[cap]
    return energy * by, time_s * by


def test_the_first_window_counts_when_two_agree_and_no_work_stood_still(tmp_path: Path) -> None:
    tuning = online(trials=3)
    # Two windows with a pause, then a warm-up that becomes faster and faster.
    made = measured(tuning, lambda cap, n: scaled(cap, max(1.5 - 0.1 * n, 1.0)), pauses=2)
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert tuning.state.windows[0] is made[6]
    assert tuning.state.windows[0].time_per.value == pytest.approx(1.0, rel=1e-3)


def test_a_workload_that_never_becomes_steady_is_tuned_with_a_note(tmp_path: Path) -> None:
    tuning = online(trials=2)
    measured(tuning, lambda cap, n: scaled(cap, 1.5 if n % 2 and n < 12 else 1.0))
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert any("did not become steady" in note for note in tuning.state.notes)


def test_a_workload_that_changed_by_itself_is_found_out_by_coming_back(tmp_path: Path) -> None:
    tuning = online(trials=3)
    made = measured(tuning, lambda cap, n: scaled(cap, 1.0 + 0.05 * max(n - 1, 0)))
    recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert not tuning.state.problem
    assert made[-1].cap in (180.0, 260.0)
    assert tuning.state.revisits == 1
    assert tuning.state.drift is not None
    assert tuning.state.drift[0] > 1.04
    assert any("changed by itself" in note for note in tuning.state.notes)
    assert tuning.state.choice is not None
    assert tuning.state.choice.cap == 180


def test_a_run_that_is_not_recorded_is_not_tuned(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tuning = online()
    recording = Recording(RunOptions(runs=tmp_path / "file"), ["true"], os.environ)
    tuning.begin(recording, Capped(lambda _: None))  # type: ignore[arg-type]
    tuning.end()
    assert account(tuning, None, "CMD").problems == ("tuning failed: nothing is recorded, so nothing can be tuned",)


def test_energy_of_a_stored_run_is_that_of_its_scopes() -> None:
    run = Path(__file__).parents[2] / "golden" / "schema-1" / "20231114-221320-aaaa"
    with open_run(run) as opened:
        whole = analyse(opened)
    scopes, everything = find_scopes(run, whole.start_ns, whole.end_ns)
    assert everything
    found = read_scopes(run, whole.start_ns, whole.end_ns)
    energy = energy_of(found, [(whole.start_ns, whole.end_ns)], scopes)
    assert energy is not None
    assert whole.energy is not None
    assert energy.value == pytest.approx(whole.energy.value)
    middle = (whole.start_ns + whole.end_ns) // 2
    halves = energy_of(found, [(whole.start_ns, middle), (middle, whole.end_ns)], scopes)
    assert halves is not None
    assert halves.value == pytest.approx(energy.value)
    assert energy_of(found, [(whole.start_ns, whole.end_ns)], ["gpu:77"]) is None
    assert energy_of(found, [(whole.start_ns, whole.end_ns)], []) is None


LONG_S, PERIOD_S = 60, 0.1
COUNTER = Spec("energy_j", "energy", "J", kind="counter", update_s=0.02, accuracy=Accuracy("assumed", gain=0.05))
LIMIT = Spec("cap_enforced_w", "power", "W", kind="state")


def long_run(folder: Path, watts: Callable[[float], float], enforced: float | None = None) -> Path:
    """Make a run of a minute on one GPU that draws some power; the cap that it enforces may be told."""
    run = make_run(folder)
    energy, rows = 0.0, []
    for k in range(round(LONG_S / PERIOD_S)):
        t = START_NS + round(k * PERIOD_S * NS)
        values = [energy, *([] if enforced is None else [enforced])]
        rows.append((0, t, t + 100_000, values))
        energy += watts(k * PERIOD_S) * PERIOD_S
    channels = (COUNTER,) if enforced is None else (COUNTER, LIMIT)
    write_rows(run, gpus(1, channels), rows)
    close_run(run, end_ns=START_NS + LONG_S * NS)
    return run


def worked(folder: Path, rate: Callable[[float], float]) -> None:
    """Report work every tenth of a second, for a minute."""
    for t in range(LONG_S - 1):
        stamps = [t + (k + 1) / 10 for k in range(10)]
        done = sum(rate(s) / 10 for s in stamps)
        start = START_NS / NS
        write(folder, "1", line(start + t + 1, start + t, done, count=10, at_s=[start + s for s in stamps]))


def driven(tmp_path: Path, rate: Callable[[float], float], *at_s: tuple[float, float]) -> tuple[Online, Path]:
    """Return a tuning of a job that draws 300 W under any cap; windows of 5 s under caps, the last cap is chosen."""
    tuning = Online(GRID, ENERGY, window_s=5.0, settle_s=1.0)
    run = long_run(tmp_path, lambda _: 300.0)
    (tmp_path / "marks").mkdir()
    worked(tmp_path / "marks", rate)
    tuning.log = WorkLog(tmp_path / "marks")
    tuning.log.read()
    for cap, t in at_s:
        a, b = START_NS + round(t * NS), START_NS + round((t + 5) * NS)
        work = tuning.log.done(a, b)
        energy = energy_of(read_scopes(run, a, b), [(a, b)], ["gpu:0"])
        assert energy is not None
        tuning.state.windows.append(Window(cap, a, b, work, energy, 0.002))
        tuning.state.stays.append((cap, a - NS))
    tuning.state.scopes = ["gpu:0"]
    if at_s[-1][0] == 260:
        tuning._revisit()
    tuning.state.choice = Choice(at_s[-1][0], (), len(at_s), "because", 1.0, 1.0)
    tuning.state.chosen_ns = tuning.state.windows[-1].to_ns
    return tuning, run


WINDOWS = ((260.0, 1.0), (180.0, 10.0), (100.0, 20.0), (180.0, 30.0), (260.0, 40.0))


@pytest.mark.parametrize(
    "rate",
    [
        lambda s: 100 * (1 - 0.004 * s),
        lambda s: 100.0 if s < 8 else 88.0,
        lambda s: 100.0 if s < 38 else 88.0,
        lambda s: 100 * (1 - 0.004 * min(s, 45)),
    ],
    ids=["on and on", "at once, early", "at once, late", "until the choice"],
)
def test_what_the_workload_changes_by_itself_is_neither_saved_nor_spent(
    tmp_path: Path, rate: Callable[[float], float]
) -> None:
    tuning, run = driven(tmp_path, rate, *WINDOWS)
    assert tuning.state.drift is not None
    told = account(tuning, run, "CMD")
    assert told.saved is not None
    assert told.slower is not None
    assert abs(told.saved.value) < (told.saved.expanded or 0) < 0.15 * 300 * LONG_S
    assert abs(told.slower.value) < (told.slower.expanded or 0) < 0.15 * LONG_S
    assert not told.sure
    for row in told.rows:
        assert row.gain is not None
        assert abs(row.gain.value) <= (row.gain.expanded or 0)


def test_a_change_after_the_choice_is_told_and_not_charged(tmp_path: Path) -> None:
    tuning, run = driven(tmp_path, lambda s: 100.0 if s < 46.05 else 60.0, *WINDOWS)
    assert tuning.state.drift is None
    told = account(tuning, run, "CMD")
    assert any("after the choice the workload changed by itself: +66" in note for note in told.notes)
    assert told.saved is not None
    assert abs(told.saved.value) < 0.01 * 300 * LONG_S


def test_what_a_better_cap_saves_is_told_with_its_interval(tmp_path: Path) -> None:
    tuning, run = driven(tmp_path, lambda _: 100.0, (260.0, 1.0), (180.0, 10.0))
    # As if 260 W took a tenth more of both.
    first = tuning.state.windows[0]
    tuning.state.windows[0] = replace(first, work=first.work / 1.1)
    told = account(tuning, run, "CMD")
    assert told.sure
    assert told.saved is not None
    assert told.saved.value == pytest.approx(0.1 * 300 * 58, rel=0.03)
    assert told.slower is not None
    assert told.slower.value == pytest.approx(-0.1 * 58, rel=0.03)
    text = " ".join(shown(told).split())
    assert "J in this run, 5.8" in text
    assert " ± 0." in text.partition("J in this run, ")[2].partition(" shorter")[0]
    assert "energy of gpu:0" in text


def shown(told: Tuned) -> str:
    file = io.StringIO()
    print_tuned(make_console(file, 80), told)
    return file.getvalue()


def test_a_gpu_that_does_not_keep_to_its_cap_is_seen(tmp_path: Path) -> None:
    a, b = START_NS + 10 * NS, START_NS + 15 * NS
    found = read_scopes(long_run(tmp_path / "a", lambda _: 231.0), a, b)
    assert drawn(found, a, b, {"gpu:0": 225.0})[1] == ""
    mean, said = drawn(found, a, b, {"gpu:0": 170.0})
    assert mean == pytest.approx(231, rel=0.01)
    assert said == "gpu:0 drew 231 W under a cap of 170 W"
    assert drawn(found, a, b, {}) == (None, "")
    other = read_scopes(long_run(tmp_path / "b", lambda _: 150.0, enforced=260.0), a, b)
    assert drawn(other, a, b, {"gpu:0": 170.0})[1] == "gpu:0 enforced 260 W where 170 W were asked for"
    assert drawn(other, a, b, {"gpu:0": 260.0})[1] == ""


def unheld(tuning: Online, drew: Callable[[float], float], holds: Callable[[float], bool]) -> None:
    """Let GPUs draw some power (W) under a cap, and keep to it or not."""
    made = tuning._window

    def window(cap: float) -> Window:
        return replace(made(cap), gpu_w=drew(cap), unheld="" if holds(cap) else f"gpu:0 drew {drew(cap):.0f} W")

    tuning._window = window  # type: ignore[method-assign]


def test_where_caps_are_not_enforced_none_is_chosen(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: (500.0 - 0.1 * (260 - cap), 1.0))
    unheld(tuning, lambda _: 250.0, lambda cap: cap > 250)
    capped = Capped(lambda _: None)
    recording = recorded(tmp_path, capped, tuning, lambda: tuning.state.problem and len(capped.wishes) > 2)
    assert tuning.state.choice is None
    told = account(tuning, recording.run, "CMD")
    assert told.choice is None
    assert "caps are not enforced here" in told.problems[0]
    assert [row.doubt for row in told.rows] == ["", "not enforced"]
    assert "not enforced" in shown(told)
    assert capped.wishes[-1][0].value == 250  # as it was found


def test_a_cap_below_what_the_gpu_can_do_is_left_out_and_others_count(tmp_path: Path) -> None:
    tuning = online(trials=4)
    measured(tuning, lambda cap, _: TRUE[cap])
    unheld(tuning, lambda cap: max(cap, 130.0), lambda cap: cap > 130)
    recording = recorded(tmp_path, Capped(lambda _: None), tuning, lambda: tuning.state.choice or tuning.state.problem)
    assert tuning.state.choice is not None
    assert tuning.state.choice.cap == 180
    told = account(tuning, recording.run, "CMD")
    assert any("100 W and below are left out" in note for note in told.notes) == bool(tuning.state.unheld)
    assert {row.cap: row.doubt for row in told.rows}.get(100.0, "not enforced") == "not enforced"


def test_meters_that_are_read_too_seldom_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    run = long_run(tmp_path, lambda _: 200.0)
    node = Stream("node", "slow", "node.ac", 5.0, (Spec("power_w", "power", "W", kind="power", update_s=5.0),))
    slow = [(0, t := START_NS + k * 5 * NS, t + 1000, [400.0]) for k in range(12)]
    write_rows(run, [node], slow, meter="pdu")
    scopes, everything = find_scopes(run, START_NS + 10 * NS, START_NS + 12 * NS)
    assert (scopes, everything) == (["gpu:0"], False)
    tuning = online()
    tuning.state.windows = [window(260, 0, energy=1000), window(180, 50, energy=900)]
    tuning.state.scopes, tuning.state.everything = scopes, everything
    text = " ".join(shown(account(tuning, None, "CMD")).split())
    assert "energy of gpu:0" in text
    assert "other meters are read too seldom" in text
