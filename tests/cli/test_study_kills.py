"""Kill parts of `joulelab study run` at random times: afterwards every slot is there exactly once, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.cli.capped import FOUND_W, CapBench
from tests.waiting import until

from joulelab.study.slots import SLOT, read_slot

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.campaign
FILE = """
repeats = 1
seed = 5
[knobs]
cap = {{ values = [120, 170], when = {{ node = "gpu" }} }}
n = [1, 2]
[workloads.w{number}]
command = "sh -c 'echo {{n}} >> ran.txt; sleep 0.5'"
[nodes.gpu]
[nodes.cpu]
uses = "cpu"
"""
SLOTS = 2 * 2 + 2
# Words of the command by which parts of a study are known; "all" and "some" strike at any of them.
PARTS = {"slot": "joulelab.study.slot", "keeper": "joulelab.control", "recorder": "joulelab.recorder"}
# A strike comes at most so long (s) after its target is there; a slot takes about two seconds.
LONGEST_S = {
    "driver": 4.0,
    "driver group": 4.0,
    "slot": 2.0,
    "keeper": 1.0,
    "recorder": 1.0,
    "workload group": 0.4,
    "some": 4.0,
    "all": 4.0,
}
TARGETS = tuple(LONGEST_S)
WAIT_S = 20.0  # for a target to be there
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MOST_RESTARTS = 8  # of a study that nobody strikes at any more


class Campaign:
    """Strike at studies, one after another; each is started again until it is done."""

    def __init__(self, bench: CapBench, seed: int) -> None:
        self.bench, self.draw = bench, random.Random(seed)
        self.struck: Counter[tuple[str, str]] = Counter()
        self.aside: Counter[str] = Counter()
        self.restarts = self.finished = self.live_restarts = 0
        self._file = self._write_study()

    def run(self, count: int) -> None:
        """Strike so often, then let the last study end."""
        process = self._start()
        while self.struck.total() < count:
            target, number = self.draw.choice(TARGETS), self.draw.choice(SIGNALS)
            limit_s = time.monotonic() + WAIT_S
            while process.poll() is None and not self._find(target) and time.monotonic() < limit_s:
                time.sleep(0.02)
            time.sleep(self.draw.uniform(0.0, LONGEST_S[target]))
            if process.poll() is not None:
                process = self._follow_up(process)
            else:
                self._strike(target, number, process)
        for _ in range(MOST_RESTARTS):
            process.communicate(timeout=300)
            if process.returncode == 0:
                break
            process = self._start_again()
        self._check_done(process)

    def table(self) -> str:
        """Return the counts as a table: strikes by target and signal, then what came of them."""
        names = list(dict.fromkeys(number.name for number in SIGNALS))
        lines = ["| target | " + " | ".join(names) + " | all |", "|---|" + "--:|" * (len(names) + 1)]
        for target in TARGETS:
            counts = [self.struck[target, name] for name in names]
            lines.append(f"| {target} | " + " | ".join(map(str, counts)) + f" | {sum(counts)} |")
        totals = {"strikes": self.struck.total(), "restarts": self.restarts, "beside a live slot": self.live_restarts}
        totals |= {"studies finished": self.finished, "slots done": self.finished * SLOTS}
        totals |= {f"slots set aside, {kind}": n for kind, n in sorted(self.aside.items())}
        return "\n".join([*lines, *(f"{name}: {n}" for name, n in totals.items())])

    def _start(self) -> subprocess.Popen[str]:
        return self.bench.start("study", "run", str(self._file), "--no-figures", "-y", "--retry")

    def _start_again(self) -> subprocess.Popen[str]:
        self.restarts += 1
        self.live_restarts += bool(self._find("slot"))
        return self._start()

    def _follow_up(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Check a study that is done and start the next; start another one again."""
        process.communicate(timeout=120)
        if process.returncode != 0:
            return self._start_again()
        self._check_done(process)
        self._file = self._write_study()
        return self._start()

    def _strike(self, target: str, number: signal.Signals, process: subprocess.Popen[str]) -> None:
        """Send a signal to a part of the study that is there now."""
        if target == "driver group":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        elif target == "workload group":
            groups = {group for one in self._find(target) if (group := _find_group(one))}
            if not groups:
                return
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, number)
        else:
            members = [psutil.Process(process.pid)] if target == "driver" else self._find(target)
            if target == "some" and members:
                members = self.draw.sample(members, self.draw.randint(1, len(members)))
            if not members:
                return
            for member in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(number)
        self.struck[target, number.name] += 1

    def _find(self, target: str) -> list[psutil.Process]:
        """Return the processes of the study that are a target now."""
        found = []
        for one in _list_processes(self.bench.folder):
            words = _read_words(one)
            part = next((name for name, word in PARTS.items() if word in words), "")
            if not part:
                part = "driver" if "study" in words and "run" in words else "workload"
            if target in (part, f"{part} group", "some", "all"):
                found.append(one)
        return found

    def _write_study(self) -> Path:
        file = self.bench.folder / f"study{self.finished}.toml"
        file.write_text(FILE.format(number=self.finished))
        return file

    def _check_done(self, process: subprocess.Popen[str]) -> None:
        """Hold a study that ended against what must be there, and what must not."""
        assert process.returncode == 0, self.table()
        self.finished += 1
        study = self.bench.folder / "joulelab-studies" / self._file.stem
        slots = [path for path in study.glob("cells/*/*") if SLOT.fullmatch(path.name)]
        assert len(slots) == SLOTS
        assert {str(read_slot(slot).state) for slot in slots} == {"done"}
        assert all(len(list(slot.glob("*/end.json"))) == 1 for slot in slots)
        # What was cut off is set aside under a name that says so; nothing half-made is left.
        rest = [path.name for path in study.glob("cells/*/*") if path not in slots and path.name != "cell.json"]
        kinds = [name.partition(".")[2].partition("-")[0] for name in rest]
        assert {*kinds} <= {"interrupted", "failed", "refused"}, rest  # refused: the keeper was killed before the start
        self.aside.update(kinds)
        half = [path for path in study.rglob(".*.tmp") if not any(name in path.parts for name in rest)]
        assert not half
        until(lambda: not _list_processes(self.bench.folder))
        until(lambda: self.bench.caps() == [FOUND_W] * self.bench.gpus)
        until(lambda: not self.bench.journals())
        done = json.loads(self.bench.call("study", "status", str(self._file), "--json").stdout)
        assert done["slots"] == {"done": SLOTS}


def _read_words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _find_group(process: psutil.Process) -> int:
    """Return the group of a workload's process, 0 where it is gone or has the group of somebody else."""
    with contextlib.suppress(OSError):
        group = os.getpgid(process.pid)
        return group if group != os.getpgid(0) else 0
    return 0


def _list_processes(folder: Path) -> list[psutil.Process]:
    """Return the processes that run in the environment of the bench, whoever started them."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                variables = (entry / "environ").read_bytes().split(b"\0")
                if b"JOULELAB_RUNS=" + os.fsencode(folder / "runs") in variables:
                    found.append(psutil.Process(int(entry.name)))
    return found


@pytest.mark.timeout(3600)
def test_two_hundred_random_kills_leave_every_slot_once_and_nothing_else(tmp_path: Path) -> None:
    with CapBench(tmp_path) as bench:
        campaign = Campaign(bench, seed=2026)
        try:
            campaign.run(int(os.environ.get("KILLS", "200")))
        finally:
            print(campaign.table())
    assert campaign.struck.total() >= 200 or "KILLS" in os.environ
