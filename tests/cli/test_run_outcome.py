"""Nothing that joulelab does itself stops, replaces or changes the command or its outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.entry import JOULELAB
from tests.cli.test_run import NO_POWER
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

# An analysis that ends when it may: what is sent before arrives after the command's end.
SLOW = """
import os, time, joulelab.run.run_command as c
def slow(run):
    open({flag!r}, "w").close()
    while not os.path.exists({go!r}):
        time.sleep(0.01)
c.analyse_closed_run = slow
from joulelab.cli import main
main()
"""
# A signal of our own at the moment when a module is imported.
EARLY = """
import signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            open({flag!r}, "w").close()
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from joulelab.cli import main
main()
"""


def environ(runs: Path, **more: str) -> dict[str, str]:
    return dict(os.environ) | {"JOULELAB_RUNS": str(runs), **more}


def full_run(runs: Path, *words: str) -> int:
    """Run with an error output to which nothing can be written; return the exit code."""
    with open("/dev/full", "w") as full:
        return subprocess.run(
            [*JOULELAB, "run", *words], env=environ(runs), stderr=full, timeout=300, check=False
        ).returncode


def test_a_message_that_cannot_be_printed_does_not_stop_the_command(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    (tmp_path / "file").write_text("")
    assert full_run(tmp_path / "file" / "runs", "--", "touch", str(proof)) == 0
    assert proof.exists()


def test_a_table_that_cannot_be_printed_does_not_change_the_outcome(runs: Path) -> None:
    assert full_run(runs, *NO_POWER, "--", "sh", "-c", "exit 7") == 7
    assert full_run(runs, *NO_POWER, "--", "sh", "-c", "kill -TERM $$") == -15
    assert full_run(runs, *NO_POWER, "--", "/no/such/command") == 127


@pytest.mark.parametrize(
    ("numbers", "cuts"), [([signal.SIGINT], True), ([signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1], False)]
)
def test_a_signal_after_the_end_does_not_replace_the_outcome(runs: Path, numbers: list[int], cuts: bool) -> None:
    flag, go = runs.parent / "analysing", runs.parent / "go"
    code = SLOW.format(flag=str(flag), go=str(go))
    command = [sys.executable, "-c", code, "run", *NO_POWER, "--", "sh", "-c", "exit 3"]
    process = subprocess.Popen(command, env=environ(runs), stderr=subprocess.PIPE, text=True)
    until(flag.exists)
    for number in numbers:
        process.send_signal(number)
    if not cuts:
        go.touch()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 3, told
    assert "Traceback" not in told
    assert told.startswith("joulelab: interrupted") == cuts


def test_a_parent_that_ignores_its_children(runs: Path) -> None:
    command = ["env", "--ignore-signal=CHLD", *JOULELAB, "run", "-q", *NO_POWER, "--", "sh", "-c", "exit 7"]
    done = subprocess.run(command, env=environ(runs), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_signal_that_is_ignored_is_not_acted_upon(runs: Path) -> None:
    proof = runs.parent / "proof"
    joulelab = ["env", "--ignore-signal=HUP", *JOULELAB, "run", "-q", *NO_POWER, "--idle", "300ms"]
    process = subprocess.Popen([*joulelab, "--", "sh", "-c", f"touch {proof}; sleep 0.3; exit 4"], env=environ(runs))
    until(lambda: list(runs.glob("*/*/events.0.jsonl")))
    process.send_signal(signal.SIGHUP)
    until(proof.exists)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 4


def test_an_interrupt_in_the_first_moments_leaves_no_traceback(runs: Path) -> None:
    modules = (
        "run.child_process",
        "cli.group",
        "cli.run",
        "run.run_command",
        "run.signal_forwarding",
        "store.run_folder",
    )
    started = []
    for module in modules:
        flag = runs.parent / module
        code = EARLY.format(module=f"joulelab.{module}", flag=str(flag))
        command = [sys.executable, "-c", code, "run", *NO_POWER, "--", "touch", str(runs.parent / f"ran-{module}")]
        started.append((module, subprocess.Popen(command, env=environ(runs), stderr=subprocess.PIPE, text=True)))
    for module, process in started:
        _, told = process.communicate(timeout=120)
        assert (runs.parent / module).exists(), module
        assert process.returncode == -signal.SIGINT, (module, told)
        assert "Traceback" not in told
        assert not (runs.parent / f"ran-{module}").exists()


def test_the_locale_that_python_gives_itself_is_not_the_commands(runs: Path) -> None:
    command = [*JOULELAB, "run", "-q", *NO_POWER, "--", "env"]
    bare = {k: v for k, v in environ(runs).items() if k != "LANG" and not k.startswith("LC_")}
    plain = subprocess.run(command, env=bare, capture_output=True, text=True, check=True).stdout
    assert "LC_CTYPE" not in plain
    chosen = subprocess.run(command, env=bare | {"LC_CTYPE": "C.UTF-8"}, capture_output=True, text=True, check=True)
    assert "LC_CTYPE=C.UTF-8\n" in chosen.stdout


def test_a_folder_that_was_deleted_and_a_command_line_that_is_no_text(runs: Path) -> None:
    runs.mkdir()
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    command = ["sh", "-c", script, "sh", *JOULELAB, "run", *NO_POWER, "--", "printf", b"\xff"]
    done = subprocess.run(command, env=environ(runs), cwd=runs.parent, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"\xff")
    assert b"cannot" not in done.stderr
    assert b"not recorded" not in done.stderr
    [folder] = runs.iterdir()
    assert (folder / "end.json").is_file()


def test_quiet_still_tells_problems(runs: Path) -> None:
    command = [*JOULELAB, "run", "-q", *NO_POWER, "--capture", "/no/such/folder/x", "--", "true"]
    done = subprocess.run(command, env=environ(runs), capture_output=True, text=True, check=True)
    assert "/no/such/folder/x" in done.stderr
    assert done.stderr.count("\n") == 1
