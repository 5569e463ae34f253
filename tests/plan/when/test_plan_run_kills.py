"""Kill parts of a plan that runs at random times in random ways: no stopped process, no cap, no journal is left."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.campaign.families import is_alive, kill_at_once, list_family, read_words
from tests.cli.capped import FOUND_W, CapBench
from tests.plan.when.run_plans import PAUSE, RUN, make_plan
from tests.waiting import until

from joulelab.core.process_identity import is_stopped
from joulelab.plan.when.plan_run import make_follow_command, read_utc_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.campaign
COUNT = int(os.environ.get("PLAN_KILLS", "50"))
JOB = "sleep 900 & (sleep 900; true) & wait"
SLOT_S = 0.8
# Runs at two caps and without one, with pauses in between, for longer than a round.
PARTS = ((RUN, 150.0, SLOT_S, 1.0), (PAUSE, None, SLOT_S, 1.0), (RUN, 200.0, SLOT_S, 1.0), (PAUSE, None, SLOT_S, 1.0),
         (RUN, None, SLOT_S, 1.0), (PAUSE, None, SLOT_S, 1.0)) * 20  # fmt: skip


class Round:
    """Hold one plan that runs, with the terminal and the processes that belong to it."""

    def __init__(self, bench: CapBench) -> None:
        self.bench = bench
        plan = bench.folder / "plan.json"
        plan.write_text(json.dumps(make_plan(read_utc_s(), (*PARTS, (RUN, None, 60.0, 1.0))).to_json()))
        command = make_follow_command(plan, bench.folder / "runs", ["sh", "-c", JOB])
        self.master, terminal = pty.openpty()
        self.log = bench.folder / "errors.txt"
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                command, env=bench.environ, cwd=bench.folder, stdin=terminal, stdout=terminal, stderr=errors,
                start_new_session=True, preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads here
            )  # fmt: skip
        os.close(terminal)
        self.pid = self.process.pid

    def family(self) -> list[psutil.Process]:
        """Return joulelab and everything it started that still runs."""
        return list_family(self.pid)

    def keepers(self) -> list[psutil.Process]:
        """Return the keepers; their guards, which are there for the death of a keeper, do not count."""
        named = {one: read_words(one) for one in self.family()}
        return [one for one, words in named.items() if "joulelab.control" in words and "joulelab-guard" not in words]

    def job(self) -> list[psutil.Process]:
        return [one for one in self.family() if "sleep" in read_words(one)[:1] or JOB in read_words(one)]

    def close(self) -> None:
        """Hang up the terminal; closing twice is harmless."""
        master, self.master = self.master, -1
        if master >= 0:
            os.close(master)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _kill_keepers(one: Round, draw: random.Random) -> None:
    keepers = one.keepers()
    kill_at_once(draw.sample(keepers, draw.randint(1, len(keepers))) if keepers else [], stop_first=True)


def _kill_all_parts(one: Round, _: random.Random) -> None:
    recorders = [each for each in one.family() if "joulelab.recorder" in read_words(each)]
    kill_at_once([*recorders, *one.keepers(), psutil.Process(one.pid)], stop_first=True)


def _kill_supervisor_and_keepers(one: Round, _: random.Random) -> None:
    kill_at_once([*one.keepers(), psutil.Process(one.pid)], stop_first=True)


def _send(number: int) -> Callable[[Round, random.Random], None]:
    return lambda one, _: one.process.send_signal(number)


WAYS: dict[str, Callable[[Round, random.Random], None]] = {
    "supervisor -9": lambda one, _: one.process.kill(),
    "keepers -9": _kill_keepers,
    "supervisor, keepers -9": _kill_supervisor_and_keepers,
    "all but the job -9": _kill_all_parts,
    "SIGINT": _send(signal.SIGINT),
    "SIGTERM": _send(signal.SIGTERM),
    "Ctrl-C": lambda one, _: os.write(one.master, b"\x03") and None,
    "hang-up": lambda one, _: one.close(),
    "group -9": lambda one, _: os.killpg(one.pid, signal.SIGKILL),
}


def strike_plan(bench: CapBench, draw: random.Random, way: str, found: Counter[str]) -> list[str]:
    """Run one plan and strike it; return the problems."""
    one = Round(bench)
    known: list[psutil.Process] = []
    try:
        if draw.random() < 0.85:  # some while it starts, most once the job runs
            until(lambda: len(one.job()) >= 3 or one.process.poll() is not None, "the job runs")
            assert one.process.returncode is None, (one.process.returncode, one.log.read_text())
        time.sleep(draw.uniform(0.0, 6 * SLOT_S))
        known = one.family()
        job = one.job()
        found[f"{way}: struck"] += 1
        found["in a pause"] += any(is_stopped(each.pid) for each in job)
        found["under a cap"] += bench.caps() != [FOUND_W] * bench.gpus
        WAYS[way](one, draw)
        if way == "keepers -9":  # the plan goes on; then it ends in good order
            time.sleep(draw.uniform(0.0, 3.0))
            known = list({each.pid: each for each in (*known, *one.family())}.values())
            one.process.send_signal(signal.SIGTERM)
        try:
            one.process.wait(120)
        except subprocess.TimeoutExpired:
            states = [f"{each.pid} {' '.join(read_words(each)[-2:])[:40]} {each.status()}" for each in one.family()]
            return [f"it does not end: {'; '.join(states)}; {one.log.read_text()[-300:]}"]
        return _list_leftovers(bench, known, one)
    finally:
        one.close()
        for each in {each.pid: each for each in (*known, *one.family())}.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def _list_leftovers(bench: CapBench, known: list[psutil.Process], one: Round) -> list[str]:
    """Wait a moment; return what is left of a plan. Nothing of joulelab is started for it."""
    job = [each for each in known if "sleep" in read_words(each)[:1] or JOB in read_words(each)]
    others = [each for each in known if each not in job]
    conditions = {
        "a stopped process": lambda: not any(is_stopped(each.pid) for each in known),
        "a cap": lambda: bench.caps() == [FOUND_W] * bench.gpus,
        "a journal": lambda: not bench.journals(),
        "a process of joulelab": lambda: not any(is_alive(each) for each in others),
    }
    problems = []
    for what, holds in conditions.items():
        try:
            until(holds, what, within_s=40)
        except AssertionError:
            problems.append(f"{what} is left of pid {one.pid}")
    return problems


@pytest.mark.timeout(3600)
def test_random_kills_leave_no_cap_and_no_stopped_process(tmp_path: Path) -> None:
    seed = int(os.environ.get("PLAN_KILLS_SEED", "2026"))
    draw, found, problems = random.Random(seed), Counter[str](), []
    with CapBench(tmp_path) as bench:
        for number in range(COUNT):
            way = list(WAYS)[number % len(WAYS)]
            told = strike_plan(bench, draw, way, found)
            print(f"{number:3} {way:24} {'; '.join(told) or 'nothing left'}", file=sys.stderr, flush=True)
            problems += [f"{number} {way}: {text}" for text in told]
    print(dict(found), file=sys.stderr)
    assert problems == []
    assert found["in a pause"] >= COUNT // 10
    assert found["under a cap"] >= COUNT // 10
