"""Kill clients and keepers at random times, on a twin through the real NVML path, and see what is left of the caps."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.capped import FOUND_W, CapBench
from tests.control.fake import wait_for

from joulelab.control.client import restore_leftovers
from joulelab.control.leftovers import has_leftovers
from joulelab.core.clock import monotonic_ns
from joulelab.core.process_identity import read_start_ticks
from joulelab.twin.model import Node, find_gpu_model
from joulelab.twin.twin_server import TwinServer

if TYPE_CHECKING:
    from collections.abc import Callable

# Holds caps and changes them all the time; a keeper that dies is started again.
CLIENT = """
import os, random, select, sys, time
from joulelab.control.client import Caps, CapRequest
from joulelab.core.errors import JoulelabError
with Caps(os.environ, who={"command": "kill me"}) as caps:
    while True:
        try:
            power = [CapRequest("gpu:0", random.uniform(210, 690)), CapRequest("gpu:1", 0.5, "share")]
            caps.set([*power, CapRequest("gpu:1", 1.2e9, "Hz")])
        except JoulelabError as error:
            print(error, file=sys.stderr)
        until = time.monotonic() + random.choice([0, 0, 0.01, 0.1])
        while time.monotonic() < until:
            select.select(caps.fds, (), (), 0.01)
            caps.serve()
        if random.random() < 0.1:
            caps.release()
"""
ROUNDS_PER_TWIN = 10


@dataclass
class Result:
    """Tell what a campaign found: problems in words, how often each kill was tried, how often a restore was needed."""

    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    restored: int = 0


@dataclass(frozen=True)
class KeeperTrial:
    """Hold how a `joulelab cap` ended whose keepers were killed: exit code, messages, and when the caps returned."""

    deaths: int
    code: int
    text: str
    outcome: str  # by itself, at the next start, never

    @property
    def is_silent(self) -> bool:
        """Return whether it failed without a message, or left a cap without the command that restores it."""
        left = self.outcome != "by itself" and "joulelab cap restore" not in self.text
        return left or (self.code != 0 and not self.text.strip())


def kill_keepers_in_row(bench: CapBench, draw: random.Random) -> KeeperTrial:
    """Kill two to four keepers of one `joulelab cap`, each at a random moment of its life; then look at the caps."""
    spared, times = draw.randint(0, 1), draw.randint(2, 4)
    process = bench.start("cap", "170", "--", sys.executable, "-c", "import time; time.sleep(1)")
    seen: list[int] = []
    while len(seen) < spared + times and process.poll() is None:
        for pid in keepers(process.pid):
            if pid not in seen:
                seen.append(pid)
                if draw.random() < 0.7:  # while it sets or restores; the others while they start
                    _wait_for_change(bench, process.pid, pid)
                time.sleep(draw.uniform(0.0, 0.02))
                _send(signal.SIGKILL, *([pid] if len(seen) > spared else []))
        time.sleep(0.005)
    _, text = process.communicate(timeout=300)
    wait_for(lambda: not keepers(process.pid))

    def is_as_found() -> bool:
        return bench.caps() == [FOUND_W] * bench.gpus and not bench.journals()

    outcome = "by itself"
    if not is_as_found():
        bench.call("ls")
        outcome = "at the next start" if is_as_found() else "never"
    for gpu in range(bench.gpus if outcome == "never" else 0):
        bench.truth.set_cap(gpu, FOUND_W)
    for journal in bench.journals():
        journal.unlink()
    return KeeperTrial(len(seen) - spared, process.returncode, text, outcome)


def _wait_for_change(bench: CapBench, client: int, keeper: int) -> None:
    """Wait until a keeper has written or removed a journal, or has ended, at most 3 s."""
    journals = bench.journals()
    with contextlib.suppress(AssertionError):
        wait_for(lambda: bench.journals() != journals or keeper not in keepers(client), within_s=3)


def campaign(n: int, seed: int, start: Callable[..., Any] | None = None) -> Result:
    """Kill `n` times; `start(environ, **Popen options)` starts what holds caps (default: a client of its own)."""
    random_ = random.Random(seed)
    result = Result()
    done = 0
    while done < n:
        with TwinServer(Node(gpus=(find_gpu_model("h100"),) * 2)) as twin:
            assert twin.missing is None, twin.missing
            for number in range(done, min(n, done + ROUNDS_PER_TWIN)):
                said = _round(twin, random_, result, start or _client)
                result.problems += [f"round {number} of seed {seed}: {text}" for text in said]
            done += ROUNDS_PER_TWIN
    return result


def _client(environ: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CLIENT], env=environ, **options)


def _round(twin: TwinServer, random_: random.Random, result: Result, start: Callable[..., Any]) -> list[str]:
    environ = {**os.environ, **twin.environment}
    found = {0: random_.choice([700.0, 450.0, 333.0]), 1: random_.choice([700.0, 500.0])}
    for gpu, cap_w in found.items():
        twin.truth.set_cap(gpu, cap_w)
    before = _shown(twin)
    name, kill = random_.choice(list(KILLS.items()))
    result.kills[name] += 1
    master, terminal = pty.openpty()
    quiet = {"stdin": terminal, "stdout": terminal, "stderr": subprocess.DEVNULL}
    process = start(environ, start_new_session=True, preexec_fn=_own_terminal, **quiet)
    os.close(terminal)
    try:
        if random_.random() < 0.8:  # most of the time, there is something to put back
            with contextlib.suppress(AssertionError):
                wait_for(lambda: _shown(twin) != before, within_s=60)
        time.sleep(random_.uniform(0.0, 0.3))
        kill(process.pid, keepers(process.pid), master)
        time.sleep(random_.uniform(0.0, 0.5))
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.close(master)
    return [f"{name}: {text}" for text in _look(twin, environ, before, process.pid, result)]


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _look(twin: TwinServer, environ: dict[str, str], before: Any, pid: int, result: Result) -> list[str]:
    """Wait for the keepers to end; caps are as before then, at the latest after a restore."""
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not keepers(pid))
    if alive := keepers(pid):
        return [f"keepers {alive} still run"]
    if has_leftovers(environ):
        result.restored += 1
    elif _shown(twin) != before:
        return [f"{_shown(twin)} instead of {before}, and no journal tells of it"]
    told = restore_leftovers(environ)
    problems = [f"restore says {one}" for one in told if one.outcome not in ("restored", "as found")]
    if _shown(twin) != before:
        problems.append(f"{_shown(twin)} instead of {before} after a restore that says {told}")
    if has_leftovers(environ):
        problems.append("a journal is left after a restore")
    return problems


def _shown(twin: TwinServer) -> tuple[Any, ...]:
    """Return the caps that are set, as the twin itself knows them, and which clocks are locked."""
    locks = Path(twin.environment["JOULELAB_STATE"]) / "clocks"
    now = monotonic_ns()
    return (*(twin.truth.caps(gpu, now)[0] for gpu in (0, 1)), *sorted(p.name for p in locks.glob("*.json")))


def keepers(client: int) -> list[int]:
    """Return the keepers that were started for a client and run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"joulelab.control" in words and str(client).encode() in words and read_start_ticks(int(folder.name)):
                found.append(int(folder.name))
    return found


def _send(number: int, *pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_session(client: int, _: list[int], __: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(client, signal.SIGKILL)


KILLS: dict[str, Callable[[int, list[int], int], None]] = {
    "client killed": lambda client, _, __: _send(signal.SIGKILL, client),
    "keeper killed": lambda _, kept, __: _send(signal.SIGKILL, *kept),
    "keeper, then client killed": lambda client, kept, __: _send(signal.SIGKILL, *kept, client),
    "client, then keeper killed": lambda client, kept, __: _send(signal.SIGKILL, client, *kept),
    "client stopped, both killed": lambda client, kept, __: (
        _send(signal.SIGSTOP, client),
        _send(signal.SIGKILL, *kept, client),
    )[0],
    "client terminated": lambda client, _, __: _send(signal.SIGTERM, client),
    "keeper terminated": lambda _, kept, __: _send(signal.SIGTERM, *kept),
    "both terminated": lambda client, kept, __: _send(signal.SIGTERM, *kept, client),
    "client hung up": lambda client, _, __: _send(signal.SIGHUP, client),
    "both hung up, keeper killed": lambda client, kept, __: (
        _send(signal.SIGHUP, *kept, client),
        _send(signal.SIGKILL, *kept),
    )[0],
    "terminal closed": lambda _, __, master: os.close(master),
    "session killed": _kill_session,
}
