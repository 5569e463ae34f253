"""`joulelab run` shows power and energy in the title of a terminal, and leaves the screen to the command."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click
import pytest
from tests.run.test_signals import Terminal

from joulelab.cli.live_line import EVERY_LINE_S, FIRST_LINE_S, LiveLine, can_show_title, choose_line_times
from joulelab.cli.run import command
from joulelab.core.quantity import Quantity
from joulelab.report.run_summary import write_live_figures
from joulelab.report.watch.watched_energy import EnergySoFar
from joulelab.report.watch.watched_run import PowerRow, WatchView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# joulelab, with a title every 0.1 s from 0.3 s on, and a line every second.
CODE = """
import os; os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
from joulelab.cli import live_line, main
live_line.FIRST_S, live_line.EVERY_S, live_line.SHARE = 0.3, 0.1, 1.0
live_line.FIRST_LINE_S = live_line.EVERY_LINE_S = 1.0
main()
"""
METER = """
from joulelab.core.spec import Accuracy, Spec, Stream
class Steady:
    def streams(self):
        accuracy = Accuracy(gain=0.01, source="datasheet")
        channel = Spec("power_w", "power", "W", "power", update_s=0.05, accuracy=accuracy)
        return [Stream("node", "power", "node.ac", 0.05, (channel,))]
    def read(self, stream): return (1000.0,)
    def close(self): pass
def open_meter(config): return Steady()
"""
# A bar that is redrawn by carriage returns, a screen of its own in raw mode, and a question.
WORKLOAD = """
import sys, termios, time, tty
def draw(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sys.stderr.write("\\r\\x1b[32m45%|####\\x1b[0m| bar"); sys.stderr.flush(); time.sleep(0.01)
print("begun", flush=True)
if input() == "draw": draw(2.0)
before = termios.tcgetattr(0)
tty.setraw(0)
sys.stdout.write("\\x1b[?1049h\\x1b[2J\\x1b[5;5Hraw"); sys.stdout.flush()
sys.stdin.read(1)
sys.stdout.write("\\x1b[?1049l"); sys.stdout.flush()
termios.tcsetattr(0, termios.TCSADRAIN, before)
print("hello", input("name? "), flush=True)
time.sleep(600)
"""
TITLE = re.compile(r"\x1b\]0;([^\x07]*)\x07")
SAVED, RESTORED = "\x1b[22;0t", "\x1b]0;\x07\x1b[23;0t"


def hide_titles(screen: str) -> str:
    return TITLE.sub("", screen.replace(RESTORED, "").replace(SAVED, ""))


def list_titles(screen: str) -> list[str]:
    return [title for title in TITLE.findall(screen) if title]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    (tmp_path / "steady.py").write_text(METER)
    (tmp_path / "work.py").write_text(WORKLOAD)
    (tmp_path / "joulelab.toml").write_text(f'[meters.steady]\nmeter = "{tmp_path / "steady.py"}"\n')
    opened: list[Terminal] = []

    def start_terminal(*options: str, term: str = "xterm-256color", command: str = "") -> Terminal:
        environ = os.environ | {"TERM": term, "PS1": "prompt> ", "JOULELAB_RUNS": str(tmp_path / "runs")}
        environ |= {"JOULELAB_CONFIG": str(tmp_path / "joulelab.toml"), "LC_ALL": "C.UTF-8"}
        words = [sys.executable, "-c", CODE, "run", "--meter", "steady", *options, "--"]
        work = command or shlex.join([sys.executable, str(tmp_path / "work.py")])
        opened.append(Terminal(["bash", "--norc", "--noprofile", "-i"], environ))
        opened[-1].expect("prompt> ")
        opened[-1].type(f"{shlex.join(words)} {work}\n")
        return opened[-1]

    yield start_terminal
    for each in opened:
        each.close()


@pytest.mark.system
def test_the_title_shows_figures_and_the_command_has_the_screen(start: Callable[..., Terminal]) -> None:
    t = start("--live", "off")
    t.expect(lambda: any("J · " in title for title in list_titles(t.output)))
    assert re.fullmatch(r"1\.00 kW · [\d.]+ k?J · \d+ s - .*python.*", list_titles(t.output)[-1])
    assert t.output.count(SAVED) == 1

    t.type("draw\n")
    t.expect("\x1b[?1049h")
    drawn = hide_titles(t.output.partition("begun")[2].partition("bar")[2].partition("\x1b[?1049h")[0])
    assert set(drawn.split("\r")) == {"", "\x1b[32m45%|####\x1b[0m| bar"}  # nothing else is between two bars
    count = len(list_titles(t.output))
    with pytest.raises(AssertionError):  # no title while the terminal is in raw mode
        t.expect(lambda: len(list_titles(t.output)) > count + 1, within_s=1.0)
    t.type("q")
    t.expect("name? ")
    t.expect(lambda: len(list_titles(t.output)) > count + 2)
    t.type("Ada\n")
    t.expect("hello Ada")

    t.type("\x1a")
    t.expect("Stopped")
    stopped = t.output.partition("hello Ada")[2]
    assert RESTORED in stopped.partition("Stopped")[0]
    t.type("fg\n")
    t.expect(lambda: bool(list_titles(t.output.partition("Stopped")[2])))
    t.type("\x03")
    t.expect("killed by SIGINT")
    end = t.output.partition("Stopped")[2]
    assert (end.count(SAVED), end.count(RESTORED)) == (1, 1)
    assert not list_titles(end.partition(RESTORED)[2])
    t.type("echo code $?; exit\n")
    t.expect("code 130")


@pytest.mark.system
def test_a_terminal_gets_whole_lines_and_not_always_a_title(start: Callable[..., Terminal]) -> None:
    sleep = "sh -c 'printf half; sleep 3'"
    quiet, plain = start("-q", command=sleep), start(term="linux", command=f"{sleep}; exit")
    plain.expect("J (± ")
    quiet.type("exit\n")
    quiet.wait()
    for output in (quiet.output, plain.output):
        assert SAVED not in output
        assert not TITLE.search(output)
    assert "joulelab: " not in quiet.output
    # The line begins in a row of its own: blanks up to the last column wrap after the half line.
    lines = re.findall(r"( +)\rjoulelab: 1\.00 kW(?: · [\d.]+ k?J)? · \d s\r\n", plain.output)
    assert lines
    assert {len(blanks) for blanks in lines} == {100}


def make_view(elapsed_s: float, now_w: float, energy: Quantity | None, energy_s: float) -> WatchView:
    row = PowerRow("gpu:0", now_w, (now_w,), now_w)
    return WatchView(
        run="r", name="n", hosts=("h",), command="c", state="live", elapsed_s=elapsed_s, now_w=now_w, energy=energy,
        energy_s=energy_s, estimate=False, rows=(row,), gpus=(), phases=(), meters=(), work={}, busy=0.0, every_s=3.0,
        notes=(), own=False,
    )  # fmt: skip


def test_between_two_energies_power_is_integrated() -> None:
    so_far, known, later = EnergySoFar(), Quantity(1000.0, {"gain:a": 25.0}), Quantity(9000.0)
    found = [
        so_far.add_view(view, view.elapsed_s or 0.0)
        for view in (
            make_view(5.0, 100.0, None, 0.0),
            make_view(11.0, 100.0, known, 10.0),  # 1 s after the energy
            make_view(14.0, 200.0, known, 10.0),
            make_view(17.0, 0.0, known, 10.0),  # the power of a moment does not change the past
            make_view(19.0, 300.0, later, 19.5),  # the energy has later readings than the power
            make_view(20.5, 300.0, later, 19.5),
            make_view(90.0, 300.0, later, 19.5),  # stopped for more than a minute: unknown
            make_view(93.0, 300.0, later, 19.5),
        )
    ]
    values = [None if energy is None else round(energy.value) for energy in found]
    assert values == [None, 1100, 1700, 1700, 9000, 9300, None, None]
    assert found[1] is not None
    assert found[1].relative == pytest.approx(known.relative)


def test_a_failure_ends_the_figures_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.cli.live_line.FIRST_S", 0.0)
    line = LiveLine(has_title=False, every_s=1.0)
    line._show_figures(tmp_path / "gone")
    assert str(tmp_path / "gone") in line.problem


def test_live_figures_are_one_short_line() -> None:
    energy = Quantity(1.1e6, {"gain:a": 5e4})
    table = [
        ((4870.0, energy, 200.0), "4.87 kW · 0.31 kWh · 3 min 20 s"),
        ((87.6, Quantity(512.3, {"edge:a": 8.0}), 8.2), "87.6 W · 512 J · 8 s"),
        ((87.6, Quantity(5.0, {"edge:a": 8.0}), 0.4), "87.6 W · 0 s"),
        ((float("nan"), energy, 200.0), "no reading · 0.31 kWh · 3 min 20 s"),
        ((87.6, None, 8.2), "87.6 W · 8 s"),
    ]
    assert [write_live_figures(*given) for given, _ in table] == [text for _, text in table]
    assert write_live_figures(4870.0, energy, 200.0, estimate=True) == "~4.87 kW · ~0.31 kWh · 3 min 20 s"


def test_lines_come_by_default_after_10_s_and_by_option_when_they_are_asked_for() -> None:
    chosen: dict[str, Any] = {}

    def run(*words: str) -> Any:
        with command.make_context("run", [*words, "--", "true"]) as context:
            chosen.update(context.params)
        return chosen["live"]

    assert [run(), run("--live", "30s"), run("--live", "off")] == [None, 30.0, 0.0]
    with pytest.raises(click.BadParameter, match="0"):
        run("--live", "0.5s")
    reader, writer = os.pipe()
    try:
        for live, is_quiet, times in (
            (30.0, True, (30.0, 30.0)),
            (0.0, False, (None, None)),
            (None, False, (None,) * 2),
        ):
            assert choose_line_times(live, writer, {"TERM": "xterm"}, is_quiet=is_quiet) == times
    finally:
        os.close(reader)
        os.close(writer)
    assert (FIRST_LINE_S, EVERY_LINE_S) == (10.0, 60.0)  # a run below 10 s prints none


def test_figures_that_cost_much_come_less_often_but_not_after_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulelab.cli.live_line.time.monotonic", lambda: 100.0)
    title, line = LiveLine(has_title=True), LiveLine(has_title=False, every_s=60.0, first_s=10.0)
    assert [title._choose_wait(3.0, cost_s) for cost_s in (0.003, 0.06)] == [3.0, pytest.approx(20.0)]
    line._due_s = 108.0
    assert [line._choose_wait(3.0, cost_s) for cost_s in (0.003, 0.06)] == [3.0, 8.0]
    line._due_s = 99.0  # the line was just due, and the terminal was not free
    assert line._choose_wait(3.0, 0.06) == 3.0


def test_a_pipe_and_a_terminal_of_others_have_no_title() -> None:
    reader, writer = os.pipe()
    ours, theirs = os.openpty()
    try:
        assert not can_show_title(writer, {"TERM": "xterm"})
        assert not can_show_title(theirs, {"TERM": "xterm"})
    finally:
        for fd in (reader, writer, ours, theirs):
            os.close(fd)
