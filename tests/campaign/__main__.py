"""Attack joulelab for a given time, and count what came of it.

    python -m tests.campaign --minutes 10                   # all parts in turn
    python -m tests.campaign --minutes 10 --only run-kills  # one part
    python -m tests.campaign --only run-kills --seed 7 --trial 12   # one trial again
    python -m tests.campaign --add campaign.jsonl more.jsonl        # the sum of earlier campaigns

Parts take turns of at most 40 s. Each trial draws from its own seed `SEED:PART:NUMBER`. The counts are appended to
campaign.jsonl as one line. Exit 1: a cap or a process was left, damage or a fault was not noticed, or anything crashed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from tests.campaign.campaign_counts import CampaignCounts
from tests.campaign.cap_kills import CapKills, KeeperKills, KeeperRows, PlanKills
from tests.campaign.fault_trials import FaultTrials
from tests.campaign.flood_trials import FloodTrials
from tests.campaign.folder_trials import FolderTrials
from tests.campaign.fuzz_trials import FuzzTrials
from tests.campaign.run_kills import RunKills
from tests.outside import FOREIGN, make_home, redirect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURN_S = 40.0


class Part(Protocol):
    """Try one kind of attack; a context manager that cleans up by process id."""

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Run one trial and count it. Raises AssertionError for a broken promise."""


# Each part is opened with a folder of its own, once in a turn.
PARTS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Part]]] = {
    "run-kills": RunKills,
    "cap-kills": CapKills,
    "keeper-kills": KeeperKills,
    "keeper-rows": KeeperRows,
    "plan-kills": PlanKills,
    "folders": FolderTrials,
    "faults": FaultTrials,
    "floods": FloodTrials,
    "fuzz": FuzzTrials,
}


class Campaign:
    """Run parts in turn until the time is over."""

    def __init__(self, names: list[str], seed: str, *, say: Callable[[str], None] = print) -> None:
        self.counts = CampaignCounts(seeds=[seed])
        self._names, self._seed, self._say = names, seed, say
        self._numbers = {name: itertools.count(1) for name in names}

    def run(self, minutes: float) -> None:
        """Run turns of all parts, at least one trial of each, until the time is over."""
        begun = time.monotonic()
        end = begun + 60 * minutes
        turn_s = min(TURN_S, 60 * minutes / len(self._names))
        while time.monotonic() < end or not self.counts.trials:
            for name in self._names:
                if name not in self.counts.skipped and (time.monotonic() < end or not self.counts.trials[name]):
                    self.run_turn(name, min(time.monotonic() + turn_s, max(end, time.monotonic() + 0.1)))
            if len(self.counts.skipped) == len(self._names):
                break
        self.counts.seconds = time.monotonic() - begun

    def run_turn(self, name: str, until: float, only: int | None = None) -> None:
        """Run trials of one part until a time (monotonic s), at least one; or the trial of this number."""
        with make_place() as folder:
            try:
                with PARTS[name](folder) as part:
                    while True:
                        number = next(self._numbers[name]) if only is None else only
                        self._run_trial(part, name, number)
                        if time.monotonic() >= until or only is not None:
                            return
            except pytest.skip.Exception as reason:
                self.counts.skipped[name] = str(reason)

    def _run_trial(self, part: Part, name: str, number: int) -> None:
        trial = f"{self._seed}:{name}:{number}"
        self.counts.trials[name] += 1
        known, known_outside = len(self.counts.problems), len(self.counts.outside)
        try:
            part.run_trial(random.Random(trial), self.counts)
        except pytest.skip.Exception:
            raise
        except Exception as error:
            self.counts.problems.append(f"{type(error).__name__}: {error}")
            self._say(traceback.format_exc())
        again = f"python -m tests.campaign --only {name} --seed {self._seed} --trial {number}"
        for k, figure in enumerate(self.counts.outside[known_outside:], known_outside):
            self.counts.outside[k] = f"{figure} [{again}]"
        for k, problem in enumerate(self.counts.problems[known:], known):
            self.counts.problems[k] = f"{' '.join(problem.split())[:300]} [{again}]"
            self._say(self.counts.problems[k])


@contextlib.contextmanager
def make_place() -> Iterator[Path]:
    """Make the folder of one turn, and a home in it; both are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="c-"))
    folder.chmod(0o755)
    home = make_home()
    before = dict(os.environ)
    os.environ.update(redirect(home))
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)


def add_files(files: list[Path]) -> CampaignCounts:
    """Return the sum of the campaigns in these files."""
    whole = CampaignCounts()
    for line in itertools.chain.from_iterable(file.read_text().splitlines() for file in files):
        whole.add(CampaignCounts.from_json(json.loads(line)))
    return whole


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.campaign", description=__doc__, formatter_class=plain)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", default=os.urandom(3).hex())
    parser.add_argument("--only", action="append", choices=list(PARTS))
    parser.add_argument("--trial", type=int, help="run one trial, of the part that --only names")
    parser.add_argument("--to", type=Path, default=Path("campaign.jsonl"), help="append the counts to this file")
    parser.add_argument("--add", type=Path, nargs="+", metavar="FILE", help="print the sum of earlier campaigns")
    given = parser.parse_args(words)
    if given.add:
        counts = add_files(given.add)
        print(counts.to_table())
        return int(counts.is_promise_broken)
    file = given.to.resolve()
    names = given.only or list(PARTS)
    campaign = Campaign(names, given.seed, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(f"seed {given.seed}: {', '.join(names)}", file=sys.stderr)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # nohup, or a background job, ignores them for us
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for variable in [name for name in os.environ if name.upper().startswith(FOREIGN)]:
        del os.environ[variable]
    if given.trial is not None:
        campaign.run_turn(names[0], 0.0, given.trial)
    else:
        campaign.run(given.minutes)
        with file.open("a") as out:
            out.write(json.dumps(campaign.counts.to_json()) + "\n")
    print(campaign.counts.to_table())
    return int(campaign.counts.is_promise_broken)


if __name__ == "__main__":
    from tests.outside import _base  # the folder of all temporary files

    try:
        code = main()
    finally:
        shutil.rmtree(_base, ignore_errors=True)
    sys.exit(code)
