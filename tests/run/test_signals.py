"""Signals reach the workload once, whoever sends them, and the terminal works as without joulelab."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.run.supervised import CATCHER, DRIVER, Bench, caught, gone, recorders_in, started
from tests.waiting import until

from joulelab.core.clock import NEVER_NS, NS
from joulelab.run.signal_forwarding import (
    LATE_NS,
    REPORT_NS,
    SAME_NS,
    ArrivedSignal,
    GroupWitness,
    SignalBox,
    SignalForwarder,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def catching(bench: Bench) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the catcher under the supervisor; end it by SIGUSR2 in the end."""
    log = bench.folder / "caught"
    process = bench.start(*CATCHER, str(log), seal_limit=0)
    until(lambda: caught(log) == ["ready"])
    yield process, log
    if process.poll() is None:
        process.send_signal(signal.SIGUSR2)
    assert process.wait(120) == 0
    assert bench.end["outcome"] == "exit"


SENT = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]


def finish(process: subprocess.Popen[bytes]) -> None:
    """End the catcher; what was sent before is decided before."""
    process.send_signal(signal.SIGUSR2)
    assert process.wait(120) == 0


@pytest.mark.system
def test_signals_of_a_process_are_passed_on_once(catching: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, log = catching
    for number in SENT:
        process.send_signal(number)
    until(lambda: len(caught(log)) == 1 + len(SENT))
    process.send_signal(signal.SIGTERM)
    until(lambda: caught(log).count("SIGTERM") == 2)
    finish(process)
    assert sorted(caught(log)) == sorted(["ready", *(n.name for n in SENT), "SIGTERM", "SIGUSR2"])


@pytest.mark.system
def test_signals_to_the_group_are_not_passed_on_again(catching: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, log = catching
    for number in SENT:
        os.killpg(process.pid, number)
    until(lambda: len(caught(log)) == 1 + len(SENT))
    finish(process)
    assert sorted(caught(log)) == sorted(["ready", *(n.name for n in SENT), "SIGUSR2"])


@pytest.mark.campaign  # both within 40 ms: TestForwarder.test_two_signals_of_one_sender_are_one
def test_timeout_sends_to_both_and_the_workload_gets_one(catching: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, log = catching
    # What timeout(1) does: first to the process it started, then to its group.
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    until(lambda: "SIGINT" in caught(log))
    finish(process)
    assert caught(log) == ["ready", "SIGINT", "SIGUSR2"]


@pytest.mark.system
def test_an_interrupt_while_idle_is_recorded_starts_nothing(bench: Bench) -> None:
    process = bench.start("touch", str(bench.folder / "started"), idle_s=600.0)
    until(lambda: bench.runs.exists() and list(bench.runs.glob("*/*/fake.power.0.journal")))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == -signal.SIGINT
    assert (bench.end["outcome"], bench.end["signal"]) == ("interrupted", 2)
    assert not (bench.folder / "started").exists()


@pytest.mark.system
def test_an_interrupt_cuts_the_tail_short(bench: Bench) -> None:
    process = bench.start("true", tail_s=600.0, meters=[slow_meter(bench.folder)], seal_limit=0)
    until(lambda: bench.runs.exists() and list(bench.runs.glob("*/*/slow.power.0.journal")))
    until(lambda: bool(bench.events("workload-end")))
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert bench.end["exit_code"] == 0


def slow_meter(folder: Path) -> dict[str, Any]:
    path = folder / "slow.py"
    path.write_text(
        "from joulelab.core.spec import Spec, Stream\n"
        "class Slow:\n"
        "    def streams(self):\n"
        "        return [Stream('o', 'power', 'outlet:1', 0.5, (Spec('p', 'power', 'W', 'power', update_s=400.0),))]\n"
        "    def read(self, stream): return (5.0,)\n"
        "    def close(self): pass\n"
        "def open_meter(config): return Slow()\n"
    )
    return {"meter": str(path)}


@pytest.mark.system
def test_stopping_and_continuing_from_outside(catching: tuple[subprocess.Popen[bytes], Path], bench: Bench) -> None:
    process, log = catching
    workload = bench.events("workload")[0]["pid"]
    process.send_signal(signal.SIGTSTP)
    until(lambda: state(workload) == "T" and state(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    until(lambda: state(workload) != "T" and state(process.pid) != "T")
    assert caught(log) == ["ready"]


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


class TestForwarder:
    """What is passed on and what is not, in virtual time."""

    def setup_method(self) -> None:
        self.t = 1000 * NS
        self.sent: list[int] = []
        self.pending: set[int] = set()
        self.forwarder = SignalForwarder(self.sent.append, lambda s: s.number in self.pending, now=lambda: self.t)

    def arrive(self, number: int, *, of_kernel: bool = False, sender: int = 1) -> None:
        self.forwarder.take(ArrivedSignal(number, of_kernel, sender, self.t))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH])
    def test_the_terminal_has_told_the_workload(self, number: int) -> None:
        self.arrive(number, of_kernel=True)
        self.t += NS
        self.forwarder.decide({})
        assert self.sent == []
        assert self.forwarder.group

    def test_a_hangup_of_the_kernel_goes_to_session_leaders_alone(self) -> None:
        self.arrive(signal.SIGHUP, of_kernel=True)
        self.t += NS
        self.forwarder.decide({})
        assert self.sent == [signal.SIGHUP]
        assert not self.forwarder.group

    def test_it_waits_for_the_recorders_report(self) -> None:
        self.arrive(signal.SIGTERM)
        self.t += REPORT_NS // 2
        self.forwarder.decide({})
        assert self.sent == []
        assert self.forwarder.due_ns == self.t + REPORT_NS // 2
        self.forwarder.decide({(signal.SIGTERM, 1): self.t})
        self.t += NS
        self.forwarder.decide({})
        assert self.sent == []
        assert self.forwarder.group
        assert self.forwarder.due_ns == NEVER_NS

    def test_an_old_report_does_not_count_again(self) -> None:
        report = {(int(signal.SIGTERM), 1): self.t}
        self.arrive(signal.SIGTERM)
        self.forwarder.decide(report)
        assert self.sent == []
        self.t += SAME_NS + 1
        self.arrive(signal.SIGTERM)
        self.t += REPORT_NS
        self.forwarder.decide(report)
        assert self.sent == [signal.SIGTERM]

    def test_a_report_that_did_not_count_yet_may_be_older_where_we_were_kept_waiting(self) -> None:
        report = {(int(signal.SIGTERM), 1): self.t}
        self.t += LATE_NS
        self.arrive(signal.SIGTERM)
        self.forwarder.decide(report)
        self.t += NS
        self.forwarder.decide(report)
        assert self.sent == []
        report = {(int(signal.SIGHUP), 1): self.t}
        self.t += LATE_NS + 1
        self.arrive(signal.SIGHUP)
        self.t += REPORT_NS
        self.forwarder.decide(report)
        assert self.sent == [signal.SIGHUP]

    def test_two_signals_of_one_sender_are_one(self) -> None:
        self.arrive(signal.SIGTERM)
        report = {(int(signal.SIGTERM), 1): self.t + 1}
        self.t += REPORT_NS // 4
        self.forwarder.decide(report)
        self.arrive(signal.SIGTERM)
        self.t += NS
        self.forwarder.decide(report)
        assert self.sent == []

    def test_two_signals_of_two_senders_are_two(self) -> None:
        self.arrive(signal.SIGTERM)
        report = {(int(signal.SIGTERM), 1): self.t + 1}
        self.forwarder.decide(report)
        self.arrive(signal.SIGTERM, sender=2)
        self.t += NS
        self.forwarder.decide(report)
        assert self.sent == [signal.SIGTERM]

    def test_pending_in_another_process_of_the_group_counts_as_reported(self) -> None:
        self.pending.add(signal.SIGTERM)
        self.arrive(signal.SIGTERM)
        self.t += NS
        self.forwarder.decide({})
        assert self.sent == []
        assert self.forwarder.group


def test_a_ctrl_c_between_two_stages_of_the_end_ends_the_next_one() -> None:
    done = []
    with SignalBox() as box:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), box.interruptible():
            done.append("the stage after it")
        with box.interruptible():
            done.append("the stage after that")
    assert done == ["the stage after that"]


@pytest.mark.system
def test_a_witness_sees_what_is_sent_to_its_group_and_a_new_one_nothing() -> None:
    witness = GroupWitness()
    assert not witness.has_signal(signal.SIGTERM)
    witness.renew()
    try:
        assert is_blocked(witness.pid, signal.SIGTERM)
        assert not witness.has_signal(signal.SIGTERM)
        os.kill(witness.pid, signal.SIGTERM)
        assert witness.has_signal(signal.SIGTERM)
        old = witness.pid
        witness.renew()
        assert gone(old)
        assert not witness.has_signal(signal.SIGTERM)
    finally:
        last = witness.pid
        witness.close()
    assert gone(last)


def is_blocked(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    return bool(mask >> (number - 1) & 1)


class Terminal:
    """A terminal with a process in it, as a user has."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, environ)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, what: str | Callable[[], bool], within_s: float = 120.0) -> None:
        """Read the screen until something is on it or holds."""
        deadline = time.monotonic() + within_s
        while not (what in self.output if isinstance(what, str) else what()):
            assert time.monotonic() < deadline, f"no {what!r} on the screen:\n{self.output}"
            if select.select([self.fd], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.output += os.read(self.fd, 65536).decode(errors="replace")

    def wait(self) -> int:
        self.expect(lambda: gone(self.pid))
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(command: list[str], environ: dict[str, str]) -> Terminal:
        opened.append(Terminal(command, environ))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.system
def test_the_command_has_the_terminal(bench: Bench, terminal: Callable[..., Terminal]) -> None:
    code = (
        "import os; print([os.isatty(i) for i in range(3)], tuple(os.get_terminal_size()),"
        " os.tcgetpgrp(0) == os.getpgrp(), input('name? '))"
    )
    t = terminal([sys.executable, DRIVER, sys.executable, "-c", code], bench.environ())
    t.expect("name? ")
    t.type("ada\n")
    t.expect("[True, True, True] (101, 33) True ada")
    assert t.wait() == 0


@pytest.mark.system
def test_ctrl_c_reaches_the_command_once(bench: Bench, terminal: Callable[..., Terminal]) -> None:
    log = bench.folder / "caught"
    t = terminal([sys.executable, DRIVER, *CATCHER, str(log)], bench.environ())
    t.expect(lambda: caught(log) == ["ready"])
    t.type("\x03")
    t.expect(lambda: "SIGINT" in caught(log))
    os.kill(t.pid, signal.SIGUSR2)
    assert t.wait() == 0
    assert caught(log) == ["ready", "SIGINT", "SIGUSR2"]


@pytest.mark.system
def test_the_ctrl_c_that_ends_the_command_does_not_cut_its_analysis(
    bench: Bench, terminal: Callable[..., Terminal]
) -> None:
    t = terminal([sys.executable, DRIVER, "sleep", "600"], bench.environ(analyse=True))
    t.expect(lambda: started(bench))
    t.type("\x03")
    assert t.wait() == -signal.SIGINT
    assert bench.outcome["problems"] == []
    assert bench.outcome["energy_j"] > 0


@pytest.mark.system
def test_a_hangup_reaches_the_command_once(bench: Bench, terminal: Callable[..., Terminal]) -> None:
    log = bench.folder / "caught"
    t = terminal([sys.executable, DRIVER, *CATCHER, str(log)], bench.environ())
    t.expect(lambda: caught(log) == ["ready"])
    hung_up, t.fd = t.fd, os.open("/dev/null", os.O_RDWR)
    os.close(hung_up)
    until(lambda: "SIGHUP" in caught(log))
    os.kill(t.pid, signal.SIGUSR2)
    until(lambda: gone(t.pid))
    assert caught(log) == ["ready", "SIGHUP", "SIGUSR2"]


@pytest.mark.system
def test_ctrl_z_and_fg_work_as_for_any_job(bench: Bench, terminal: Callable[..., Terminal]) -> None:
    log = bench.folder / "caught"
    t = terminal(["bash", "--norc", "--noprofile", "-i"], bench.environ() | {"PS1": "prompt> "})
    t.expect("prompt> ")
    t.type(f"{sys.executable} {DRIVER} {' '.join(CATCHER)} {log}\n")
    t.expect(lambda: caught(log) == ["ready"] and bool(recorders_in(bench.host)))
    recorder, workload = bench.recorder(), bench.events("workload")[0]["pid"]
    t.type("\x1a")
    t.expect("Stopped")
    until(lambda: state(workload) == "T")
    assert state(recorder) != "T"
    t.type("fg\n")
    t.expect(lambda: state(workload) != "T")
    time.sleep(0.1)
    t.type("\x03")
    t.expect(lambda: "SIGINT" in caught(log))
    os.kill(workload, signal.SIGUSR2)
    t.expect(lambda: gone(recorder))
    t.type("echo code $?; exit\n")
    t.expect("code 0")
    assert caught(log) == ["ready", "SIGINT", "SIGUSR2"]
    assert bench.end["outcome"] == "exit"
