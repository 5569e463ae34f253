"""Loops over batches: what counts as a sample, phases and steps, the bar on a terminal, and loops that end badly."""

from __future__ import annotations

import contextlib
import io
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.recorder.driving import fake
from tests.rows import every_row
from tests.run.supervised import marks
from tests.waiting import until

import joulelab
from joulelab.analysis.live_energy import LiveFigures
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.integrations import tracking
from joulelab.integrations.batch_sizes import count_samples
from joulelab.integrations.progress_bar import ERASE, BarLine, ProgressBar
from joulelab.integrations.tracking import track
from joulelab.run import live, marking
from joulelab.site.footprint import Site
from joulelab.store.run_folder import RunState, list_runs, read_end, read_run_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulelab.twin.twin_server import TwinServer

X, Y = np.zeros((8, 5)), np.zeros(8)
IMAGE = np.zeros((3, 16, 16))


class Loader:
    """Batches of eight samples, each 20 ms of work; the last one waits for something."""

    def __init__(self, count: int = 10, wait: Callable[[], object] = lambda: True) -> None:
        self.count, self.wait = count, wait

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number in range(self.count):
            time.sleep(0.02)
            if number == self.count - 1:
                until(self.wait, "the last batch may come")
            yield X, Y

    def __len__(self) -> int:
        return self.count


@pytest.fixture
def kw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name in ("JOULELAB_RUN", "JOULELAB_HOST", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return {"runs": tmp_path / "runs", "meters": [fake(devices=2)], "period_s": 0.02}


class Painted:
    """Know how often bars were painted with figures of the node, by their titles."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: dict[str, int] = {}
        show = ProgressBar.show

        def counted(bar: ProgressBar, seconds: float, batches: int, samples: float, now: LiveFigures | None) -> None:
            show(bar, seconds, batches, samples, now)
            if now is not None and samples:
                self.times[bar._title] = self.times.get(bar._title, 0) + 1

        monkeypatch.setattr(ProgressBar, "show", counted)


def lines() -> None:
    """Wait for the lines of loops that have ended."""
    for thread in threading.enumerate():
        if thread.name == "joulelab-line":
            thread.join()


@every_row(
    ("batch", "samples"),
    [
        (X, 8),
        (np.zeros(()), None),
        ((X, Y), 8),
        ([X, Y], 8),
        ({"input_ids": X, "labels": Y, "loss": np.zeros(())}, 8),
        ((("a",) * 8, Y), 8),
        (({"a": X, "b": X}, Y), 8),
        (["text"] * 6, 6),
        ([{"text": "a"}, {"text": "b"}], 2),
        ([{"image": IMAGE}, {"image": IMAGE}], None),
        ([[X, X], [Y, Y]], None),
        ([(X, 1), (X, 2)], None),
        ([IMAGE] * 5, None),
        ((IMAGE, IMAGE), None),
        ((X, np.zeros((9, 2))), None),
        (("text", 3), None),
        (7, None),
        ([], None),
        ("text", None),
    ],
)
def test_samples_are_what_the_lengths_of_a_batch_agree_on(batch: Any, samples: int | None) -> None:
    assert count_samples(batch) == samples


def test_samples_may_be_told() -> None:
    assert count_samples(7, 32) == 32
    assert count_samples((X, Y), lambda batch: batch[0].size) == 40


@pytest.mark.system
def test_loops_in_one_run_are_numbered_phases_with_steps_and_samples(
    kw: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    loader, other = Loader(), Loader(3)
    with joulelab.measure("training", **kw) as m:
        for _ in range(2):
            for of in (loader, other):
                for _batch in track(of, show=False):
                    pass
            for _batch in track(Loader(2), name="made anew", samples=5, unit="tokens", show=False):
                pass
        late = track(range(3), name="late", n=17, show=False)
        with pytest.raises(ConfigError, match="not ended"):
            _ = late.energy
        for _number in late:
            break
        assert (late.batches, late.samples) == (0, 0.0)
        again = track(loader, name="kept", show=False)
        for _ in range(2):
            for _batch in again:
                assert again.duration_s > 0
        assert (again.batches, again.samples, len(again)) == (10, 80.0, 10)
        assert again.run == m.run
        assert again.energy is not None
        assert again.energy.value == pytest.approx(200 * again.duration_s, rel=0.15)
        assert again.energy_per is not None
        assert again.energy_per.value == pytest.approx(again.energy.value / 80)
        for _number in track(iter("abc"), name="letters", show=False):
            pass
    assert m.run is not None
    found = [(b["name"], b["n"]) for b in marks(m.run, "begin") if b["name"] != "step"]
    epochs = [("epoch", 1), ("epoch", 1), ("made anew", 1), ("epoch", 2), ("epoch", 2), ("made anew", 2)]
    assert found == [*epochs, ("late", 17), ("kept", 1), ("kept", 2), ("letters", 1)]
    assert m.result is not None
    assert m.result.work == {"steps": 53, "samples": 368, "tokens": 20, "batches": 3}
    assert caplog.text.count("a batch of str") == 1


@pytest.mark.system
def test_loops_around_others_count_no_steps_and_errors_end_a_phase(kw: dict[str, Any]) -> None:
    def failing() -> None:
        for number, _batch in enumerate(track(Loader(5), name="failing", show=False)):
            if number == 2:
                raise KeyError("x")

    with joulelab.measure("training", **kw) as m:
        for _fold in track(range(2), name="fold", show=False):
            for _batch in track(Loader(2), show=False):
                pass
        with contextlib.suppress(KeyError):
            failing()
        (phase,) = {b["parent"] for b in marks(m.run or kw["runs"], "begin") if b["name"] == "failing"}
        assert phase is None  # what was open before has ended
        with joulelab.phase("after"):
            pass
    assert m.result is not None
    assert m.result.work == {"steps": 6, "samples": 48}
    assert [p.title for p in m.result.phases if p.depth == 0] == ["fold 1", "failing 1", "after"]
    assert not any(p.open_end for p in m.result.phases)


def read_all(terminal: int) -> bytes:
    """Return everything that was written to a terminal; one read gives at most 4 kB."""
    found = b""
    while select.select([terminal], [], [], 0)[0]:
        found += os.read(terminal, 1 << 16)
    return found


@pytest.mark.system
def test_on_a_terminal_there_is_a_bar_and_a_line_that_stays(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CREDIT_S", 1000.0)
    monkeypatch.setattr(tracking, "PAINT_S", 0.05)
    master, slave = os.openpty()
    painted_of = Painted(monkeypatch).times
    with os.fdopen(slave, "w") as terminal, joulelab.measure("training", **kw):
        monkeypatch.setattr(sys, "stderr", terminal)
        for fold in track(["a", "b"], name="fold"):
            for _batch in track(Loader(35, lambda: "epoch 1" in painted_of)):
                pass
            if fold == "a":
                lines()
        lines()
        for _batch in track((b for b in Loader(3, lambda: "endless 1" in painted_of)), name="endless"):
            pass
        lines()
        monkeypatch.setenv("LOCAL_RANK", "1")
        for _batch in track(Loader(2), name="silent", show=True):
            pass
        monkeypatch.undo()
        painted = read_all(master).decode().replace("\r", "\n")
    os.close(master)
    bars = [line for line in painted.split("\n") if "|" in line]
    assert any("epoch" in bar and "/35" in bar and "samples/s" in bar and " W, " in bar for bar in bars)
    assert any("J/sample" in bar and "left" in bar for bar in bars)
    begun = next(k for k, bar in enumerate(bars) if "epoch" in bar)
    assert not any("fold" in bar for bar in bars[begun:])  # only the innermost is painted, once there is one
    kept = [line.removeprefix("\x1b[K") for line in painted.split("\n") if "accuracy unknown" in line]
    titles = [line.split(":")[0] for line in kept]
    assert titles[0] == "epoch 1"
    assert sorted(titles) == ["endless 1", "epoch 1", "epoch 2", "fold 1"]  # two end at once
    assert "280 samples" in kept[0]
    assert "J/sample" in kept[0]
    assert "so far" in painted
    assert "silent" not in painted


@pytest.mark.system
def test_what_is_printed_after_a_loop_stays(kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CREDIT_S", 1000.0)
    monkeypatch.setattr(tracking, "PAINT_S", 0.02)
    painted_of, printed = Painted(monkeypatch).times, threading.Event()
    monkeypatch.setattr(live, "wait_until_covered", lambda *_: printed.wait(60))  # the line comes late
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    with joulelab.measure("training", **kw):
        for _batch in track(Loader(3, lambda: "epoch 1" in painted_of), show=True):
            pass
        terminal.write("accuracy 0.9\nloss 0.1 ")
        printed.set()
        lines()
    bar, _, after = terminal.getvalue().partition("accuracy 0.9")
    assert "epoch 1: " in bar
    assert bar.endswith("\r\x1b[K")  # gone before anything is printed
    assert "\x1b" not in after
    assert "\r" not in after
    assert after.startswith("\nloss 0.1 epoch 1: ")


def test_a_late_line_makes_a_bar_give_way_and_one_that_is_over_is_not_painted() -> None:
    terminal, screen = io.StringIO(), BarLine()
    first, second = (ProgressBar(screen, terminal, name, "samples", 4) for name in ("first", "second"))
    now = LiveFigures(0, 2 * 10**9, {"measured": Quantity(700.0)}, {"measured": 1.0})
    first.show(2.5, 1, 8, now)
    assert "mean 350.0 W, " in terminal.getvalue()
    first.show(9.0, 2, 16, now)
    assert "mean 350.0 W until 7 s ago, " in terminal.getvalue()
    first.erase()
    first.show(9.5, 2, 16, now)  # a thread that comes late
    second.show(0.1, 1, 8, None)
    first.finish(9.0, 2, 16, None)
    second.erase()
    painted = terminal.getvalue().split(ERASE)[3:]
    assert painted[0] == ""
    assert painted[1].startswith("second: ")
    assert painted[2].startswith("first: energy not measured (")
    assert painted[2].endswith("; it took 9.000 s; 16 samples, 1.778 samples/s\n")


def test_without_a_terminal_a_loop_is_lines_that_grep_finds_and_the_last_one_begins_with_the_answer() -> None:
    log = io.StringIO()
    bar = ProgressBar(BarLine(), log, "epoch 1", "samples", 1000, is_log=True)
    now = LiveFigures(0, 60 * 10**9, {"measured": Quantity(600e3, {"gain:x": 12e3})})
    bar.show(60.0, 420, 6720, now)
    bar.show(61.0, 427, 6832, None)
    site = Site(name="Germany", g_per_kwh=381.0, year=2023, price=0.3, currency="EUR")
    bar.finish(60.0, 1000, 16000, now, site)
    bar.finish(90.0, 1000, 16000, now)
    bar.finish(0.1, 1, 16, LiveFigures(0, 10**8, {"measured": Quantity(1.0, {"edge:x": 12.0})}))
    bar.finish(60.0, 1000, 16000, replace(now, estimate=True), site)
    parts = [line.removeprefix("joulelab: epoch 1: ").split("; ") for line in log.getvalue().splitlines()]
    assert parts[:2] == [
        ["42 % (420 of 1000 batches), 112.0 samples/s, mean 10.00 kW, 89.3 J/sample, 600 kJ so far, 83 s left"],
        ["43 % (427 of 1000 batches), 112.0 samples/s, 82 s left"],
    ]
    answer = "0.167 ± 0.007 kWh (± 4 %) in 60.00 s, 10.00 kW on average"
    assert parts[2][0] == answer
    assert " EUR and " in parts[2][1]
    assert parts[2][2:] == ["37.5 ± 1.5 J/sample", "16,000 samples, 266.7 samples/s"]
    assert parts[3] == [answer.replace("in", "in the first").replace(",", " of 90.00 s,"), parts[3][1]]
    assert parts[4][:2] == ["energy: too short to measure", "it took 100 ms"]
    assert [text[:1] for text in (*parts[5][:3], parts[5][1].partition(" and ")[2])] == ["~"] * 4


@pytest.mark.system
def test_lines_come_each_while_and_at_the_end_of_the_first_rank_only(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CREDIT_S", 1000.0)
    monkeypatch.setattr(tracking, "LINE_S", 0.05)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with joulelab.measure("training", **kw):
        for _batch in track(Loader(3, lambda: "so far" in log.getvalue())):
            pass
        lines()
        monkeypatch.setenv("RANK", "3")
        for _batch in track(Loader(1), name="silent"):
            pass
    printed = log.getvalue().splitlines()
    assert len(printed) >= 2
    assert all(line.startswith("joulelab: epoch 1: ") for line in printed)
    assert "on average" in printed[-1]
    assert "24 samples" in printed[-1]


@pytest.mark.system
def test_what_is_slow_to_import_is_imported_before_anything_is_measured(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(tracking, "import_live_modules", lambda: seen.append(marking.writer()))
    monkeypatch.setattr(tracking, "measure", lambda: joulelab.measure("loop", **kw))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for _batch in track(Loader(1), show=True):
        assert marking.writer() is not None
    lines()
    assert seen == [None]


@pytest.mark.system
def test_loops_in_threads_are_no_loops_around_each_other(kw: dict[str, Any]) -> None:
    tracked = [track(Loader(5), name=f"thread {k}", show=False) for k in range(2)]
    with joulelab.measure("training", **kw) as m:
        threads = [threading.Thread(target=lambda loop=loop: list(loop)) for loop in tracked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [loop.samples for loop in tracked] == [40.0, 40.0]
    assert m.result is not None
    assert m.result.work == {"steps": 10, "samples": 80}


@pytest.mark.system
def test_a_rank_that_nobody_records_only_goes_over_its_batches(
    kw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    tracked = track(Loader(3), show=True)
    assert sum(1 for _ in tracked) == 3
    assert (tracked.batches, tracked.energy, tracked.energy_per, tracked.run) == (3, None, None, None)
    assert marking.writer() is None
    assert not capsys.readouterr().err
    assert not kw["runs"].exists()


SCRIPT = """
import time
from dataclasses import replace
import joulelab

def train():
    for number, batch in enumerate(joulelab.track([[0] * 4] * 20, show=True)):
        time.sleep(0.02)
    kept = iter(joulelab.track([[0] * 4] * 20, name="bad", show=True))
    for number, batch in enumerate(kept):
        time.sleep(0.02)
        if number == 15:
            raise RuntimeError("in the loop")

train()
"""


@pytest.mark.system
def test_a_loop_of_its_own_is_a_run_and_one_that_fails_is_closed_when_the_program_ends(
    tmp_path: Path, twin: Any
) -> None:
    server: TwinServer = twin()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environ = dict(os.environ)
    environ |= {**server.environment, "JOULELAB_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, str(script)], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    runs = list_runs(tmp_path / "runs")
    assert [read_run_state(run) for run in runs] == [RunState.CLOSED] * 2, done.stderr
    # Runs that begin in the same second are in no order.
    assert {(read_end(run) or {})["message"] for run in runs} == {None, "RuntimeError: in the loop"}
    assert done.returncode == 1
    assert "RuntimeError: in the loop" in done.stderr
    kept = [line for line in done.stderr.replace("\r", "\n").split("\n") if "samples/s" in line and "|" not in line]
    assert len(kept) == 2, done.stderr
    assert "80 samples" in kept[0]
    assert "J/sample" in kept[0]
    assert "bad 1:" in kept[1]
    assert "60 samples" in kept[1]
    assert "J/sample" in kept[1]
