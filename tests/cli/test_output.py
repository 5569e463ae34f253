"""Bars for what takes long: nothing at first, nothing where it is no terminal, and never in the way of results."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from joulelab.cli.output import ProgressCounter, measure_terminal, print_blocks, show_progress
from joulelab.report.tables import make_table
from joulelab.report.terminal import TextLine

if TYPE_CHECKING:
    from pathlib import Path


LONG_S = 3600.0  # longer than any test takes


class Terminal(io.StringIO):
    """A file that says that it is a terminal, and tells when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.written:
            self.written.notify_all()
            return super().write(text)


@pytest.fixture(autouse=True)
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def seen(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def until(file: Terminal, word: str) -> str:
    """Return what was drawn as soon as a word is in it."""
    with file.written:
        assert file.written.wait_for(lambda: word in seen(file.getvalue()), timeout=60), file.getvalue()
        return seen(file.getvalue())


def test_what_is_quick_shows_nothing() -> None:
    file = Terminal()
    with show_progress("reading", 10, file=file, after_s=LONG_S) as step:
        step(5)
    assert file.getvalue() == ""


def test_what_is_no_terminal_shows_nothing() -> None:
    file = io.StringIO()
    with show_progress("reading", file=file, after_s=0.0):
        assert "progress" not in {thread.name for thread in threading.enumerate()}
    assert file.getvalue() == ""


def test_a_bar_tells_what_is_done_and_left_and_goes_away() -> None:
    file = Terminal()
    with show_progress("reading [bold]runs\x1b[31m", 10_000, file=file, after_s=0.0) as step:
        step(2500)
        text = until(file, "left")
    assert "reading [bold]runs\\x1b[31m" in text
    assert re.search(r"2,500/10,000, \d+ s left", text)
    assert "\x1b[31m" not in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")


def test_without_a_total_it_tells_the_time_it_took() -> None:
    file = Terminal()
    with show_progress("reading", file=file, after_s=0.0) as step:
        assert re.search(r"reading\s+\d+ s", until(file, "0 s"))
        step.restart(4, "writing")
        step()
        until(file, "writing 1/4")


def test_narrow_terminals_keep_it_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    file = Terminal()
    with show_progress("a very long name of what is done here, really", 10, file=file, after_s=0.0) as step:
        step()
        text = until(file, "left")
    assert all(len(part.rstrip()) <= 50 for part in re.split(r"[\r\n]", text))


def test_a_dumb_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    with show_progress("reading", file=file, after_s=0.0):
        until(file, "reading ...")
    assert file.getvalue() == "reading ...\n"


def test_one_inside_another_draws_nothing() -> None:
    inner = Terminal()
    with show_progress("outer", file=Terminal(), after_s=LONG_S), show_progress("inner", file=inner, after_s=0.0):
        assert [thread.name for thread in threading.enumerate()].count("progress") == 1
    assert inner.getvalue() == ""
    with show_progress("after", file=inner, after_s=0.0):
        until(inner, "after")


def test_errors_go_on_and_the_bar_goes_away() -> None:
    file = Terminal()

    def fail() -> None:
        with show_progress("reading", file=file, after_s=0.0):
            until(file, "reading")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert file.getvalue().endswith("\x1b[2K")


def test_a_terminal_that_is_gone_stops_nothing() -> None:
    tried = threading.Event()

    class Gone(Terminal):
        def write(self, text: str) -> int:
            tried.set()
            raise OSError(5, "Input/output error")

    with show_progress("reading", file=Gone(), after_s=0.0) as step:
        assert tried.wait(60)
        step()
    assert step.done == 1


def test_time_left_is_told_only_once_it_is_known() -> None:
    step = ProgressCounter("x", 100)
    assert step.describe_time(10) == "10 s"
    step(25)
    assert step.describe_time(10) == "30 s left"
    step(75)
    assert step.describe_time(12) == "12 s"


CODE = """
import sys, threading
from joulelab.cli import output
drawn, draw = threading.Event(), output._update_bar
def watched(*words):
    draw(*words)
    drawn.set()
output._update_bar = watched
with output.show_progress("reading", after_s=0.0):
    drawn.wait()
    print("result")
    print("warning", file=sys.stderr)
"""


@pytest.mark.system
def test_results_stay_in_their_pipe(tmp_path: Path) -> None:
    """The bar redirects what is printed meanwhile, but never what goes into a pipe."""
    parent, child = pty.openpty()
    out = tmp_path / "out"
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-c", CODE], stdout=file, stderr=child, check=True, timeout=120)
    os.close(child)
    drawn = os.read(parent, 65536).decode()
    os.close(parent)
    assert out.read_text() == "result\n"
    assert "reading" in drawn
    assert "warning" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l")


def test_a_table_is_bold_on_a_terminal_and_plain_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    blocks = [TextLine("6.88 ± 0.41 kJ", "bold"), make_table(("scope", "energy"), [("gpu:0", "1")])]
    terminal, file = Terminal(), io.StringIO()
    print_blocks(blocks, file=terminal)
    print_blocks(blocks, file=file)
    assert terminal.getvalue().startswith("\x1b[1m6.88 ± 0.41 kJ\x1b[0m\n")
    assert file.getvalue().splitlines() == ["6.88 ± 0.41 kJ", "scope  energy", "─────────────", "gpu:0       1"]
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    print_blocks(blocks, file=terminal)
    assert terminal.getvalue() == file.getvalue()


def test_letters_that_the_output_does_not_know_are_spelled() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_blocks([TextLine("6.88 ± 0.41 µJ 漢"), make_table(("a",), [("b",)])], file=file)
    assert raw.getvalue() == b"6.88 +- 0.41 uJ \\u6f22\na\n-\nb\n"


def test_the_width_is_that_of_columns_or_80(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    assert measure_terminal() == 123
    for wrong in ("0", "x", ""):
        monkeypatch.setenv("COLUMNS", wrong)
        assert measure_terminal() >= 1
