"""`joulelab watch`: attaches to what runs, on a real terminal too, and leaves everything as it was."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.report.synthetic import HOST, NOBODY, START, epochs, make_run

from joulelab.cli import watch
from joulelab.cli.watch import list_live_runs
from joulelab.cli.watch_terminal import KeyWaiter
from joulelab.core.clock import NS
from joulelab.report.watch.watched_run import RunWatch
from joulelab.store.run_folder import end_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Call, Fail

    from joulelab.report.watch.watched_run import WatchView

    Once = Callable[[Callable[[list[WatchView]], bool], Callable[[], object]], list[WatchView]]

SCRIPT = [sys.executable, "-c", "from joulelab.cli import main; main()"]
SECONDS = 10.0
CODES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def finish(run: Path) -> None:
    stop = START + round(SECONDS * NS)
    end_run(run, {"outcome": "exit", "exit_code": 3, "start_ns": START, "end_ns": stop})


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> Once:
    """Do something once what was seen so far fulfils a condition; no time passes between two looks."""
    look, seen, done = RunWatch.read, [], []

    def plan(condition: Callable[[list[WatchView]], bool], do: Callable[[], object]) -> list[WatchView]:
        def looked(self: RunWatch, *words: Any, **more: Any) -> WatchView:
            seen.append(look(self, *words, **more))
            if not done and condition(seen):
                done.append(do())
            return seen[-1]

        monkeypatch.setattr(RunWatch, "read", looked)
        return seen

    now = itertools.count()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(KeyWaiter, "wait_until", lambda *_: None)
    return plan


class Pty:
    """Run joulelab on a terminal of its own."""

    def __init__(self, *words: str, size: tuple[int, int] = (80, 24), **environ: str) -> None:
        self.parent, self.child = pty.openpty()
        self.resize(*size)
        self.found = termios.tcgetattr(self.child)
        self.drawn = b""
        self.process = subprocess.Popen(
            [*SCRIPT, *words],
            stdin=self.child,
            stdout=self.child,
            stderr=self.child,
            env={**os.environ, "TERM": "xterm", **environ},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that keys send signals
        )

    @property
    def text(self) -> str:
        return self.drawn.decode(errors="ignore")

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.parent, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, word: str, after: int = 0) -> str:
        """Read until a word is there."""
        by = time.monotonic() + 120
        while word not in self.text[after:]:
            assert time.monotonic() < by, self.text
            if select.select([self.parent], (), (), 0.05)[0]:
                self.drawn += os.read(self.parent, 65536)
        return self.text[after:]

    def press(self, keys: bytes) -> None:
        os.write(self.parent, keys)

    def end(self) -> int:
        """Wait for the end, and return the exit code; the terminal must be as it was found."""
        code = self.process.wait(120)
        while select.select([self.parent], (), (), 0.05)[0]:
            self.drawn += os.read(self.parent, 65536)
        assert termios.tcgetattr(self.child)[3] == self.found[3]
        os.close(self.parent)
        os.close(self.child)
        return code

    def screens(self) -> list[list[str]]:
        """Return what was drawn, screen by screen, without codes."""
        drawn = self.text.split("\x1b[?1049l")[0].split("\x1b[H")[1:]
        return [CODES.sub("", screen).replace("\r", "").split("\n") for screen in drawn]


@pytest.mark.system
def test_on_a_terminal_it_follows_size_and_end_of_the_run(runs: Path) -> None:
    run = make_run(runs, state="live", seconds=SECONDS, gpus=8, marks=epochs(3, SECONDS), name="evil\x1b[2Jname")
    other = make_run(runs, state="live", started={**make_started(), "utc_ns": 1_600_000_000 * NS})
    term = Pty("watch", "--every", "0.2", "--runs", str(runs))
    term.until("energy, ")
    text = term.until("q quits")
    assert "evil\\x1b[2Jname" in text
    assert f"also live: {other.name}" in text
    before = len(term.text)
    term.resize(60, 20)
    term.process.send_signal(signal.SIGWINCH)  # the group that is in front gets it anyway, but not at once
    term.until("\x1b[2J\x1b[H", before)
    after = len(term.text)
    term.until("q quits", after)
    finish(run)
    assert term.end() == 0
    for screen in term.screens():
        assert len(screen) <= 24
        assert max(map(len, screen)) <= 80
    assert len(term.screens()[-1]) <= 20
    assert max(len(line) for line in term.screens()[-1]) <= 60
    last = term.text.split("\x1b[?1049l")[1]
    assert "joulelab   python train.py · 10.00 s · exit 3" in last
    assert re.search(r"energy     24\.\d* ± [\d.]+ kJ", last)
    assert f"next       joulelab show {run}" in last
    assert not re.search(r"[^\r\n]\x1b\[[02]?[JK]", term.text.replace("\x1b[2J", "").replace("\x1b[H", "\n"))
    assert term.text.rfind("\x1b[?25h") > term.text.rfind("\x1b[?25l")


def make_started() -> dict[str, Any]:
    from tests.report.synthetic import STARTED

    return dict(STARTED)


@pytest.mark.system
@pytest.mark.parametrize(("key", "code"), [(b"q", 0), (b"\x03", 130)])
def test_one_leaves_by_a_key(runs: Path, key: bytes, code: int) -> None:
    run = make_run(runs, state="live", seconds=SECONDS)
    term = Pty("watch", "--runs", str(runs), NO_COLOR="1")
    term.until("q quits")
    term.press(key)
    assert term.end() == code
    assert str(run) in term.text.split("\x1b[?1049l")[1]
    assert "Traceback" not in term.text
    assert not re.search(r"\x1b\[3\d", term.text)  # no colours where nobody wants them


@pytest.mark.system
def test_a_signal_leaves_the_terminal_as_it_was(runs: Path) -> None:
    make_run(runs, state="live", seconds=SECONDS)
    term = Pty("watch", "--runs", str(runs), PYTHONIOENCODING="ascii")
    text = term.until("q quits")
    assert CODES.sub("", text).isascii()
    term.process.send_signal(signal.SIGHUP)
    assert term.end() == 129
    assert term.text.endswith("\x1b[?25h\x1b[?1049l")


@pytest.mark.system  # pure, and slow
def test_a_pipe_gets_a_line_each_time_and_the_end(call: Call, runs: Path, once: Once) -> None:
    run = make_run(runs, state="live", seconds=SECONDS, marks=epochs(3, SECONDS))
    other = make_run(runs, state="live", seconds=1.0, name="b" * 90, started={**make_started(), "utc_ns": NS})
    seen = once(lambda seen: len(seen) == 3, lambda: finish(run))
    done = call("watch", "--every", "0.2")
    lines = done.stdout.splitlines()
    assert [view.state for view in seen] == ["live", "live", "live", "closed"]
    assert "150.0 W  gpu (2) 120.0 W" in lines[0]  # the load has ended
    assert "\x1b" not in done.stdout
    shown = call("show", run.name, "--all").stdout
    answer = "\n".join(lines[3:-1])
    assert answer.startswith("joulelab   python train.py · 10.00 s · exit 3\nenergy  ")
    assert [line for line in answer.splitlines() if line not in shown] == []
    assert lines[-1] == f"next       joulelab show {run.name}"
    assert f"also live: {other.name} (bbb" in done.stderr
    assert "joulelab watch RUN" in done.stderr


@pytest.mark.system  # pure, and slow
def test_json_is_an_object_each_time(call: Call, runs: Path, once: Once) -> None:
    run = make_run(runs, state="live", seconds=SECONDS)
    once(lambda seen: seen[-1].energy is not None, lambda: finish(run))
    found = [json.loads(line) for line in call("watch", "--every", "0.2", "--json").stdout.splitlines()]
    assert {view["state"] for view in found[:-1]} == {"live"}
    assert found[-1]["final"]["exit_code"] == 3
    whole = json.loads(call("show", run.name, "--json").stdout)
    assert found[-1]["final"]["energy"]["value"] == whole["energy"]["value"]
    assert found[-2]["energy"]["value"] == pytest.approx(whole["energy"]["value"], rel=0.05)


def test_once_shows_all_of_it(call: Call, runs: Path) -> None:
    make_run(runs, state="live", gpus=12, seconds=SECONDS)
    text = call("watch", "--once").stdout
    assert "gpu (12)" in text
    assert "gpu:11" in text
    assert "energy, kJ" in text
    assert json.loads(call("watch", "--once", "--json").stdout)["gpus"][11]["label"] == "gpu:11"


def test_a_run_that_has_ended_is_told_at_once(call: Call, fail: Fail, runs: Path) -> None:
    make_run(runs, name="done")
    text = call("watch", "done").stdout
    assert text.startswith("joulelab   python train.py · 10.00 s · exit 0\nenergy     6.9 ")
    assert "done" in str(fail("watch", "dome", code=1))


def test_a_killed_run_is_told(call: Call, runs: Path) -> None:
    run = make_run(runs, state="live", seconds=SECONDS)

    assert list_live_runs(runs) == [run]
    meta = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(meta | {"owner": NOBODY}))
    assert list_live_runs(runs) == []
    assert json.loads(call("watch", run.name, "--json").stdout)["state"] == "killed"
    assert not list((run / HOST).glob("*.parquet"))  # nothing is written there


def test_a_folder_that_vanishes_is_said(fail: Fail, runs: Path, once: Once) -> None:
    run = make_run(runs, state="live", seconds=SECONDS)
    once(lambda seen: len(seen) == 2, lambda: run.rename(runs.parent / "away"))
    failure = fail("watch", "--every", "0.2", code=1)
    assert (failure.code, failure.where, failure.next) == ("store.gone", str(run), "joulelab ls")


@pytest.mark.system
def test_alone_it_measures_this_node_and_leaves_nothing(
    call: Call, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    done = call("watch", "--once", "--every", "0.2")
    assert "this node" in done.stdout
    assert "measuring this node" in done.stderr
    assert list(place.iterdir()) == []
    assert not runs.exists()


@pytest.mark.system
def test_alone_it_keeps_what_is_wanted(call: Call, runs: Path) -> None:
    data = json.loads(call("watch", "--once", "--json", "--keep").stdout)
    assert data["own"]
    assert [run.name for run in runs.iterdir()] == [data["run"]]
    assert (runs / data["run"] / "end.json").exists()
