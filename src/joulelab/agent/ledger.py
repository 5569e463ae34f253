"""Give each Slurm job the energy that the node used while it was there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.core.clock import NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.agent.slurm_jobs import Job

# A job that is noticed late gets its energy from its start, as far back as this.
REMEMBERED = 150
# After its end a job is shown for so long: its last value is scraped a few times, and then it is gone.
LINGER_NS = 300 * NS
MOST_JOBS = 256

Key = tuple[str, str]  # scope, meter


@dataclass(slots=True)
class Account:
    """Hold one job: what the totals were when it came, and what it has used since, in J; shared time in s."""

    job: Job
    base: dict[Key, float]
    energy_j: dict[Key, float] = field(default_factory=dict)
    shared_s: float = 0.0
    ended_ns: int = 0


class Ledger:
    """Follow totals and jobs, both as they are at the same moment."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._last: dict[Key, float] = {}
        self._sums: dict[Key, float] = {}
        self._past: deque[tuple[int, dict[Key, float]]] = deque(maxlen=REMEMBERED)

    def take(self, now_ns: int, utc_ns: int, totals: Mapping[Key, float], jobs: Mapping[str, Job]) -> None:
        """Bring every account up to date; called about once a second."""
        sums = self._summed(totals)
        passed_s = (now_ns - self._past[-1][0]) / NS if self._past else 0.0
        running = [a for number, a in self.accounts.items() if number in jobs and not a.ended_ns]
        for account in running:
            account.job = jobs[account.job.number]
            # What is first seen while the job runs has counted before, nobody knows what of it for the job.
            account.energy_j |= {key: sums[key] - account.base.setdefault(key, sums[key]) for key in totals}
            account.shared_s += passed_s if len(jobs) > 1 else 0.0
        for number, job in jobs.items():
            known = self.accounts.get(number)
            if known is None or known.ended_ns:  # requeued under its number: it begins anew
                self.accounts[number] = self._opened(job, now_ns, utc_ns, totals.keys())
        for number, account in list(self.accounts.items()):
            if number not in jobs:
                account.ended_ns = account.ended_ns or now_ns
                if now_ns - account.ended_ns > LINGER_NS:
                    del self.accounts[number]
        for number in sorted(self.accounts, key=self._rank)[MOST_JOBS:]:
            del self.accounts[number]
        self._past.append((now_ns, dict(sums)))

    def _summed(self, totals: Mapping[Key, float]) -> dict[Key, float]:
        """Return sums that never fall: a stream that went away and came back may count from 0 again."""
        for key, total in totals.items():
            last = self._last.get(key, 0.0)
            self._sums[key] = self._sums.get(key, 0.0) + (total - last if total >= last else total)
            self._last[key] = total
        return self._sums

    def _rank(self, number: str) -> tuple[bool, int]:
        """Sort jobs that run before those that ended, these by how long ago."""
        ended_ns = self.accounts[number].ended_ns
        return ended_ns > 0, -ended_ns

    def _opened(self, job: Job, now_ns: int, utc_ns: int, there: Iterable[Key]) -> Account:
        start_ns = now_ns if job.start_utc_ns is None else now_ns - max(utc_ns - job.start_utc_ns, 0)
        earlier = [base for t_ns, base in self._past if t_ns <= start_ns]
        # Where the job is older than what is remembered, all of that is its own.
        base = dict(earlier[-1] if earlier else (self._past[0][1] if self._past else self._sums))
        account = Account(job, base)
        for key in there:
            first = next((sums[key] for _, sums in self._past if key in sums), self._sums[key])
            account.energy_j[key] = self._sums[key] - base.setdefault(key, first)
        return account
