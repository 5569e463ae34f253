"""Kill parts of `joulelab cap` at random times in random ways: the caps found before are there again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.cli.capped import FOUND_W, CapBench
from tests.waiting import until

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.campaign
WAYS = ("some", "all", "power loss", "term", "hangup", "group")
LONGEST_S = 2.0  # joulelab needs about one second to set caps on a quiet machine: kills fall before, into and after it


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return joulelab and everything it started: recorder, keeper, workload."""
    with contextlib.suppress(psutil.NoSuchProcess):
        one = psutil.Process(process.pid)
        return [one, *one.children(recursive=True)]
    return []


def strike(draw: random.Random, process: subprocess.Popen[str], way: str) -> list[str]:
    """Kill in one way; return who was hit."""
    members = family(process)
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
    if way == "power loss":  # nobody gets to react
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return [str(member.pid) for member in members]


def as_found(bench: CapBench) -> bool:
    zone = bench.state.parent.parent / "powercap" / "intel-rapl:0"
    limits = [(zone / f"constraint_{n}_power_limit_uw").read_text().strip() for n in (0, 1)]
    return bench.caps() == [FOUND_W] * bench.gpus and limits == ["350000000", "420000000"]


def campaign(bench: CapBench, count: int, seed: int) -> dict[str, int]:
    """Strike so often; return how often the caps came back by themselves and at the next start."""
    draw, came = random.Random(seed), {"by itself": 0, "at the next start": 0, "in force when struck": 0}
    for number in range(count):
        way = WAYS[number % len(WAYS)]
        cpu = ("--cpu", "120") if number % 2 else ()
        process = bench.start("cap", str(draw.choice((120, 170, 200))), *cpu, "--", sys.executable, "-c", SLEEP)
        if draw.random() < 0.5:  # some while it starts, some once the caps are set
            time.sleep(draw.uniform(0.0, LONGEST_S))
        else:
            until(lambda: not as_found(bench))
            time.sleep(draw.uniform(0.0, 0.5))
        came["in force when struck"] += not as_found(bench)
        before = family(process)
        hit = strike(draw, process, way)
        if way in ("some", "all", "power loss"):  # what is left of joulelab ends with its workload
            time.sleep(draw.uniform(0.0, 0.3))
        for member in before:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "keeper" not in _role(member) and member.pid != process.pid:
                    member.kill()
        process.communicate(timeout=60)
        _settle(before)
        if as_found(bench) and not bench.journals():
            came["by itself"] += 1
            continue
        bench.call("ls")
        assert as_found(bench), (number, way, hit)
        assert not bench.journals(), (number, way, hit)
        came["at the next start"] += 1
    return came


SLEEP = "import time; time.sleep(30)"


def _role(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "keeper" if "joulelab.control" in process.cmdline() else "other"
    return "gone"


def _settle(members: list[psutil.Process]) -> None:
    """Wait until nothing of a joulelab is left that could still put back."""
    until(lambda: not any(_is_alive(member) for member in members), within_s=60)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.timeout(1800)
def test_two_hundred_random_kills_leave_no_cap_behind(tmp_path: Path) -> None:
    with CapBench(tmp_path) as bench:
        came = campaign(bench, 200, seed=2026)
    print(came)
    assert came["by itself"] + came["at the next start"] == 200
    assert came["in force when struck"] > 50
