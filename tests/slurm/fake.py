"""Answer as Slurm's programs do, from rows as Slurm writes them."""

from __future__ import annotations

import datetime as dt

from joulelab.core.clock import NS
from joulelab.instruments.slurm.archive import JobArchive, JobFinder
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.instruments.slurm.energies import find_sampling

DAY = "2026-11-16T00:"
T0 = int(dt.datetime(2026, 11, 16, tzinfo=dt.UTC).timestamp()) * NS
PM = "AcctGatherEnergyType = acct_gather_energy/pm_counters\nAcctGatherNodeFreq = 1 sec\nPrivateData = none\n"


def row(job, energy, start="00:00", end="01:00", *, nodes="n1", count=1, state="COMPLETED", index=1, raw=None):
    step = job.partition(".")[2]
    raw = (raw or job.partition(".")[0]) + (f".{step}" if step else "")
    times = [f"{DAY}{t}" if t[0].isdigit() else t for t in (start, end)]
    known = all(t[0].isdigit() for t in (start, end))
    elapsed = (int(end[:2]) - int(start[:2])) * 60 + int(end[3:]) - int(start[3:]) if known else 9
    return f"{job}|{raw}|{index}|ann|{state}|0:0|{elapsed}|{times[0]}|{times[1]}|{count}|{nodes}|{energy}\n"


class Fake:
    """Answer as Slurm's programs do; each of `sacct` is the answer to one call, the last to all that follow."""

    def __init__(self, *sacct, others="", use="", sstat="", job="", config=PM, node=""):
        self._sacct, self._others, self._sstat = list(sacct), others, sstat
        self._job, self._config, self._node, self._use = job, config, node, use
        self.asked = 0
        self.t = 0

    def run(self, words, timeout_s):
        what = " ".join(words)
        if words[0] == "sstat":
            return self._sstat if isinstance(self._sstat, Answer) else Answer(0, self._sstat, "")
        if "show config" in what:
            return Answer(0, self._config, "")
        if "show node" in what:
            return Answer(0, f"NodeName=n1 {self._node}\n", "")
        if "show job" in what:
            gone = Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
            return Answer(0, f"JobId=1 {self._job}\n", "") if self._job else gone
        if "JobName" in what:
            return Answer(0, "train|it\nnow\n", "")
        if "-N" in words:
            return Answer(0, self._others, "")
        if "TotalCPU" in what:
            return self._use if isinstance(self._use, Answer) else Answer(0, self._use, "")
        self.asked += 1
        return Answer(0, self._sacct.pop(0) if len(self._sacct) > 1 else self._sacct[0], "")

    def sleep(self, seconds):
        self.t += round(seconds * NS)

    def archive(self, job="1", *, now=T0 + 3600 * NS, settle_s=10.0, attempt=None, **config):
        slurm = SlurmClient(run=self.run)
        finder = JobFinder(
            slurm,
            job,
            "slurm",
            find_sampling(slurm.read_settings()),
            settle_s,
            attempt,
            lambda: self.t,
            self.sleep,
            lambda: now,
        )
        return JobArchive(finder, config)
