"""Bars for what takes long: nothing at first, nothing where it is no terminal, and never in the way of results."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from joulelab.cli.busy import Step, busy

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def seen(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def until(file: Terminal, word: str) -> str:
    """Return what was drawn as soon as a word is in it; a busy machine may take a while."""
    by = time.monotonic() + 5
    while word not in seen(file.getvalue()):
        assert time.monotonic() < by, file.getvalue()
        time.sleep(0.01)
    return seen(file.getvalue())


def test_what_is_quick_shows_nothing() -> None:
    file = Terminal()
    with busy("reading", 10, file=file) as step:
        step(5)
    assert file.getvalue() == ""


def test_what_is_no_terminal_shows_nothing() -> None:
    file = io.StringIO()
    with busy("reading", file=file, after_s=0.0):
        time.sleep(0.05)
    assert file.getvalue() == ""


def test_a_bar_tells_what_is_done_and_left_and_goes_away() -> None:
    file = Terminal()
    with busy("reading [bold]runs\x1b[31m", 10_000, file=file, after_s=0.0) as step:
        step(2500)
        text = until(file, "left")
    assert "reading [bold]runs\\x1b[31m" in text
    assert re.search(r"2 500/10 000, \d+ s left", text)
    assert "\x1b[31m" not in file.getvalue()
    assert file.getvalue().endswith("\x1b[2K")


def test_without_a_total_it_tells_the_time_it_took() -> None:
    file = Terminal()
    with busy("reading", file=file, after_s=0.0) as step:
        assert re.search(r"reading\s+\d+ s", until(file, "0 s"))
        step.of(4, "writing")
        step()
        until(file, "writing 1/4")


def test_narrow_terminals_keep_it_on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    file = Terminal()
    with busy("a very long name of what is done here, really", 10, file=file, after_s=0.0) as step:
        step()
        text = until(file, "left")
    assert all(len(part.rstrip()) <= 50 for part in re.split(r"[\r\n]", text))


def test_a_dumb_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    with busy("reading", file=file, after_s=0.0):
        until(file, "reading ...")
        time.sleep(0.3)
    assert file.getvalue() == "reading ...\n"


def test_one_inside_another_draws_nothing() -> None:
    inner = Terminal()
    with busy("outer", file=Terminal(), after_s=9.0), busy("inner", file=inner, after_s=0.0):
        time.sleep(0.1)
    assert inner.getvalue() == ""
    with busy("after", file=inner, after_s=0.0):
        until(inner, "after")


def test_errors_go_on_and_the_bar_goes_away() -> None:
    file = Terminal()

    def fail() -> None:
        with busy("reading", file=file, after_s=0.0):
            until(file, "reading")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert file.getvalue().endswith("\x1b[2K")


def test_a_terminal_that_is_gone_stops_nothing() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with busy("reading", file=Gone(), after_s=0.0) as step:
        time.sleep(0.3)
        step()
    assert step.done == 1


def test_time_left_is_told_only_once_it_is_known() -> None:
    step = Step("x", 100)
    assert step.left(10) == "10 s"
    step(25)
    assert step.left(10) == "30 s left"
    step(75)
    assert step.left(12) == "12 s"


CODE = """
import sys, time
from joulelab.cli.busy import busy
with busy("reading", after_s=0.0):
    time.sleep(0.6)
    print("result")
    print("warning", file=sys.stderr)
    time.sleep(0.3)
"""


def test_results_stay_in_their_pipe(tmp_path: Path) -> None:
    """The bar redirects what is printed meanwhile, but never what goes into a pipe."""
    parent, child = pty.openpty()
    out = tmp_path / "out"
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-c", CODE], stdout=file, stderr=child, check=True, timeout=20)
    os.close(child)
    drawn = os.read(parent, 65536).decode()
    os.close(parent)
    assert out.read_text() == "result\n"
    assert "reading" in drawn
    assert "warning" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l")
