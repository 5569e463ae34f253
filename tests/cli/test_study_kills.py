"""Kill parts of `joulelab study run` at random times: afterwards every slot is there exactly once, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
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
repeats = {repeats}
seed = 5
[knobs]
cap = {{ values = [120, 170], when = {{ node = "gpu" }} }}
n = [1, 2]
[workloads.w]
command = "sh -c 'echo {{n}} >> ran.txt; sleep 0.2'"
[nodes.gpu]
[nodes.cpu]
uses = "cpu"
"""
CELLS = 2 * 2 + 2


class Campaign:
    """Strike at studies, one after another: each goes on until it is done."""

    def __init__(self, bench: CapBench, seed: int, *, repeats: int) -> None:
        self.bench, self.draw, self.repeats = bench, random.Random(seed), repeats
        self.slots, self.longest_s = CELLS * repeats, 3.0 * repeats
        self.struck: dict[str, int] = {}
        self.finished = 0

    def run(self, count: int) -> None:
        """Interrupt so often, then let the last study end."""
        file = self._next_study()
        while sum(self.struck.values()) < count:
            process = self.bench.start("study", "run", str(file), "--no-figures", "-y", "--retry")
            time.sleep(self.draw.uniform(0.0, self.longest_s))
            if process.poll() is not None:
                self._check_done(file, process)
                file = self._next_study()
                continue
            way = self.draw.choice(("driver", "slot", "some", "all", "all"))
            self.struck[way] = self.struck.get(way, 0) + 1
            self._strike(process, way)
            process.communicate(timeout=120)
        process = self.bench.start("study", "run", str(file), "--no-figures", "-y", "--retry")
        process.wait(300)
        self._check_done(file, process)

    def _strike(self, process: subprocess.Popen[str], way: str) -> None:
        """Kill by -9; what is left of the study is then ended too, so that the next call finds only what it left."""
        members = self._family(process)
        hit = members
        if way == "driver":
            hit = members[:1]
        elif way == "slot":
            hit = [m for m in members if "joulelab.study.slot" in _words(m)]
        elif way == "some":
            hit = self.draw.sample(members, self.draw.randint(1, len(members))) if members else []
        for member in hit:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        if way == "slot" and hit and self.draw.random() < 0.5:
            time.sleep(self.draw.uniform(0.0, 2.0))  # the driver goes on by itself for a while
        if process.poll() is None:
            process.kill()

    def _family(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(process.pid)
            return [one, *one.children(recursive=True)]
        return []

    def _next_study(self) -> Path:
        file = self.bench.folder / f"study{self.finished}.toml"
        file.write_text(FILE.format(repeats=self.repeats))
        return file

    def _check_done(self, file: Path, process: subprocess.Popen[str]) -> None:
        """Hold a study that ended against what must be there, and what must not."""
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        self.finished += 1
        study = self.bench.folder / "joulelab-studies" / file.stem
        slots = [path for path in study.glob("cells/*/*") if SLOT.fullmatch(path.name)]
        assert len(slots) == self.slots
        assert {str(read_slot(slot).state) for slot in slots} == {"done"}
        assert all(len(list(slot.glob("*/end.json"))) == 1 for slot in slots)
        # What was cut off is set aside under a name that says so; nothing half-made is left.
        rest = [path.name for path in study.glob("cells/*/*") if path not in slots and path.name != "cell.json"]
        assert all(".interrupted-" in name or ".failed-" in name for name in rest), rest
        half = [path for path in study.rglob(".*.tmp") if not any(name in path.parts for name in rest)]
        assert not half
        until(lambda: self.bench.caps() == [FOUND_W] * self.bench.gpus)
        until(lambda: not self.bench.journals())
        until(lambda: not _left(self.bench.folder))
        done = json.loads(self.bench.call("study", "status", str(file), "--json").stdout)
        assert done["slots"] == {"done": self.slots}


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _left(folder: Path) -> list[int]:
    """Return the processes that belong to a run of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                variables = (entry / "environ").read_bytes()
                if b"JOULELAB_RUN=" + os.fsencode(folder) in variables:
                    found.append(int(entry.name))
    return found


@pytest.mark.timeout(3600)
def test_two_hundred_random_kills_leave_every_slot_once_and_nothing_else(tmp_path: Path) -> None:
    with CapBench(tmp_path) as bench:
        campaign = Campaign(bench, seed=2026, repeats=2)
        campaign.run(200)
    print(f"{campaign.struck}, {campaign.finished} studies finished")
    assert sum(campaign.struck.values()) == 200
