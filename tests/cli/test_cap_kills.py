"""Kill parts of `joulelab cap` at random times in random ways: the caps found before are there again."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.campaign.families import clear_family, kill_at_once, list_family, read_words
from tests.cli.capped import FOUND_W, CapBench
from tests.waiting import until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import psutil

pytestmark = pytest.mark.campaign
WAYS = ("some", "all", "power loss", "term", "hangup", "group")
LONGEST_S = 2.0  # joulelab needs about one second to set caps on a quiet machine: kills fall before, into and after it
SLEEP = "import time; time.sleep(30)"
FOUND_UW = ("350000000", "420000000")


@dataclass(frozen=True)
class CapTrial:
    """Hold what came of one strike: who was hit, when the caps returned, and the processes that did not end."""

    hit: list[str]
    outcome: str  # by itself, at the next start, never
    was_in_force: bool
    left: list[psutil.Process]


def strike(draw: random.Random, process: subprocess.Popen[str], way: str) -> list[str]:
    """Kill in one way; return who was hit."""
    members = list_family(process.pid)
    if way == "term":
        process.send_signal(signal.SIGTERM)
        return ["joulelab TERM"]
    if way == "hangup":
        process.send_signal(signal.SIGHUP)
        return ["joulelab HUP"]
    if way == "group":
        os.killpg(process.pid, signal.SIGKILL)
        return ["its process group"]
    if way == "some" and members:
        members = draw.sample(members, draw.randint(1, len(members)))
    kill_at_once(members, stop_first=way == "power loss")
    return [str(member.pid) for member in members]


def is_as_found(bench: CapBench) -> bool:
    """Return whether all caps are those that were found."""
    limits = [path.read_text().strip() for path in list_limits(bench)]
    return bench.caps() == [FOUND_W] * bench.gpus and limits == [*FOUND_UW]


def list_limits(bench: CapBench) -> list[Path]:
    zone = bench.state.parent.parent / "powercap" / "intel-rapl:0"
    return [zone / f"constraint_{n}_power_limit_uw" for n in (0, 1)]


def strike_caps(bench: CapBench, draw: random.Random, way: str) -> CapTrial:
    """Set caps and strike once; afterwards the bench is as before."""
    cpu = ("--cpu", "120") if draw.random() < 0.5 else ()
    process = bench.start("cap", str(draw.choice((120, 170, 200))), *cpu, "--", sys.executable, "-c", SLEEP)
    if draw.random() < 0.5:  # some while it starts, some once the caps are set
        time.sleep(draw.uniform(0.0, LONGEST_S))
    else:
        until(lambda: not is_as_found(bench))
        time.sleep(draw.uniform(0.0, 0.5))
    was_in_force = not is_as_found(bench)
    before = list_family(process.pid)
    hit = strike(draw, process, way)
    if way in ("some", "all", "power loss"):  # what is left of joulelab ends with its workload
        time.sleep(draw.uniform(0.0, 0.3))
    kill_at_once(m for m in before if "joulelab.control" not in read_words(m) and m.pid != process.pid)
    process.communicate(timeout=60)
    left = clear_family(before)
    outcome = "by itself"
    if not is_as_found(bench) or bench.journals():
        bench.call("ls")
        outcome = "at the next start" if is_as_found(bench) and not bench.journals() else "never"
    if outcome == "never":
        reset_caps(bench)
    return CapTrial(hit, outcome, was_in_force, left)


def reset_caps(bench: CapBench) -> None:
    """Set the caps that were found by hand, for the next trial."""
    for gpu in range(bench.gpus):
        bench.truth.set_cap(gpu, FOUND_W)
    for path, found in zip(list_limits(bench), FOUND_UW, strict=True):
        path.write_text(found)
    for journal in bench.journals():
        journal.unlink()


@pytest.mark.timeout(1800)
def test_two_hundred_random_kills_leave_no_cap_behind(tmp_path: Path) -> None:
    draw, came, in_force = random.Random(2026), Counter[str](), 0
    with CapBench(tmp_path) as bench:
        for number in range(200):
            trial = strike_caps(bench, draw, WAYS[number % len(WAYS)])
            came[trial.outcome] += 1
            in_force += trial.was_in_force
            assert trial.outcome != "never", (number, trial)
            assert not trial.left, (number, trial)
    print(dict(came), in_force)
    assert in_force > 50
